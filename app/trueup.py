"""A bill compared with the ledger."""

from decimal import Decimal
from fractions import Fraction
from typing import Final

from app.declared import declared_of
from app.ledgers import ledger_errors, ledger_name, open_ledger_of
from app.reports import query_of
from app.windows import Window
from costs.bills import Bill
from costs.declarations import closing_prices, content_of
from costs.trueup import TrueUp, true_up
from gpufleet.settings.document import FleetDocument
from ledger.database import writing
from ledger.declared import declarations, note_declared
from ledger.finals import Confirmed, add_final

_NANO: Final = Decimal("1e-9")


def compare(document: FleetDocument, bill: Bill, window: Window) -> TrueUp:
    """Compare a bill with the ledger and close the window: the prices that it was computed with hold from now on, as
    what was declared then does. Raises AppError.
    """
    engine = open_ledger_of(document)
    with ledger_errors(document):
        query = query_of(document, engine)
        query.read([(window.since, window.until)])
        known = query.known(window.since, window.until)
        compared = true_up(bill, known.facts, known.book, window.since, window.until)
        with writing(engine) as connection:
            if not declarations(connection, ledger_name(document)):
                # no pass has written any: what it was computed with holds for the closed span, too
                note_declared(connection, ledger_name(document), window.now, content_of(declared_of(document)))
            eras = known.facts.over_time(known.book)
            add_final(
                connection,
                Confirmed(
                    fleet=ledger_name(document),
                    since=compared.since,
                    until=compared.until,
                    digest=bill.digest,
                    form=bill.form.value,
                    billed_usd=decimal_of(compared.billed),
                    computed_usd=decimal_of(compared.computed),
                    at=window.now,
                    prices=closing_prices(eras, compared.since, compared.until),
                ),
            )
    return compared


def decimal_of(value: Fraction) -> Decimal:
    """An amount in USD, to the nano-dollar."""
    return (Decimal(value.numerator) / Decimal(value.denominator)).quantize(_NANO)
