"""Throughput of a fleet's own machines: read from its ledger, a lower bound, and only for alike requests."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from app.errors import AppError
from app.fleets import load_one
from app.measured_here import ServedDay, of_days, served_here
from gpufleet.domain.model import CapacityType
from gpufleet.ledger import facts, rollups
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import ActivityHour, CostPass, TokenReading
from gpufleet.ledger.schema import open_ledger
from serving.sizing.speed import SpeedOrigin, Traffic
from tests.fixtures.small_fleet import FLEET, HOUR, T0, document, run

TRAFFIC = Traffic(input_tokens=600, output_tokens=200)


def day(hours: float, prompt: int | None, generation: int | None) -> ServedDay:
    return ServedDay(tokens=Tokens(prompt=prompt, generation=generation), used=timedelta(hours=hours))


def test_the_busiest_day_is_a_lower_bound(tmp_path: Path) -> None:
    fleet = load_one(str(document(tmp_path)))
    # 7,200,000 tokens in 2 hours: 1,000 tokens/s, or 1.25 requests/s of 800 tokens; the other day half of it
    days = [day(2, 5_400_000, 1_800_000), day(4, 5_400_000, 1_800_000), day(0.5, 9_000_000, 3_000_000)]
    found = of_days(fleet, "chat", "g6.xlarge", days, TRAFFIC)
    assert found.speed is not None and found.speed.error is not None
    assert found.speed.kind is SpeedOrigin.MEASURED_HERE
    assert found.speed.requests_per_s == pytest.approx(1.25)
    assert (found.speed.error.low, found.speed.error.high) == (pytest.approx(-0.5), None)
    assert (found.speed.ttft_s, found.speed.itl_s) == (None, None)
    assert "aws/dev/us-east-1, pool chat, g6.xlarge: 1,000 tokens/s per machine" in found.speed.source


@pytest.mark.parametrize(
    ("days", "why"),
    [
        pytest.param([], "no day", id="no day"),
        pytest.param([day(0.9, 9_000, 3_000)], "no day", id="less than an hour of use"),
        pytest.param([day(5, None, 3_000)], "no day", id="unknown input tokens are not zero"),
        pytest.param([day(5, 9_000, 0)], "no day", id="no output"),
        pytest.param([day(5, 90_000, 3_000)], "30 input tokens per output token, the demand has 3", id="another mix"),
    ],
)
def test_without_comparable_tokens_nothing_is_measured(tmp_path: Path, days: list[ServedDay], why: str) -> None:
    found = of_days(load_one(str(document(tmp_path))), "chat", "g6.xlarge", days, TRAFFIC)
    assert found.speed is None
    assert why in found.why


def test_the_rate_is_read_from_the_ledger(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    machine = run("i-1", 0, CapacityType.ON_DEMAND)
    readings = [
        TokenReading(
            environment=FLEET, instance_id="i-1", engine="0", model="v1", at=T0 + timedelta(minutes=minute),
            prompt=minute * 45_000, cached=0, generation=minute * 15_000, created_at=T0,
        )
        for minute in range(0, 121, 5)
    ]  # fmt: skip
    with writing(engine) as connection:
        facts.add_runs(connection, [machine])
        facts.add_readings(connection, readings)
        rollups.roll_up(connection, readings)
        facts.add_activity(
            connection,
            [ActivityHour(environment=FLEET, instance_id="i-1", hour=T0 + n * HOUR, busy=busy, idle=idle)
             for n, busy, idle in ((0, (1 << 360) - 1, 0), (1, (1 << 360) - 1, 0), (2, 0, (1 << 360) - 1))],
        )  # fmt: skip
        for at in (T0, T0 + 6 * HOUR):
            facts.add_pass(
                connection, CostPass(environment=FLEET, at=at, host="h", metrics_from=None, metrics_until=None)
            )
    engine.dispose()
    more: dict[str, Any] = {}
    found = served_here([str(document(tmp_path, **more))], "chat", TRAFFIC, T0 + 3 * HOUR)
    (here,) = [one for name, one in found.items() if name == "g6.xlarge"]
    # 60,000 tokens a minute in two used hours; the idle hour does not count
    assert here.speed is not None, here.why
    assert here.speed.requests_per_s == pytest.approx(1000 / 800)


def test_an_unknown_pool_is_an_error_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="--pool: expected a pool of one of the fleets, got 'x'.*pools: batch, chat"):
        served_here([str(document(tmp_path))], "x", TRAFFIC, T0)


def test_without_a_pool_no_ledger_is_read() -> None:
    assert served_here(["s3://not-there/fleet.json"], None, TRAFFIC, T0) == {}
