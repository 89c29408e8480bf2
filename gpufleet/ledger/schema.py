"""Opens ledgers, and migrates their tables to the current schema before any use.

A migration is frozen once it is released. From schema 0006 on it only adds (tables, columns that may be NULL, indexes
that are not unique), so that the previous release can still use the ledger. A migration that does more raises
`OLDEST_READER`, and never above the schema of the previous release.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, SQLAlchemyError

from gpufleet import extras
from gpufleet.ledger.database import open_database, writing

HEAD: Final = "0015"
"""The newest migration in `migrations/versions`."""

OLDEST_READER: Final = "0006"
"""The oldest schema whose release can use a ledger of HEAD. Each migrated ledger records it."""

_LOCK: Final = 7_202_611_210
"""PostgreSQL advisory lock under which one process at a time changes the schema."""


_shared: Final[dict[str, Engine]] = {}
_sharing: Final = threading.Lock()


class LedgerError(Exception):
    """The ledger cannot be used. The message names the ledger, the reason and the remedy."""


def open_ledger(url: str) -> Engine:
    """Open the ledger at the URL, with every table. Raises LedgerError, which never contains the URL's password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise LedgerError(
            "the ledger's URL is not valid: write sqlite:////path/ledger.db or postgresql://…"
        ) from error
    shown = shown_url(url)
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise LedgerError(f"{shown}: a ledger is stored in SQLite (sqlite:////path) or PostgreSQL (postgresql://…)")
    if (file := file_of(url)) is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"{shown}: its folder cannot be created: {error.strerror or error}") from error
    try:
        engine = open_database(url)
    except ModuleNotFoundError as error:
        raise LedgerError(f"{shown}: {extras.missing('psycopg') or error}") from error
    except (ImportError, SQLAlchemyError, TypeError) as error:
        raise LedgerError(f"{shown}: {error}: write sqlite:////path/ledger.db or postgresql://…") from error
    return _at_head(engine, shown)


def file_of(url: str) -> Path | None:
    """The file of a SQLite ledger; None: it is in memory, or the URL is not valid (`open_ledger` reports that)."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    # "file:" starts a SQLite URI, which is not a path
    if parsed.get_backend_name() != "sqlite" or (parsed.database or ":memory:").startswith((":memory:", "file:")):
        return None
    return Path(parsed.database or "")


def shown_url(url: str) -> str:
    """A ledger's URL for messages: without its password, and without its options, because libpq reads a password
    there, too.
    """
    return make_url(url).set(query={}).render_as_string(hide_password=True)


def share_ledger(url: str) -> Engine:
    """As `open_ledger`, but with one engine per process for each PostgreSQL URL. Its few connections stay open
    between queries; separate engines would each leave a connection open until garbage collection.

    Disposing the engine closes only idle connections; other users continue. A SQLite ledger is opened each time: a
    shared engine would keep using a file that a restore has replaced.
    """
    with _sharing:
        known = _shared.get(url)
    if known is not None:
        return _at_head(known, shown_url(url))
    opened = open_ledger(url)
    if opened.dialect.name == "sqlite":
        return opened
    with _sharing:
        kept = _shared.setdefault(url, opened)
    if kept is not opened:
        opened.dispose()
    return kept


def _at_head(engine: Engine, shown: str) -> Engine:
    try:
        with explained(shown):
            with engine.connect() as connection:
                usable = _is_usable(connection, shown)
            if not usable:
                _migrate_to_head(engine, shown)
    except LedgerError:
        engine.dispose()
        raise
    return engine


@contextmanager
def explained(shown: str) -> Generator[None]:
    """Convert errors of the database to LedgerError, with a remedy where one is known."""
    try:
        yield
    except DatabaseError as error:
        raise LedgerError(f"{shown}: {_explained(str(error.orig))}") from error
    except SQLAlchemyError as error:
        raise LedgerError(f"{shown}: {error}") from error


def schema_version(engine: Engine) -> str | None:
    """The last migration of a ledger; None: it has no tables yet."""
    with engine.connect() as connection:
        return _version(connection)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("select version_num from alembic_version")).scalar_one_or_none()


def _oldest_reader(connection: Connection, version: str) -> str:
    """The oldest schema whose release can use a ledger of that version; without a record, the version itself."""
    if not inspect(connection).has_table("schema_reader"):
        return version
    statement = text("select oldest from schema_reader where version = :version")
    return connection.execute(statement, {"version": version}).scalar_one_or_none() or version


def _is_usable(connection: Connection, shown: str) -> bool:
    """Whether this release can use the ledger without migrations. Raises LedgerError if its schema is too new."""
    version = _version(connection)
    if version is None or version < HEAD:
        return False
    if version > HEAD and _oldest_reader(connection, version) > HEAD:
        raise LedgerError(
            f"{shown}: its schema {version} is newer than this gpufleet supports ({HEAD}): upgrade gpufleet"
        )
    return True


def _migrate_to_head(engine: Engine, shown: str) -> None:
    """Run the missing migrations in one transaction. One process at a time does this."""
    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"select pg_advisory_xact_lock({_LOCK})"))
        if _is_usable(connection, shown):  # another process did it meanwhile
            return
        migrate(connection, HEAD)
        columns = "version varchar(32) not null, oldest varchar(32) not null"
        connection.execute(text(f"create table if not exists schema_reader ({columns})"))
        connection.execute(text("delete from schema_reader"))
        reader = {"version": HEAD, "oldest": OLDEST_READER}
        connection.execute(text("insert into schema_reader values (:version, :oldest)"), reader)


def migrate(connection: Connection, to: str) -> None:
    """Run the missing migrations up to `to`, in the caller's transaction. Raises LedgerError."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, to)
    except CommandError as error:
        raise LedgerError(
            f"this gpufleet does not know the ledger's schema ({error}): upgrade gpufleet, or restore a backup"
        ) from error


def _explained(message: str) -> str:
    message = message.strip().splitlines()[0] if message.strip() else "unknown error of the database"
    hints = {
        "disk is full": "free space on its disk, then retry; the whole change was rolled back",
        "disk I/O error": "its disk may be full or failing: free space, or read the machine's log",
        "malformed": "restore a backup of the file, or import an export (`gpufleet ledger import`)",
        "not a database": "point ledger_url at a ledger, or move this file away",
        "readonly": "give this user write access to the file and its folder",
        "locked": "another process uses it; retry when that process has finished",
        "unable to open": "check that the folder exists and that this user may write there",
        "password authentication": "check user and password of ledger_url",
        "onnection refused": "start the database server, or check host and port of ledger_url",
        "onnection timeout": "check host and port of ledger_url, and that the network allows the connection",
    }
    hint = next((hint for word, hint in hints.items() if word in message), None)
    return f"{message}: {hint}" if hint else message
