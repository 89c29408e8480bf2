"""The activity of slices in the ledger: merged, exported, verified, and added to an older ledger."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect, text

from gpufleet.ledger.database import open_database, writing
from gpufleet.ledger.invariants import verify
from gpufleet.ledger.schema import HEAD, migrate, open_ledger, schema_version
from gpufleet.ledger.transfer import export, import_rows
from gpufleet.ledger.units import Sighting, UnitHour, add_unit_hours, sightings, unit_hours
from tests.fixtures.ledgers import Ledgers

HOUR = datetime(2026, 11, 21, 8, tzinfo=UTC)
FLEET = "aws/test/us-east-1"


def unit(instance: str = "i-1", hour: datetime = HOUR, **more: object) -> UnitHour:
    bits = {"seen": 0b1111, "busy": 0b0001, "idle": 0b0110, "engine_busy": 0b0001, "engine_idle": 0b0010}
    fields: dict[str, object] = {
        "environment": FLEET, "instance_id": instance, "hour": hour, "device": "GPU-1", "slice": "7",
        "tenant": "team-a/pod-1", "engine": "", "model": "", "profile": "1g.10gb",
    }  # fmt: skip
    return UnitHour(**(fields | bits | more))  # pyright: ignore[reportArgumentType]


def stored(engine: Engine, since: datetime = HOUR, until: datetime = HOUR + timedelta(hours=9)) -> list[UnitHour]:
    with engine.connect() as connection:
        return list(unit_hours(connection, FLEET, since, until))


def test_slots_are_added_and_busy_wins(url: str, ledgers: Ledgers) -> None:
    engine = ledgers.open(url)
    later = unit(seen=0b110000, busy=0b000100, idle=0b100000, engine_busy=0b10, engine_idle=0)
    for _ in range(2):
        with writing(engine) as connection:
            add_unit_hours(connection, [unit(), unit(), later])
    expected = unit(seen=0b111111, busy=0b000101, idle=0b100010, engine_busy=0b11, engine_idle=0)
    assert stored(engine) == [expected]


def test_rows_are_read_by_hour_and_instance(url: str, ledgers: Ledgers) -> None:
    """Two profiles of one instance number, two users and two engines are rows of their own."""
    engine = ledgers.open(url)
    rows = [
        unit("i-2"),
        unit("i-1", HOUR + timedelta(hours=1)),
        unit(profile="2g.20gb"),
        unit(tenant=""),
        unit(engine="8000/0", model="m"),
        unit("i-3", HOUR - timedelta(hours=1)),
    ]
    with writing(engine) as connection:
        add_unit_hours(connection, rows)
        add_unit_hours(connection, [unit("i-9")._replace(environment="aws/other/us-east-1")])
    found = stored(engine)
    assert [(row.hour, row.instance_id) for row in found] == sorted((r.hour, r.instance_id) for r in rows[:5])
    assert set(found) == set(rows[:5])
    with engine.connect() as connection:
        assert sightings(connection, FLEET, HOUR - timedelta(minutes=1), HOUR).keys() == {"i-3"}
        assert sightings(connection, FLEET, HOUR, HOUR + timedelta(hours=9)) == {
            "i-1": [
                Sighting("GPU-1", "7", "1g.10gb", HOUR, HOUR + timedelta(hours=1)),
                Sighting("GPU-1", "7", "2g.20gb", HOUR, HOUR),
            ],
            "i-2": [Sighting("GPU-1", "7", "1g.10gb", HOUR, HOUR)],
        }


def test_export_contains_the_activity_of_slices(url: str, ledgers: Ledgers, tmp_path: Path) -> None:
    engine, other = ledgers.open(url), open_ledger(f"sqlite:///{tmp_path}/other.db")
    with writing(engine) as connection:
        add_unit_hours(connection, [unit(), unit("i-2")])
    with engine.connect() as connection:
        lines = list(export(connection, HOUR))
    for _ in range(2):
        with writing(other) as connection:
            import_rows(connection, lines, "export")
    assert stored(other) == stored(engine)
    other.dispose()


@pytest.mark.parametrize(
    "change",
    ["busy = idle", "engine_busy = engine_idle", f"seen = '{1 << 360:x}'"],
    ids=["busy and idle", "engine busy and idle", "slot 361"],
)
def test_impossible_activity_of_a_slice_is_detected(tmp_path: Path, change: str) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    with writing(engine) as connection:
        add_unit_hours(connection, [unit()])
        assert list(verify(connection)) == []
        connection.execute(text(f"update unit_hours set {change}"))
        assert [breach.rule for breach in verify(connection)] == [
            "no slot of a unit is both busy and idle, and an hour has 360 slots"
        ]
    engine.dispose()


def test_ledger_of_schema_0014_gets_the_table_and_keeps_its_rows(url: str, ledgers: Ledgers) -> None:
    old = open_database(url)
    with writing(old) as connection:
        migrate(connection, "0014")
        assert "unit_hours" not in inspect(connection).get_table_names()
        values = f"('{FLEET}', 'i-1', 0, 'f', '0')"
        columns = "(environment, instance_id, hour, busy, idle)"
        connection.execute(text(f"insert into activity_hours {columns} values {values}"))
    old.dispose()
    engine = ledgers.open(url)
    assert schema_version(engine) == HEAD
    with writing(engine) as connection:
        add_unit_hours(connection, [unit()])
        assert connection.execute(text("select busy from activity_hours")).scalar_one() == "f"
    assert stored(engine) == [unit()]
