"""Brings a ledger's tables to date before anybody uses it."""

from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError

from ledger import facts, outbox
from ledger.database import METADATA, open_database

_DECLARING = (facts, outbox)  # tables exist in METADATA once the files that declare them are imported


class LedgerError(Exception):
    """The ledger cannot be used; the message says which one, why and what to do."""


def open_ledger(url: str) -> Engine:
    """The ledger of that URL with every table in place. Raises LedgerError (the URL's password is never shown)."""
    parsed = make_url(url)
    shown = parsed.render_as_string(hide_password=True)
    if parsed.get_backend_name() == "sqlite" and parsed.database and parsed.database != ":memory:":
        try:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"{shown}: its folder cannot be made: {error.strerror or error}") from error
    engine = open_database(url)
    try:
        METADATA.create_all(engine)
    except DatabaseError as error:
        raise LedgerError(f"{shown}: {error.orig}") from error
    return engine
