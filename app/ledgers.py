"""A fleet's ledger: its name in it, opening it, and its errors."""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Engine

from app.errors import AppError
from gpufleet.domain.model import fleet_name
from gpufleet.ledger.schema import LedgerError, explained, file_of, share_ledger, shown_url
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.document.ledger import REMEDY


def ledger_name(document: FleetDocument) -> str:
    """The fleet's name in the ledger."""
    return fleet_name(document.cloud, document.environment, document.region)


def open_ledger_of(document: FleetDocument) -> Engine:
    """The fleet's ledger, made where there is none. Raises AppError.

    One that a bucket's document names is opened only where no stranger can be given its password.
    """
    if (why := document.why_no_ledger) is not None:
        raise AppError(
            f"the fleet document of {document.environment}: its ledger_url {why}; {REMEDY}, then `pulumi up`"
        )
    return _opened(document.ledger_url)


def read_ledger_of(document: FleetDocument) -> Engine:
    """The fleet's ledger for who only reads. Raises AppError.

    Where its file is not on this machine an empty one stands in, until the process ends: one that reading made would
    be taken for the watchdogs' own by the next brake, and hold nobody.
    """
    if not_here(document) is None:
        return open_ledger_of(document)
    return _opened(f"sqlite:///{Path(_stand_in(document.ledger_url).name, 'ledger.db')}")


def present_ledger_of(document: FleetDocument) -> Engine:
    """The fleet's ledger, which must be there: a proof or a copy of none would pass for its own. Raises AppError."""
    if (said := not_here(document)) is not None:
        raise AppError(f"{said}: run this where the watchdogs run (the control host)")
    return open_ledger_of(document)


def not_here(document: FleetDocument) -> str | None:
    """Says that the fleet's ledger is a file, and not on this machine; None: it is here, or no file."""
    file = file_of(document.ledger_url)
    try:
        return None if file is None or file.exists() else f"the ledger {file} is not on this machine"
    except OSError:
        return None  # in a folder that this user may not see: whoever opens it is told


def _opened(url: str) -> Engine:
    try:
        return share_ledger(url)
    except LedgerError as error:
        raise AppError(str(error)) from error


@cache
def _stand_in(url: str) -> TemporaryDirectory[str]:
    """The folder of what stands in for the ledger of that URL. It goes with the process."""
    return TemporaryDirectory(prefix="gpufleet-ledger-")


@contextmanager
def ledger_errors(document: FleetDocument) -> Generator[None]:
    """A ledger that fails while it is used, in our words. Raises AppError."""
    try:
        with explained(shown_url(document.ledger_url)):
            yield
    except LedgerError as error:
        raise AppError(str(error)) from error
