"""A ledger that the code of release 0.1 wrote, with rows in every table, is opened without loss."""

import sqlite3
from collections.abc import Callable
from typing import Any

from sqlalchemy import Boolean, Connection, Integer, MetaData, Table, insert, select, text

from gpufleet.ledger.database import open_database, writing
from gpufleet.ledger.decisions import unfinished
from gpufleet.ledger.invariants import verify
from gpufleet.ledger.operations import brakes, targets
from gpufleet.ledger.schema import HEAD, schema_version
from gpufleet.toolchain.folders import ROOT
from tests.fixtures.ledgers import Ledgers
from tests.fixtures.small_fleet import FLEET, T0

RECORDED = ROOT / "tests" / "recorded" / "release-0.1" / "ledger.sql"
POSTGRESQL = ROOT / "tests" / "data" / "ledgers" / "postgresql.sql"
CONVERTED = {
    "decisions": {"reason"},
    "decision_heads": {"reason"},
    "outcomes": {"reason", "kind"},
    "intents": {"decision"},
}
"""Columns in which schema 0006 replaces a sentence with a code."""

Rows = list[dict[str, Any]]


def recorded() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.executescript(RECORDED.read_text("utf-8"))
    connection.row_factory = sqlite3.Row
    return connection


def tables_of(connection: sqlite3.Connection) -> dict[str, Rows]:
    names = connection.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite_%'")
    return {
        name: [dict(row) for row in connection.execute(f"select * from {name}")]  # noqa: S608 - names of our own
        for (name,) in names.fetchall()
        if name != "alembic_version"
    }


def write(url: str, rows: dict[str, Rows]) -> None:
    """Write the recorded ledger to this address, in SQLite or PostgreSQL."""
    engine = open_database(url)
    if engine.dialect.name == "sqlite":
        engine.dispose()
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.executescript(RECORDED.read_text("utf-8"))
        connection.close()
        return
    with writing(engine) as connection:
        for line in POSTGRESQL.read_text("utf-8").splitlines():
            if line.startswith("-- 0") and line[3:] > "0005":
                break
            if not line.startswith("--"):
                connection.exec_driver_sql(line)
        connection.execute(text("insert into alembic_version values ('0005')"))
        for name, found in rows.items():
            _copy(connection, Table(name, MetaData(), autoload_with=connection), found)
    engine.dispose()


def _copy(connection: Connection, table: Table, rows: Rows) -> None:
    """The database numbers rows itself, so that the next row continues."""
    numbered = {one.name for one in table.primary_key if one.name == "id" and isinstance(one.type, Integer)}
    booleans = {one.name for one in table.columns if isinstance(one.type, Boolean)}
    for row in sorted(rows, key=lambda row: row.get("id", 0)):
        values = {key: bool(value) if key in booleans else value for key, value in row.items() if key not in numbered}
        connection.execute(insert(table).values(values))


def test_every_table_of_release_0_1_has_a_recorded_row() -> None:
    rows = tables_of(recorded())
    assert len(rows) == 23
    assert all(rows.values())


def test_ledger_of_release_0_1_is_opened_and_nothing_is_lost(
    new_database: Callable[[], str], ledgers: Ledgers
) -> None:
    before = tables_of(recorded())
    url = new_database()
    write(url, before)
    engine = ledgers.open(url)
    assert schema_version(engine) == HEAD
    with engine.connect() as connection:
        for name, rows in before.items():
            table = Table(name, MetaData(), autoload_with=connection)
            kept = [one for one in rows[0] if one not in CONVERTED.get(name, ())]
            after = [dict(row) for row in connection.execute(select(*(table.c[one] for one in kept))).mappings()]
            expected = [{key: row[key] for key in kept} for row in rows]
            assert sorted(map(repr, map(_plain, after))) == sorted(map(repr, map(_plain, expected))), name
        assert list(verify(connection)) == []
        usd = connection.execute(text("select usd from cost_sums where pool = ''")).scalar_one()
        assert str(usd) == "8.640000000000000001"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {key: int(value) if isinstance(value, bool) else value for key, value in row.items()}


def test_sentences_of_release_0_1_become_codes_and_brakes_still_hold(
    new_database: Callable[[], str], ledgers: Ledgers
) -> None:
    url = new_database()
    write(url, tables_of(recorded()))
    engine = ledgers.open(url)
    with engine.connect() as connection:
        reasons = set(connection.execute(text("select reason from decisions")).scalars())
    assert reasons == {"still_idle", "serving", "no_spot"}
    (begun,) = unfinished(engine, FLEET, "spot")
    assert (begun.resource, begun.reason) == ("chat-spot-us-east-1a", "no_spot")
    assert [(one.kind, one.owner) for one in brakes(engine, FLEET, T0)] == [("pause", "ann")]
    assert [(one.pool, one.value, one.version) for one in targets(engine, FLEET)] == [("chat", 2, 2)]
