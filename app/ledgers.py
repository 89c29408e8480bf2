"""A fleet's ledger: the fleet's name in it, opening it, and its errors."""

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
    """The fleet's ledger; it is created if it does not exist. Raises AppError.

    A ledger URL from a document in a bucket is opened only if it cannot send the ledger's password to an unknown
    host.
    """
    if (why := document.why_no_ledger) is not None:
        raise AppError(
            f"the fleet document of {document.environment}: its ledger_url {why}; {REMEDY}, then `pulumi up`"
        )
    return _opened(document.ledger_url)


def read_ledger_of(document: FleetDocument) -> Engine:
    """The fleet's ledger for a process that only reads. Raises AppError.

    If the ledger's file is not on this machine, an empty temporary one replaces it until the process ends. A file
    created by a read would look like the watchdogs' own ledger to the next brake, and that brake would stop no
    watchdog.
    """
    if not_here(document) is None:
        return open_ledger_of(document)
    return _opened(f"sqlite:///{Path(_temporary_folder(document.ledger_url).name, 'ledger.db')}")


def present_ledger_of(document: FleetDocument) -> Engine:
    """The fleet's ledger, which must exist: a verification or a copy of an empty one would be misleading. Raises
    AppError.
    """
    check_present(document)
    return open_ledger_of(document)


def check_present(document: FleetDocument) -> None:
    """Raise AppError if the fleet's ledger is a file that is not on this machine."""
    if (reason := not_here(document)) is not None:
        raise AppError(f"{reason}: run this where the watchdogs run (the control host)")


def not_here(document: FleetDocument) -> str | None:
    """A message if the fleet's ledger is a file that is not on this machine; None if it is here or is not a file."""
    file = file_of(document.ledger_url)
    try:
        return None if file is None or file.exists() else f"the ledger {file} is not on this machine"
    except OSError:
        return None  # it is in a folder that this user may not read: opening it reports that


def _opened(url: str) -> Engine:
    try:
        return share_ledger(url)
    except LedgerError as error:
        raise AppError(str(error)) from error


@cache
def _temporary_folder(url: str) -> TemporaryDirectory[str]:
    """The temporary folder of the ledger that replaces the one of that URL. It is deleted when the process ends."""
    return TemporaryDirectory(prefix="gpufleet-ledger-")


@contextmanager
def ledger_errors(document: FleetDocument) -> Generator[None]:
    """Converts errors of the ledger to AppError with an explanation."""
    try:
        with explained(shown_url(document.ledger_url)):
            yield
    except LedgerError as error:
        raise AppError(str(error)) from error
