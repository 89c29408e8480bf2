"""Reports compared with a loop over seconds that shares no code with them.

The night has a change of clocks, a price change inside the repeated hour, an engine restart, a spot instance that
is preempted in its first hour, and an instance that runs for twenty seconds.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts, rollups
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import CostPass, EndCause, RunEnd, TokenReading
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.small_fleet import FLEET, document, read_json, run

MIDNIGHT = datetime(2026, 10, 24, 22, tzinfo=UTC)
"""Midnight in Berlin, at the start of the day that has 25 hours."""


def second(text: str) -> int:
    """Seconds from MIDNIGHT to a UTC time."""
    return round((datetime.fromisoformat(text + "Z") - MIDNIGHT).total_seconds())


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    name: str
    kind: CapacityType
    pool: str
    start: int
    end: int
    cause: EndCause = EndCause.ENDED


SIMULATED_RUNS = [
    SimulatedRun(name="i-night", kind=CapacityType.ON_DEMAND, pool="chat", start=second("2026-10-24T20:00:07"),
         end=second("2026-10-25T05:30:00")),
    SimulatedRun(name="i-taken", kind=CapacityType.SPOT, pool="batch", start=second("2026-10-24T21:40:11"),
         end=second("2026-10-24T22:25:50"), cause=EndCause.PREEMPTED),
    SimulatedRun(name="i-taken-late", kind=CapacityType.SPOT, pool="batch", start=second("2026-10-25T00:30:00"),
         end=second("2026-10-25T01:40:01"), cause=EndCause.PREEMPTED),
    SimulatedRun(name="i-short", kind=CapacityType.ON_DEMAND, pool="chat", start=second("2026-10-25T21:59:50"),
         end=second("2026-10-25T22:00:10")),
]  # fmt: skip
PRICES = {
    CapacityType.ON_DEMAND: [(-(10**6), Decimal("0.72")), (second("2026-10-25T01:17:23"), Decimal("0.91"))],
    CapacityType.SPOT: [(-(10**6), Decimal("0.36")), (second("2026-10-25T01:00:01"), Decimal("0.333"))],
}
RESTART = second("2026-10-25T01:05:00")


def counters() -> list[tuple[int, int, int]]:
    """Second, prompt tokens, generation tokens. The engine restarts once and resets its counters."""
    rows: list[tuple[int, int, int]] = []
    for at in range(second("2026-10-24T20:10:00"), second("2026-10-25T05:30:00"), 300):
        since = at - (RESTART if at >= RESTART else second("2026-10-24T20:05:00"))
        rows.append((at, since * 7, since * 3))
    return rows


def when(at: int) -> datetime:
    return MIDNIGHT + timedelta(seconds=at)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    began = second("2026-10-24T20:05:00")
    readings = [
        TokenReading(
            environment=FLEET, instance_id="i-night", engine="0", model="chat", at=when(at), prompt=prompt, cached=0,
            generation=generation, created_at=when(RESTART if at >= RESTART else began),
        )
        for at, prompt, generation in counters()
    ]  # fmt: skip
    with writing(engine) as connection:
        facts.add_runs(
            connection,
            [
                run(one.name, 0, one.kind, one.pool, last_seen_at=when(one.end), started_at=when(one.start))
                for one in SIMULATED_RUNS
            ],
        )
        facts.add_ends(
            connection,
            [
                RunEnd(cloud=Cloud.AWS, instance_id=one.name, started_at=when(one.start), ended_at=when(one.end),
                       cause=one.cause, exact=True)
                for one in SIMULATED_RUNS
            ],
        )  # fmt: skip
        facts.add_readings(connection, readings)
        rollups.roll_up(connection, readings)
        facts.add_prices(
            connection,
            [
                Price(
                    sku=f"aws:ec2:g6.xlarge:{kind}", region="us-east-1", zone=None, source="test",
                    valid_from=when(at), usd_per_hour=usd, as_of=when(at),
                )
                for kind, changes in PRICES.items()
                for at, usd in changes
            ],
        )  # fmt: skip
        for at in (second("2026-10-24T19:00:00"), second("2026-10-27T00:00:00")):
            facts.add_pass(
                connection, CostPass(environment=FLEET, at=when(at), host="h", metrics_from=None, metrics_until=None)
            )
    engine.dispose()
    return document(tmp_path)


def price(kind: CapacityType, at: int) -> Decimal:
    return [usd for begins, usd in PRICES[kind] if begins <= at][-1]


def counted(one: SimulatedRun, since: int, until: int) -> Decimal:
    """USD of one instance in a window: every second at its price, plus the charges and credits of its end."""
    seconds = sum((price(one.kind, at) for at in range(max(one.start, since), min(one.end, until))), Decimal(0))
    if since <= one.end < until:
        length = one.end - one.start
        if one.cause is EndCause.PREEMPTED and length < 3600:
            seconds -= sum((price(one.kind, at) for at in range(one.start, one.end)), Decimal(0))
        elif length < 60:
            seconds += (60 - length) * price(one.kind, one.end - 1)
    return seconds / 3600


def served(since: int, until: int) -> tuple[int, int]:
    """Tokens whose later reading is in the window. After a restart the whole value of the counter is new."""
    prompt = generation = 0
    before: tuple[int, int] = (0, 0)
    for at, into, out in counters():
        step = (into - before[0], out - before[1]) if into >= before[0] else (into, out)
        if since <= at < until:
            prompt, generation = prompt + step[0], generation + step[1]
        before = (into, out)
    return prompt, generation


DAY = 86_400
WINDOWS = [
    pytest.param("2026-10-24", "2026-10-25", -DAY, 0, id="the day before"),
    pytest.param("2026-10-25", "2026-10-26", 0, 25 * 3600, id="the day of 25 hours"),
    pytest.param("2026-10-24", "2026-10-27", -DAY, 25 * 3600 + DAY, id="three days"),
    # 02:30 occurs twice in that night: in summer time and in winter time
    pytest.param("2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00", 9_000, 12_600, id="the hour that repeats"),
]


@pytest.mark.parametrize(("since", "until", "start", "end"), WINDOWS)
def test_every_figure_matches_a_loop_over_seconds(fleet: Path, since: str, until: str, start: int, end: int) -> None:
    found = read_json("cost", "--fleet", fleet, "--since", since, "--until", until, "--tz", "Europe/Berlin")
    assert (found["since"], found["until"]) == tuple(f"{when(at):%Y-%m-%dT%H:%M:%SZ}" for at in (start, end))
    of: dict[str, Decimal] = {}
    for row in found["charges"]:
        of[row["resource"]] = of.get(row["resource"], Decimal(0)) + Decimal(row["usd"])
    for one in SIMULATED_RUNS:
        assert abs(of.pop(one.name, Decimal(0)) - counted(one, start, end)) < Decimal("1e-7"), one.name
    assert of == {}
    whole = sum((counted(one, start, end) for one in SIMULATED_RUNS), Decimal(0))
    total: Any = found["total"]
    assert abs(Decimal(total["usd"]) - whole) < Decimal("1e-7")
    prompt, generation = served(start, end)
    assert (total["tokens"]["prompt"] or 0, total["tokens"]["generation"] or 0) == (prompt, generation)
    if prompt:
        blended = whole / (prompt + generation) * 1_000_000
        assert abs(Decimal(total["usd_per_million_tokens"]["blended"]) - blended) < Decimal("1e-4")
    assert total["tokens"]["resets"] == int(start <= RESTART < end)
