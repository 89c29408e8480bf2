"""Ledgers of every schema version: migrated without loss, and usable by the previous release."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from sqlalchemy import Connection, Engine, inspect, select, text

from gpufleet import ledger
from gpufleet.domain.activity import Activity, ActivityKind, GroupActivities
from gpufleet.domain.boots import Boot
from gpufleet.domain.model import Cloud
from gpufleet.ledger import outbox
from gpufleet.ledger.activities import note_activities, read_activities
from gpufleet.ledger.boots import note_boots, read_boots
from gpufleet.ledger.closed_periods import BillConfirmation, add_closed_period, closed_periods
from gpufleet.ledger.database import open_database, writing
from gpufleet.ledger.declared import declarations, note_declared
from gpufleet.ledger.facts import NOT_MISSED, Reservation
from gpufleet.ledger.invariants import verify
from gpufleet.ledger.notified_hours import add_notified_hour, last_notified_hour
from gpufleet.ledger.reservations import note_reservations, reservations
from gpufleet.ledger.schema import HEAD, OLDEST_READER, LedgerError, migrate, open_ledger, schema_version
from gpufleet.ledger.sums import CostSum, Span, read_sums, write_sums
from gpufleet.ledger.tables import METADATA
from gpufleet.ledger.transfer import named
from gpufleet.toolchain.folders import ROOT
from tests.fixtures.ledgers import Ledgers
from tests.fixtures.small_fleet import FLEET, fill

NOW = datetime(2026, 11, 21, 8, 0, 0, 123456, tzinfo=UTC)
RECORDED = ROOT / "tests" / "data" / "ledgers"
VERSIONS = Path(ledger.__path__[0]) / "migrations" / "versions"

RELEASED = {
    "0.1": {
        "v0001_first_tables.py": "eb3ce4d37d3561aa7e9f3865478451821c8ce5a6b76ef73cdf7916442d8682cc",
        "v0002_finals.py": "855081a5a76ecc4f57d8a829e9da2d5069c6dfaa99a1224001361a3a2924ca74",
        "v0003_teams.py": "3cd1e9d807903a974974b1e63cbee5a5b417b08c258fa8109a893083792c5ef4",
        "v0004_told.py": "aef354dc48539b375d09a7f6f7392c45768c5a7e9de7e5b55caf952a37c48c37",
        "v0005_sums.py": "2801672c00ed3c883690d8ed230c42d8960d0785c5cfc42f91f013689325b1df",
    },
    "0.2": {
        "v0006_codes.py": "7143210b034352f44b933da244d54c611ca28880c431800f17258ce46f82391e",
        "v0007_boots.py": "ae6731b3ef8b653407009ec5413934866ce06d656c6a3fcfef07db068838ae16",
        "v0008_declared.py": "e1b6906d3b8ca4d3064aac952c23b018d2592fdd4ef8a7e7d30b83b4b92f2567",
        "v0009_closed_facts.py": "2c989005ec4ae648ba740e22c00f597602cc155c56c6d88c2eb548d130b62774",
        "v0010_group_activities.py": "fe3ee17bbe696b7bffcab02859fe89b4db114d19048c4817ceadd85c1f247931",
        "v0011_accounts.py": "1688a32d49a3fd1f84d483a778db50f3f8aca4b7b52af36329bb222ecad23e1f",
        "v0012_last_lists.py": "405a0d6bee204182b360b526208ed14e64b77657028ec496003c71af2baf22c9",
        "v0013_paid_capacity_read.py": "14d6d53dbad23d584c2e443dad19aed9f2fa7c99692657dd21a49d2a6cf5344f",
        "v0014_energy.py": "ed85e1513c6abac7da9430176c27c41c27d77ca39162639e1c39b4a92920acc3",
        "v0015_unit_hours.py": "bb83d0c8781fa1448a6b2443f5203c79c81f1ec4899da061412efc22c17ae354",
    },
}
"""Release to the SHA-256 of each migration that is new in it."""

Schema: TypeAlias = dict[str, dict[str, Any]]


def made(connection: Connection, version: str) -> None:
    """Create the tables of a schema as the code of that schema created them."""
    for line in (RECORDED / f"{connection.dialect.name}.sql").read_text("utf-8").splitlines():
        if line.startswith("-- 0") and line[3:] > version:
            break
        if not line.startswith("--"):
            connection.exec_driver_sql(line)
    connection.execute(text("insert into alembic_version values (:version)"), {"version": version})


def filled(connection: Connection, tables: set[str] | None = None) -> set[str]:
    """Write the recorded rows of these tables, or of every existing table. Returns the names of the tables."""
    there = tables or set(inspect(connection).get_table_names())
    lines = (RECORDED / "rows.sql").read_text("utf-8").splitlines()
    inserts = [line for line in lines if line.startswith("INSERT") and line.split()[2] in there]
    for insert in inserts:
        connection.exec_driver_sql(insert)
    return {insert.split()[2] for insert in inserts}


def schema(connection: Connection) -> Schema:
    """Everything that distinguishes one schema from another, table by table."""
    found = inspect(connection)
    return {
        table: {
            "columns": {
                column["name"]: {**column, "type": str(column["type"])} for column in found.get_columns(table)
            },
            "key": found.get_pk_constraint(table),
            "unique": found.get_unique_constraints(table),
            "indexes": {index["name"]: index for index in found.get_indexes(table)},
            "options": _options(connection, table),
        }
        for table in found.get_table_names()
        if table not in ("alembic_version", "schema_reader")
    }


def _options(connection: Connection, table: str) -> tuple[bool, ...]:
    """SQLite only: whether the table has no row id of its own, and whether it never reuses a number."""
    if connection.dialect.name != "sqlite":
        return ()
    sql = connection.execute(text("select sql from sqlite_master where name = :name"), {"name": table}).scalar_one()
    return tuple(option in sql.lower() for option in ("without rowid", "autoincrement"))


def contents(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """Table name to rows."""
    return {
        table.name: [named(row) for row in connection.execute(select(table).order_by(*table.primary_key))]
        for table in METADATA.sorted_tables
    }


@pytest.mark.parametrize("version", ["0001", "0002", "0003", "0004", "0005"])
def test_ledger_of_release_0_1_is_migrated(new_database: Callable[[], str], ledgers: Ledgers, version: str) -> None:
    url = new_database()
    old = open_database(url)
    with writing(old) as connection:
        made(connection, version)
        tables = filled(connection)
    old.dispose()
    engine = ledgers.open(url)
    assert schema_version(engine) == HEAD
    new = ledgers.open(new_database())
    with writing(new) as connection:
        filled(connection, tables)
        for statement in CODED:
            connection.exec_driver_sql(statement)
    with engine.connect() as brought, new.connect() as fresh:
        assert schema(brought) == schema(fresh)
        assert contents(brought) == contents(fresh)
        assert list(verify(brought)) == []
    check_that_rows_can_be_added(engine)
    assert [message.id for message in outbox.messages(engine)] == [1, 2]


CODED = (
    "update decisions set reason = 'still_idle' where resource = 'i-idle'",
    "update decisions set reason = 'no_spot' where resource = 'chat-spot-us-east-1a'",
    "update decisions set reason = 'serving' where resource = 'i-fallback'",
    "update decision_heads set reason = 'still_idle' where resource = 'i-idle'",
    "update decision_heads set reason = 'no_spot' where resource = 'chat-spot-us-east-1a'",
    "update decision_heads set reason = 'serving' where resource = 'i-fallback'",
    "update outcomes set reason = 'no_spot' where resource = 'chat-spot-us-east-1a'",
    "update outcomes set reason = 'warming_up', kind = 'no_longer_true' where resource = 'i-young'",
    "update intents set decision = replace(decision, '\"no spot to be had\"', '\"no_spot\"')",
    "update passes set priced = case at when 1795118400000000 then 0 else 1 end",
)
"""The columns that differ between the recorded rows of release 0.1, with sentences, and those with codes."""


def check_that_rows_can_be_added(engine: Engine) -> None:
    """Check that newer tables can be written, and that new row numbers continue after the old ones."""
    with writing(engine) as connection:
        add_closed_period(connection, bill())
        add_notified_hour(connection, FLEET, NOW)
        write_sums(connection, FLEET, [day()])
        assert outbox.enqueue(connection, outbox.Message(key="next", channel="#c", text="t"), NOW)
        note_reservations(connection, [reservation()])
        note_declared(connection, FLEET, NOW, "{}")
    note_boots(engine, FLEET, [boot()], NOW)
    assert boot() in read_boots(engine, FLEET)
    note_activities(engine, FLEET, [happened()], NOW)
    assert happened() in read_activities(engine, FLEET, NOW)
    with engine.connect() as connection:
        assert bill() in closed_periods(connection, FLEET, NOW - timedelta(days=1), NOW)
        assert last_notified_hour(connection, FLEET) == NOW
        assert read_sums(connection, FLEET) == [day()]
        assert declarations(connection, FLEET) == [(NOW, "{}")]
        assert replace(reservation(), missed_at=NOT_MISSED) in reservations(
            connection, FLEET, NOW - timedelta(days=1), NOW
        )


def reservation() -> Reservation:
    return Reservation(
        cloud=Cloud.GCP, reservation="shared", started_at=NOW - timedelta(hours=1), instances=4, environment=FLEET,
        region="us-central1", zone="us-central1-a", machine_type="g2-standard-4", last_seen_at=NOW, pool="chat",
        elsewhere=2, seats=2,
    )  # fmt: skip


def day() -> CostSum:
    return CostSum(
        span=Span.TODAY, pool=None, since=NOW - timedelta(hours=9), known_until=NOW, usd=Decimal("1583952.868800001"),
        idle_usd=Decimal(0), input_usd=None, output_usd=None, blended_usd=None, unpriced=0,
    )  # fmt: skip


def boot() -> Boot:
    return Boot(
        instance_id="i-1", pool="chat", group="chat-spot-a", machine_type="g6.xlarge", launched_at=NOW,
        first_seen_at=NOW, last_seen_at=NOW, ready_at=NOW, left_at=NOW, ended_why=ActivityKind("of_a_newer_release"),
    )  # fmt: skip


def happened() -> GroupActivities:
    refused = Activity(
        id="a" * 256, group="chat-spot-a", kind=ActivityKind("of_a_newer_release"), at=NOW, instance_id="i-1",
        detail="no", zones_available=("us-east-1b",), account_wide=True,
    )  # fmt: skip
    return GroupActivities(
        group="chat-spot-a", desired=2, members=frozenset({"i-1"}), leaving=frozenset(), read_at=NOW, silent_at=NOW,
        events=(refused,),
    )  # fmt: skip


def bill() -> BillConfirmation:
    return BillConfirmation(
        fleet=FLEET, since=NOW - timedelta(hours=1), until=NOW, digest="d", form="FOCUS",
        billed_usd=Decimal("1.23"), computed_usd=Decimal("1.230000000000000001"), at=NOW, prices="[]", facts="{}",
    )  # fmt: skip


def test_later_tables_in_an_old_ledger_stay(new_database: Callable[[], str], ledgers: Ledgers) -> None:
    """The code of schema 0001 created every table that its release declared."""
    found: list[dict[str, list[dict[str, Any]]]] = []
    for recorded in ("0005", "0001"):
        url = new_database()
        old = open_database(url)
        with writing(old) as connection:
            made(connection, "0005")
            filled(connection)
            connection.execute(text("update alembic_version set version_num = :recorded"), {"recorded": recorded})
        old.dispose()
        with ledgers.open(url).connect() as connection:
            found.append(contents(connection))
    assert found[0] == found[1]


def test_migrations_create_the_tables_that_the_code_declares(
    new_database: Callable[[], str], ledgers: Ledgers
) -> None:
    declared = open_database(new_database())
    METADATA.create_all(declared)
    with ledgers.open(new_database()).connect() as migrated, declared.connect() as fresh:
        assert schema(migrated) == schema(fresh)
    declared.dispose()


def test_released_migrations_never_change() -> None:
    released = {name: digest for files in RELEASED.values() for name, digest in files.items()}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(VERSIONS.glob("v*.py"))}
    assert {name: digest for name, digest in found.items() if name in released} == released
    assert max(found)[1:5] == HEAD
    unreleased = set(found) - set(released)
    assert all(name > max(released) for name in unreleased), "a new migration comes after those that were released"


# the previous release reads and writes what the next one wrote


def breaks(before: Schema, after: Schema) -> list[str]:
    """The changes in `after` that break a release which knows only `before`."""
    found = [f"{table} is removed" for table in before.keys() - after.keys()]
    for table in before.keys() & after.keys():
        old, new = before[table], after[table]
        for name, column in old["columns"].items():
            if new["columns"].get(name) != column:
                found.append(f"{table}.{name} is removed or changed")
        added = new["columns"].keys() - old["columns"].keys()
        found += [f"{table}.{name} must be filled" for name in added if not new["columns"][name]["nullable"]]
        found += [f"{table}: its {what} changed" for what in ("key", "unique", "options") if old[what] != new[what]]
        for name, index in new["indexes"].items():
            if index["unique"] and old["indexes"].get(name) != index:
                found.append(f"{table}: {name} refuses rows")
    return sorted(found)


def test_migrations_only_add_unless_they_declare_a_break(url: str) -> None:
    assert OLDEST_READER <= HEAD
    last = max(version for files in RELEASED.values() for version in files)[1:5]
    if len(RELEASED) > 1:  # a return to 0.1 restores the backup copy
        assert last >= OLDEST_READER, "the release before could not use the ledger any more"
    engine = open_database(url)
    with writing(engine) as connection:
        migrate(connection, OLDEST_READER)
        before = schema(connection)
        migrate(connection, HEAD)
        assert breaks(before, schema(connection)) == []
    engine.dispose()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("drop table told_hours", ["told_hours is removed"]),
        ("alter table runs drop column owner", ["runs.owner is removed or changed"]),
        ("alter table outcomes rename column error to fault", ["outcomes.error is removed or changed"]),
        ("alter table runs add column rack varchar(8) not null default ''", ["runs.rack must be filled"]),
        ("create unique index one_end on run_ends (instance_id)", ["run_ends: one_end refuses rows"]),
        ("alter table runs add column rack varchar(8)", []),
        ("create index by_pool on runs (pool)", []),
        ("create table racks (name varchar(8) not null)", []),
    ],
)
def test_changes_that_break_the_previous_release_are_named(
    tmp_path: Path, statement: str, expected: list[str]
) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    with writing(engine) as connection:
        before = schema(connection)
        connection.exec_driver_sql(statement)
        assert breaks(before, schema(connection)) == expected
    engine.dispose()


def next_release(connection: Connection, oldest: str | None) -> None:
    """Turn the ledger into one of a later schema, usable by release `oldest` and later ones."""
    for statement in (
        "alter table runs add column rack varchar(8)",
        "alter table outcomes add column code varchar(64)",
        "alter table token_readings add column images bigint",
        "create table racks (name varchar(8) not null primary key)",
        "insert into racks values ('r1')",
        "update alembic_version set version_num = '9999'",
        "delete from schema_reader",
    ):
        connection.execute(text(statement))
    if oldest is not None:
        connection.execute(text("insert into schema_reader values ('9999', :oldest)"), {"oldest": oldest})


def test_ledger_of_the_next_release_is_read_and_written(new_database: Callable[[], str], ledgers: Ledgers) -> None:
    url = new_database()
    with writing(ledgers.open(url)) as connection:
        next_release(connection, HEAD)
    engine = ledgers.open(url)
    assert schema_version(engine) == "9999"
    fill(engine)
    with engine.connect() as connection:
        assert list(verify(connection)) == []
        assert connection.execute(text("select name from racks")).scalar_one() == "r1"
    check_that_rows_can_be_added(engine)


@pytest.mark.parametrize("oldest", [None, "9998"])
def test_ledger_that_only_later_releases_may_use_is_not_changed(
    url: str, ledgers: Ledgers, oldest: str | None
) -> None:
    with writing(ledgers.open(url)) as connection:
        next_release(connection, oldest)
    with pytest.raises(LedgerError, match="newer than this gpufleet supports.*upgrade gpufleet"):
        ledgers.open(url)
