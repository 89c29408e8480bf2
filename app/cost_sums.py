"""The cost sums that screens show. Each pass of the cost watchdog stores them in the ledger.

A screen computes them itself only if no pass has stored them.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from app.ledgers import ledger_errors, ledger_name
from app.reports import query_of, scope_of
from app.windows import Window
from gpufleet.costs.sums import sums
from gpufleet.ledger.database import writing
from gpufleet.ledger.sums import CostSum, Span, write_sums
from gpufleet.settings.document import FleetDocument

_HOUR: Final = timedelta(hours=1)


def _midnight(now: datetime) -> datetime:
    """The start of the UTC day of that moment."""
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def compute_sums(document: FleetDocument, engine: Engine, spans: Iterable[Span], now: datetime) -> list[CostSum]:
    """Sums of the spans that end now, as `gpufleet report cost` shows them.

    Each sum counts its charges without a price. Raises AppError.
    """
    windows = {
        span: Window(since=_midnight(now) if span is Span.TODAY else now - _HOUR, until=now, now=now, timezone="UTC")
        for span in spans
    }
    with ledger_errors(document):
        query = query_of(document, engine)
        query.read([(window.since, window.until) for window in windows.values()])
        return [
            one
            for span, window in windows.items()
            for one in sums(query.report(scope_of(document, window, True), with_energy=False), span)
        ]


def store_sums(document: FleetDocument, engine: Engine, now: datetime) -> None:
    """Store every sum of a pass in the ledger, all with the same time. Raises AppError."""
    made = compute_sums(document, engine, Span, now)
    with ledger_errors(document), writing(engine) as connection:
        write_sums(connection, ledger_name(document), made)
