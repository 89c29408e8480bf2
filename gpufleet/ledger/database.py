"""The database behind the ledger: SQLite by default, PostgreSQL by URL."""

import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, Table, create_engine, event
from sqlalchemy.engine import make_url

from gpufleet.logs import hide

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

BUSY_TIMEOUT_MS: Final = 30_000
_SWITCH_S: Final = 5.0
_OVER_A_NETWORK: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 4,
    "tcp_user_timeout": 60_000,
}
"""libpq's words: seconds, but for the last one's milliseconds. What the URL says of these wins.

Without them a server whose machine or network is gone is waited for as long as the kernel likes: hours.
"""
_NO_PASSWORD_SHOWN: Final = {"require_auth": "scram-sha-256,none"}
"""libpq: log in by proving to know the password, never by sending it or a hash of it, whatever a server asks for.
`PGREQUIREAUTH` of the process says otherwise, as for RDS's tokens (`password`)."""


def open_database(url: str) -> Engine:
    """An engine for `sqlite:////path` or `postgresql://…`.

    SQLite runs in WAL mode with a busy timeout, so that a report reads while a watchdog writes, and begins
    write transactions at once (`BEGIN IMMEDIATE` through `writing`), so that two writers wait instead of failing.
    A PostgreSQL that was started again is asked over new connections; one that is gone is given up within a minute.
    """
    parsed = make_url(url)
    if parsed.password:
        hide(parsed.password)
    if parsed.get_backend_name() == "postgresql":
        ours = _OVER_A_NETWORK | ({} if "PGREQUIREAUTH" in os.environ else _NO_PASSWORD_SHOWN)
        given = {word: value for word, value in ours.items() if word not in parsed.query}
        return create_engine(parsed.set(drivername="postgresql+psycopg"), connect_args=given, pool_pre_ping=True)
    engine = create_engine(parsed)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


@contextmanager
def writing(engine: Engine) -> Generator[Connection]:
    """A transaction that will write."""
    with engine.connect().execution_options(ledger_writes=True) as connection, connection.begin():
        yield connection


def insert_into(connection: Connection, table: Table) -> "postgresql.Insert | sqlite.Insert":
    """An insert that may say what becomes of a row that is there already."""
    # the other database's words are not read: few processes know both
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy then emits BEGIN itself: see _begin_sqlite
    cursor = connection.cursor()
    _switch_to_wal(cursor)
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _switch_to_wal(cursor: Any) -> None:
    """SQLite refuses at once, whatever its busy timeout, while another connection switches the same new file."""
    until = time.monotonic() + _SWITCH_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("ledger_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
