"""The sums that screens show: each pass of the cost watchdog leaves them in the ledger. A screen makes them itself
only where no pass has.
"""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from app import ledgers
from app.declared import declared_of, overrides_of
from costs.report import Scope
from costs.report import load as load_report
from costs.sums import sums
from gpufleet.settings.document import FleetDocument
from ledger.database import writing
from ledger.sums import CostSum, Span, write_sums
from prices.packaged import PackagedPrices

_HOUR: Final = timedelta(hours=1)


def _midnight(now: datetime) -> datetime:
    """When the UTC day of that moment began."""
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def add_up(document: FleetDocument, engine: Engine, span: Span, now: datetime) -> list[CostSum]:
    """A span up to now, as `gpufleet report cost` of it. What has no price is counted. Raises AppError."""
    scope = Scope(
        fleet=ledgers.ledger_name(document),
        environment=document.environment,
        cloud=document.cloud,
        region=document.region,
        since=_midnight(now) if span is Span.TODAY else now - _HOUR,
        until=now,
        now=now,
        allow_unpriced=True,
    )
    overrides, declared = overrides_of(document), declared_of(document)
    with ledgers.ledger_errors(document):
        return sums(load_report(engine, scope, overrides, PackagedPrices(), declared), span)


def leave(document: FleetDocument, engine: Engine, now: datetime) -> None:
    """Leave every sum of a pass in the ledger, all of one moment. Raises AppError."""
    made = [one for span in Span for one in add_up(document, engine, span, now)]
    with ledgers.ledger_errors(document), writing(engine) as connection:
        write_sums(connection, ledgers.ledger_name(document), made)
