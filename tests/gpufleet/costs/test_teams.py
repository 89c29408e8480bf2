"""The cost of a shared pool by team: router counters become engine seconds, and the cost is split exactly."""

import json
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cost_sources import METRIC_NAMES
from gpufleet.costs.allocation import UseState
from gpufleet.costs.figures import Figure
from gpufleet.costs.samples import RawSeries, team_readings
from gpufleet.costs.slots import ActivitySample
from gpufleet.costs.teams import split_by_engine_seconds
from gpufleet.domain import money as exact
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.database import writing
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.teams import TeamReading, TeamTotals, TeamUse, add_team_readings, team_uses
from serving.router.exporter import RouterSnapshot, metrics
from serving.router.meter import KeyUsage, Meter
from tests.fixtures.small_fleet import FLEET, HOUR, T0, WINDOW, document, fill, read_json


def reading(team: str, hours: float, ms: int, **more: Any) -> TeamReading:
    fields: dict[str, Any] = {"router": "r1", "model": "chat", "pool": "chat", "tokens_in": 0, "tokens_out": 0}
    fields |= {"unmetered": 0} | more
    return TeamReading(fleet=FLEET, team=team, at=T0 + hours * HOUR, replica_ms=ms, **fields)


def test_metrics_page_of_the_router_becomes_readings(tmp_path: Path) -> None:
    meter = Meter(tmp_path / "log", tmp_path / "state")
    meter.use["search", "chat", "chat"] = KeyUsage(
        requests=2, replica_ms=1_500, tokens_in=70, tokens_out=9, unmetered=1
    )
    series: list[RawSeries] = []
    for line in metrics(meter, RouterSnapshot(held={}, ready={}, known={}, excluded={})).splitlines():
        name, _, rest = line.partition("{")
        if name in METRIC_NAMES.teams:
            labels = dict(part.split("=") for part in rest.partition("}")[0].replace('"', "").split(","))
            value = float(rest.rpartition(" ")[2])
            for job, instance in (("router", "r1"), ("engine", "i-1")):
                # an instance that exposes metrics with router names charges no team
                whose = {"__name__": name, "job": job, "instance": instance, **labels}
                series.append(RawSeries(whose, [ActivitySample(T0, value)]))
    assert team_readings(FLEET, METRIC_NAMES, series) == [
        reading("search", 0, 1_500, tokens_in=70, tokens_out=9, unmetered=1)
    ]


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        pytest.param([reading("a", -1, 100), reading("a", 1, 400)], {"a": 300}, id="a difference"),
        pytest.param([reading("a", -1, 400), reading("a", 1, 30)], {"a": 30}, id="a reset"),
        pytest.param([reading("a", 1, 400)], {}, id="a first reading alone counts nothing"),
        pytest.param([reading("b", 0, 5), reading("a", 1, 400)], {"a": 400}, id="a new key counts from zero"),
        pytest.param([reading("a", -1, 10), reading("a", -0.5, 90)], {}, id="before the window"),
        pytest.param(
            [
                reading("a", -1, 0),
                reading("a", -1, 0, router="r2"),
                reading("a", 1, 7),
                reading("a", 1, 8, router="r2"),
            ],
            {"a": 15},
            id="two routers",
        ),
    ],
)
def test_counters_become_use_by_team(readings: Sequence[TeamReading], expected: dict[str, int]) -> None:
    counted = TeamTotals(T0)
    for one in readings:
        counted.take(one)
    assert {team: use.replica_ms for (_, team, _), use in counted.uses.items() if use.replica_ms} == expected


def test_use_that_was_written_repeatedly_counts_once(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    for _ in range(2):
        with writing(engine) as connection:
            add_team_readings(connection, [reading("a", -1, 100), reading("a", 1, 400), reading("a", 7, 900)])
    whole, late = (T0, T0 + 6 * HOUR), (T0 + 6 * HOUR, T0 + 8 * HOUR)
    with engine.connect() as connection:
        found = team_uses(connection, FLEET, [whole, late])
    assert [found[interval]["chat", "a", "chat"].replica_ms for interval in (whole, late)] == [300, 500]


@given(
    amounts=st.dictionaries(st.sampled_from(list(UseState)), st.decimals(-(10**6), 10**7, places=12), min_size=1),
    weights=st.lists(st.integers(0, 10**9), min_size=1, max_size=6),
    prompt=st.integers(0, 10**12),
    seconds=st.integers(0, 10**9),
)
def test_team_parts_add_up_exactly(
    amounts: dict[UseState, Decimal], weights: list[int], prompt: int, seconds: int
) -> None:
    whole = Figure(tokens=Tokens(prompt=prompt, generation=7))
    for state, amount in amounts.items():
        whole.amounts[state] = amount
    whole.times[UseState.USED] = timedelta(microseconds=seconds)
    parts = split_by_engine_seconds(
        "p", whole, {f"t{n}": TeamUse(replica_ms=ms, unmetered=1) for n, ms in enumerate(weights)}
    )
    assert bool(parts) == any(weights)
    if not parts:
        return
    for state, amount in whole.amounts.items():
        assert exact.total(part.figure.amounts[state] for part in parts) == amount
    assert sum(part.figure.tokens.prompt or 0 for part in parts) == prompt
    assert sum((part.figure.times[UseState.USED] for part in parts), timedelta(0)) == whole.times[UseState.USED]


@pytest.mark.parametrize(
    ("unmetered", "counted", "tokens"),
    [
        pytest.param(0, "exact", {"search": 1_000, "(no key)": 10}, id="every answer reported its tokens"),
        pytest.param(3, "estimated", {"search": 236_250, "(no key)": 78_750}, id="streams reported none"),
    ],
)
def test_report_splits_a_shared_pool_by_team(
    tmp_path: Path, unmetered: int, counted: str, tokens: dict[str, int]
) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    with writing(engine) as connection:
        add_team_readings(
            connection,
            [
                *(reading(team, -0.1, 0) for team in ("search", "")),
                reading("search", 5, 3_000, tokens_in=1_000, unmetered=unmetered),
                reading("", 5, 1_000, tokens_in=10),
            ],
        )
    path = document(tmp_path)
    whole = json.loads(path.read_text())
    whole["pools"][0]["team_split"] = "engine-seconds"
    path.write_text(json.dumps(whole))
    found = read_json("cost", "--fleet", path, *WINDOW)
    pool = Decimal(found["by"]["pool"]["chat"]["usd"])
    teams = {row["team"]: row for row in found["teams"]}
    assert {row["tokens_are"] for row in teams.values()} == {counted}
    assert {name: row["tokens"]["prompt"] for name, row in teams.items()} == tokens
    assert sum(Decimal(row["usd"]) for row in teams.values()) == pool
    assert abs(Decimal(teams["search"]["usd"]) - pool * 3 / 4) < Decimal("1e-8")
    by_team = found["by"]["team"]
    assert set(by_team) == {"search", "(no key)", "research"}
    assert sum(Decimal(figure["usd"]) for figure in by_team.values()) == Decimal(found["total"]["usd"])


def test_without_engine_seconds_the_cost_stays_with_the_owner_and_the_report_states_it(tmp_path: Path) -> None:
    fill(open_ledger(f"sqlite:///{tmp_path}/ledger.db"))
    path = document(tmp_path)
    whole = json.loads(path.read_text())
    whole["pools"][0]["team_split"] = "engine-seconds"
    path.write_text(json.dumps(whole))
    found = read_json("cost", "--fleet", path, *WINDOW)
    assert found["teams"] == []
    assert "pool chat: the router counted no engine seconds by team; its owner is charged all of it" in found["notes"]
