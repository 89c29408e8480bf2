"""Compares a bill with the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from sqlalchemy import Connection

from app.errors import AppError
from app.ledgers import ledger_errors, ledger_name, open_ledger_of
from app.price_inputs import declared_of
from app.reports import query_of, scope_of
from app.windows import Window
from gpufleet.costs.bills import Bill
from gpufleet.costs.closing import content_of as closing_content
from gpufleet.costs.declarations import closing_prices, content_of
from gpufleet.costs.trueup import TrueUp, true_up
from gpufleet.ledger.closed_periods import BillConfirmation, add_closed_period, closed_spans
from gpufleet.ledger.database import writing
from gpufleet.ledger.declared import declarations, note_declared
from gpufleet.ledger.teams import Interval
from gpufleet.settings.document import FleetDocument

_NANO: Final = Decimal("1e-9")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """A bill compared with the ledger."""

    compared: TrueUp
    closed_by: BillConfirmation | None = None
    """The bill that closed the window earlier; None: this bill closes it."""
    is_refused: bool = False
    """Whether another bill closed the window, so nothing was written."""
    would_change: Sequence[str] = ()
    """What would change in a window that is closed already."""


def reconcile(document: FleetDocument, bill: Bill, window: Window) -> Reconciled:
    """Compare a bill with the ledger and close the window: its prices and facts stay fixed afterwards.

    A window that is already closed stays unchanged. Raises AppError, also when only a part of the window is closed.
    """
    engine = open_ledger_of(document)
    with ledger_errors(document):
        query = query_of(document, engine)
        query.read([(window.since, window.until)])
        before = query.closed(window.since, window.until)
        if before and not (before[0].since <= window.since and window.until <= before[0].until):
            spans = ", ".join(f"{one.since:%Y-%m-%dT%H:%MZ} to {one.until:%Y-%m-%dT%H:%MZ}" for one in before)
            raise AppError(f"a part of this span is closed ({spans}): select another span with --since and --until")
        known = query.known(window.since, window.until)
        compared = true_up(bill, known.facts, known.book, window.since, window.until)
        if before:
            report = query.report(scope_of(document, window, True))
            refused = before[0].digest != bill.digest
            return Reconciled(
                compared=compared, closed_by=before[0], is_refused=refused, would_change=report.would_change
            )
        if window.until > window.now:
            raise AppError(
                f"--until ({window.until:%Y-%m-%dT%H:%MZ}) is in the future: only a past span can be closed"
            )
        closing = query.closing(window.since, window.until, window.now)
        with writing(engine) as connection:
            if any(since < window.until and window.since < until for since, until in _closed(connection, document)):
                raise AppError("another process closed this span in the meantime: run this again")
            if not declarations(connection, ledger_name(document)):
                # no pass has written any: the declared costs of this computation apply to the closed span, too
                note_declared(connection, ledger_name(document), window.now, content_of(declared_of(document)))
            periods = known.facts.over_time(known.book)
            add_closed_period(
                connection,
                BillConfirmation(
                    fleet=ledger_name(document),
                    since=compared.since,
                    until=compared.until,
                    digest=bill.digest,
                    form=bill.form.value,
                    billed_usd=decimal_of(compared.billed),
                    computed_usd=decimal_of(compared.computed),
                    at=window.now,
                    prices=closing_prices(periods, compared.since, compared.until),
                    facts=closing_content(closing),
                ),
            )
    return Reconciled(compared=compared)


def _closed(connection: Connection, document: FleetDocument) -> list[Interval]:
    return closed_spans(connection, ledger_name(document))


def decimal_of(value: Fraction) -> Decimal:
    """An amount in USD, to the nano-dollar."""
    return (Decimal(value.numerator) / Decimal(value.denominator)).quantize(_NANO)
