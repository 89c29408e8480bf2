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
_NETWORK_OPTIONS: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 4,
    "tcp_user_timeout": 60_000,
}
"""libpq's options: in seconds, except the last one, which is in milliseconds. Options in the URL take precedence.

Without them, a connection to a server whose machine or network is lost blocks until the kernel gives up: hours.
"""
_NEVER_SEND_PASSWORD: Final = {"require_auth": "scram-sha-256,none"}
"""libpq: authenticate with SCRAM, which never sends the password or a hash of it, whatever the server requests.
The environment variable `PGREQUIREAUTH` overrides this, for example for RDS's tokens (`password`)."""


def open_database(url: str) -> Engine:
    """An engine for `sqlite:////path` or `postgresql://…`.

    SQLite runs in WAL mode with a busy timeout, so that a report reads while a watchdog writes, and begins
    write transactions at once (`BEGIN IMMEDIATE` through `writing`), so that two writers wait instead of failing.
    After a restart of PostgreSQL, new connections are opened. An unreachable server is an error within a minute.
    """
    parsed = make_url(url)
    if parsed.password:
        hide(parsed.password)
    if parsed.get_backend_name() == "postgresql":
        ours = _NETWORK_OPTIONS | ({} if "PGREQUIREAUTH" in os.environ else _NEVER_SEND_PASSWORD)
        given = {option: value for option, value in ours.items() if option not in parsed.query}
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
    """An insert that supports `on_conflict_do_…`."""
    # import only the dialect in use: few processes need both
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
    """Retry: SQLite ignores its busy timeout while another connection switches the same new file to WAL mode."""
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
