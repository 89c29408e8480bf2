"""What every command about money needs: a fleet's name in its ledger, the ledger, the prices that are stated."""

from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy import Engine

from cli.output import UserError
from fleet.document import FleetDocument
from ledger.operations import fleet_name
from ledger.schema import LedgerError, explained, share_ledger, shown_url
from prices.book import Override, parse_as_of


def ledger_name(document: FleetDocument) -> str:
    """The fleet's name in the ledger."""
    return fleet_name(document.cloud, document.environment, document.region)


def open_ledger_of(document: FleetDocument) -> Engine:
    """The fleet's ledger. Raises UserError."""
    try:
        return share_ledger(document.ledger_url)
    except LedgerError as error:
        raise UserError(str(error)) from error


@contextmanager
def ledger_errors(document: FleetDocument) -> Generator[None]:
    """A ledger that fails while it is used, in our words. Raises UserError."""
    try:
        with explained(shown_url(document.ledger_url)):
            yield
    except LedgerError as error:
        raise UserError(str(error)) from error


def overrides_of(document: FleetDocument) -> list[Override]:
    """The prices that the document states. Raises UserError that names a bad date."""
    try:
        return [
            Override(
                sku=entry.sku,
                usd_per_hour=entry.usd_per_hour,
                source=entry.source,
                as_of=parse_as_of(entry.as_of),
                unverified=entry.unverified,
            )
            for entry in document.prices.overrides
        ]
    except ValueError as error:
        raise UserError(f"{document.environment}: prices.overrides: {error}") from error
