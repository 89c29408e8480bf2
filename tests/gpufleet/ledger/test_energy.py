"""Energy readings in the ledger: which time is measured, and sums that do not depend on the order of writers."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, select, text

from gpufleet.ledger import transfer
from gpufleet.ledger.database import open_database, writing
from gpufleet.ledger.energy import (
    EnergyReading,
    EnergyUse,
    add_energy_readings,
    energy_uses,
    roll_up_energy,
    use_of,
)
from gpufleet.ledger.facts import ActivityHour, add_activity
from gpufleet.ledger.invariants import verify
from gpufleet.ledger.schema import HEAD, migrate, open_ledger, schema_version
from gpufleet.ledger.tables import ENERGY_HOURS
from tests.fixtures.ledgers import Ledgers

T0 = datetime(2026, 7, 1, 6, 0, tzinfo=UTC)
FLEET = "aws/test/us-east-1"
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def reading(minute: float, joules: float, device: str = "GPU-a", instance: str = "i-1") -> EnergyReading:
    return EnergyReading(
        environment=FLEET,
        instance_id=instance,
        device=device,
        at=T0 + minute * MINUTE,
        millijoules=round(joules * 1000),
    )


def slots(busy: int = 0, idle: int = 0, hour: datetime = T0, instance: str = "i-1") -> ActivityHour:
    return ActivityHour(environment=FLEET, instance_id=instance, hour=hour, busy=busy, idle=idle)


def write(engine: Engine, readings: Sequence[EnergyReading], activity: Sequence[ActivityHour] = ()) -> None:
    with writing(engine) as connection:
        add_energy_readings(connection, readings)
        add_activity(connection, activity)
        roll_up_energy(connection, readings, activity)


def uses(engine: Engine, since: datetime = T0, until: datetime = T0 + HOUR) -> dict[str, EnergyUse]:
    with engine.connect() as connection:
        return energy_uses(connection, FLEET, since, until)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return open_ledger(f"sqlite:///{tmp_path}/ledger.db")


def measured(readings: Sequence[EnergyReading]) -> tuple[float, float, int, int]:
    """Joules, measured minutes, resets and rejected steps of an hour."""
    use = use_of(readings, {}, T0, T0 + HOUR)
    return use.millijoules / 1000, use.measured_us / 60e6, use.resets, use.rejected


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        pytest.param([reading(0, 50_000)], (0, 0, 0, 0), id="the energy before the first reading is unknown"),
        pytest.param([reading(0, 50_000), reading(5, 140_000)], (90_000, 5, 0, 0), id="300 W for five minutes"),
        pytest.param([reading(0, 0), reading(15, 270_000)], (270_000, 15, 0, 0), id="fifteen minutes are measured"),
        pytest.param([reading(0, 0), reading(16, 288_000)], (0, 0, 0, 0), id="a gap is unknown"),
        pytest.param(
            [reading(0, 900_000), reading(5, 990_000), reading(6, 1_000), reading(11, 91_000)],
            (180_000, 10, 1, 0),
            id="nothing counts across a reset",
        ),
        pytest.param(
            [reading(0, 0), reading(5, 0), reading(10, 0), reading(14, 252_000)],
            (252_000, 14, 0, 0),
            id="repeated values measure nothing new",
        ),
        pytest.param(
            [reading(0, 0), reading(5, 0), reading(10, 0), reading(20, 360_000)],
            (0, 0, 0, 0),
            id="an exporter that repeats values for long measures nothing",
        ),
        pytest.param([reading(0, 0), reading(5, 90)], (0, 0, 0, 1), id="0.3 W is another unit"),
        pytest.param([reading(0, 0), reading(5, 90_000_000)], (0, 0, 0, 1), id="300 kW is another unit"),
        pytest.param([reading(0, 0), reading(5, 2_700_000)], (0, 0, 0, 1), id="mJ of a T4 at rest, read as J"),
        pytest.param([reading(0, 0), reading(5, 360)], (0, 0, 0, 1), id="J of a B200 at work, read as kJ"),
        pytest.param([reading(0, 0), reading(5, 900)], (900, 5, 0, 0), id="3 W is plausible"),
        pytest.param([reading(0, 0), reading(5, 870_000)], (870_000, 5, 0, 0), id="2.9 kW is plausible"),
        pytest.param(
            [reading(0, 0), reading(5, 90_000), reading(0, 7, "GPU-b"), reading(5, 60_007, "GPU-b")],
            (150_000, 10, 0, 0),
            id="two devices add up",
        ),
    ],
)
def test_only_measured_time_has_energy(
    readings: list[EnergyReading], expected: tuple[float, float, int, int]
) -> None:
    assert measured(readings) == expected
    assert measured(readings[::-1]) == expected


def test_300_w_for_one_hour_are_1_08_megajoules(engine: Engine) -> None:
    write(engine, [reading(minute, 5_000 + 300 * 60 * minute) for minute in range(0, 65, 5)])
    assert uses(engine, T0, T0 + HOUR + MINUTE)["i-1"].millijoules == 1_080_000_000


def test_energy_is_split_over_busy_idle_and_unknown_time(engine: Engine) -> None:
    # the first 100 s are busy, then 150 s idle, then 50 s unknown
    write(engine, [reading(0, 0), reading(5, 30_000)], [slots((1 << 10) - 1, ((1 << 15) - 1) << 10)])
    assert uses(engine)["i-1"] == EnergyUse(
        devices=1, used_mj=10_000_000, idle_mj=15_000_000, other_mj=5_000_000, measured_us=300_000_000
    )


def test_activity_that_arrives_later_changes_the_split_and_not_the_sum(engine: Engine) -> None:
    write(engine, [reading(58, 0), reading(62, 24_000)])
    assert uses(engine, T0 + HOUR, T0 + 2 * HOUR)["i-1"].other_mj == 24_000_000
    write(engine, [], [slots(idle=((1 << 12) - 1) << 348)])  # the last two minutes of the first hour
    found = uses(engine, T0 + HOUR, T0 + 2 * HOUR)["i-1"]
    assert (found.idle_mj, found.other_mj) == (12_000_000, 12_000_000)


def test_pass_that_repeats_or_comes_late_leaves_the_same_rows(url: str, ledgers: Ledgers) -> None:
    engine = ledgers.open(url)
    write(engine, [reading(0, 0), reading(10, 180_000)])
    write(engine, [reading(5, 90_000), reading(10, 180_000), reading(10, 999_000)])
    assert uses(engine)["i-1"] == EnergyUse(devices=1, other_mj=180_000_000, measured_us=600_000_000)
    with engine.connect() as connection:
        assert list(verify(connection)) == []


counters = st.lists(
    st.tuples(
        st.integers(0, 180),
        st.sampled_from(["GPU-a", "GPU-b"]),
        st.sampled_from(["i-1", "i-2"]),
        st.integers(0, 5_000_000),
    ),
    max_size=40,
    unique_by=lambda row: row[:3],
)
bits = st.integers(0, (1 << 360) - 1)


@settings(max_examples=40)
@given(counters, bits, bits, st.randoms(use_true_random=False), st.lists(st.integers(0, 200), max_size=4))
def test_order_and_repetition_of_writers_do_not_matter_and_parts_add_up(
    rows: list[tuple[int, str, str, int]], busy: int, idle: int, shuffle: random.Random, cuts: list[int]
) -> None:
    readings = [reading(minute, joules, device, name) for minute, device, name, joules in rows]
    activity = [slots(busy, idle & ~busy, T0 + n * HOUR, name) for n in range(3) for name in ("i-1", "i-2")]
    at_once, piece_by_piece = open_ledger("sqlite://"), open_ledger("sqlite://")
    write(at_once, readings, activity)
    pieces: list[EnergyReading | ActivityHour] = [*readings, *activity, *readings[:3], *activity[:3]]
    shuffle.shuffle(pieces)
    for one in pieces:
        write(piece_by_piece, *(([one], []) if isinstance(one, EnergyReading) else ([], [one])))
    whole = uses(at_once, T0, T0 + 4 * HOUR)
    assert uses(piece_by_piece, T0, T0 + 4 * HOUR) == whole
    edges = [T0, *sorted(T0 + minute * MINUTE for minute in cuts), T0 + 4 * HOUR]
    parts: dict[str, EnergyUse] = {}
    for since, until in zip(edges, edges[1:], strict=False):
        for name, use in uses(at_once, since, until).items():
            parts[name] = parts.get(name, EnergyUse()) + use
    # the number of devices is the highest of any part, not a sum
    assert {n: replace(u, devices=0) for n, u in parts.items()} == {
        n: replace(u, devices=0) for n, u in whole.items()
    }
    with at_once.connect() as connection:
        assert list(verify(connection)) == []


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        ("delete from energy_hours", "hours of energy equal the sums of their readings"),
        ("update energy_hours set idle_mj = idle_mj + 1", "hours of energy equal the sums of their readings"),
        ("update energy_readings set millijoules = -1", "energy counters are 0 or more"),
    ],
    ids=["hours lost", "one millijoule too many", "negative counter"],
)
def test_broken_energy_is_detected(engine: Engine, statement: str, rule: str) -> None:
    write(engine, [reading(0, 0), reading(5, 90_000)])
    with writing(engine) as connection:
        assert connection.execute(text(statement)).rowcount > 0
        assert rule in {breach.rule for breach in verify(connection)}


def test_import_rolls_up_the_hours_again(engine: Engine, tmp_path: Path) -> None:
    write(engine, [reading(0, 0), reading(5, 90_000)], [slots(busy=1)])
    other = open_ledger(f"sqlite:///{tmp_path}/other.db")
    with engine.connect() as connection:
        lines = list(transfer.export(connection, T0))
    with writing(other) as connection:
        transfer.import_rows(connection, lines, "a.jsonl")
        assert list(verify(connection)) == []
    assert uses(other) == uses(engine)
    with engine.connect() as one, other.connect() as two:
        assert one.execute(select(ENERGY_HOURS)).all() == two.execute(select(ENERGY_HOURS)).all()


def test_ledger_without_energy_is_upgraded(url: str, ledgers: Ledgers) -> None:
    old = open_database(url)
    with writing(old) as connection:
        migrate(connection, "0013")
        add_activity(connection, [slots(idle=1)])
    old.dispose()
    engine = ledgers.open(url)
    assert schema_version(engine) == HEAD
    write(engine, [reading(0, 0), reading(5, 30_000)])
    assert uses(engine)["i-1"].idle_mj == 1_000_000  # of 300 s, the ten that were known before the upgrade
