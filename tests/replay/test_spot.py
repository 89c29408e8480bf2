"""Tests of `replay spot` on small markets whose results can be calculated by hand."""

import gzip
from pathlib import Path

import pytest

from gpufleet.domain.policies import SpotPolicy
from replay import rows
from replay.histories import load_market
from replay.rows import TraceError
from replay.spot import NAMES, ON_DEMAND, Moves, RuleState, SpotTerms, rule
from replay.spot import play as play_market

HEADER = "time_s,zone,available\n"


def trace(tmp_path: Path, *lines: str, header: str = HEADER) -> Path:
    path = tmp_path / "market.csv"
    path.write_text(header + "".join(f"{line}\n" for line in lines))
    return path


def stable_market(ticks: int, zones: str = "abc", capacity: int = 9) -> list[str]:
    return [f"{tick * 100},us-east-1{zone},{capacity}" for tick in range(ticks) for zone in zones]


def play(path: Path, name: str = "own", **terms: float) -> dict[str, str | int | float]:
    given = {"target": 4, "spare": 0, "cold_start": 200.0} | terms
    return play_market(load_market(path), SpotTerms(**given), rule(name, SpotPolicy())).answer()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_stable_market_costs_only_spot_once_it_is_ready(tmp_path: Path, name: str) -> None:
    answer = play(trace(tmp_path, *stable_market(101)), name)
    assert (answer["ticks"], answer["preemptions"], answer["spot_launches"]) == (100, 0, 4)
    assert answer["below_target_percent"] == 2.0  # launched at 0, ready from 200: two ticks
    assert answer["none_ready_percent"] == 2.0
    # only SkyServe uses on-demand during the boot: two ticks of four, at the full price
    assert answer["cost_ratio"] == (0.3 if name == "own" else pytest.approx(0.3 + 2 * 4 * 1.0 / 400))


def test_the_newest_instances_above_capacity_are_lost_and_their_tick_is_free(tmp_path: Path) -> None:
    launches = iter([(0, 0, 0), (), (), (), (), (), ()])

    class Once:
        name = "once"
        lost: list[int] = []

        def decide(self, state: RuleState) -> Moves:
            self.lost += [m.number for m in state.lost]
            return Moves(launch=next(launches, ()))

    player = Once()
    path = trace(tmp_path, "0,a,3", "100,a,1", "200,a,3")
    score = play_market(load_market(path), SpotTerms(target=1, spare=0, cold_start=100), player)
    assert player.lost == [2, 3]
    assert score.preemptions == 2
    assert score.answer()["cost_ratio"] == pytest.approx(0.3 * (3 + 1) / 2)
    assert score.answer()["below_target_percent"] == 50.0


def test_a_refusal_is_free_and_visible_within_the_tick(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    class Stubborn:
        name = "stubborn"

        def decide(self, state: RuleState) -> Moves:
            seen.append(list(state.refused))
            return Moves(launch=[0] if len(seen) == 1 else [ON_DEMAND] if state.refused else [])

    score = play_market(load_market(trace(tmp_path, "0,a,0", "100,a,0")), SpotTerms(target=1), Stubborn())
    assert seen == [[], [0], []]
    assert (score.spot_launches, score.on_demand_launches) == (0, 1)
    assert score.answer()["cost_ratio"] == 1.0


@pytest.mark.parametrize(
    ("name", "target", "zones"),
    [
        pytest.param("own", 1500, 2, id="own, a large pool"),
        pytest.param("skyserve", 1500, 2, id="skyserve, a large pool"),
        pytest.param("skyserve", 2, 1200, id="skyserve, zones"),
    ],
)
def test_a_rule_that_asks_one_by_one_may_ask_for_a_large_pool(
    tmp_path: Path, name: str, target: int, zones: int
) -> None:
    capacity = [(zone, 2000 if zone == zones - 1 else 0) for zone in range(zones)]
    path = trace(tmp_path, *(f"{at},z{zone},{free}" for at in (0, 600) for zone, free in capacity))
    assert play(path, name, target=target)["spot_launches"] == target


def test_every_zone_is_tried_before_on_demand_is_bought(tmp_path: Path) -> None:
    rows = [f"{t * 100},us-east-1{zone},{4 if zone == 'c' else 0}" for t in range(50) for zone in "abc"]
    answer = play(trace(tmp_path, *rows))
    assert (answer["on_demand_launches"], answer["spot_launches"]) == (0, 4)


def test_without_spot_exactly_the_target_is_on_demand(tmp_path: Path) -> None:
    rows = [f"{t * 100},us-east-1{zone},0" for t in range(50) for zone in "abc"]
    answer = play(trace(tmp_path, *rows), spare=1)
    assert (answer["on_demand_launches"], answer["cost_ratio"], answer["on_demand_share"]) == (4, 1.0, 1.0)


def test_recorded_prices_at_or_above_on_demand_prevent_spot(tmp_path: Path) -> None:
    rows = [f"{t * 100},us-east-1a,9,{1.0}" for t in range(20)]
    path = trace(tmp_path, *rows, header="time_s,zone,available,spot_price\n")
    answer = play(path)
    assert (answer["spot_launches"], answer["on_demand_launches"]) == (0, 4)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["0,a,1", "100,a,x"], "line 3: available is 'x'; expected a number"),
        (["0,a,1", "100,a"], "line 3: 2 fields"),
        (["0,a,1", "100,a,-1"], "line 3: available is -1"),
        (["0,a,1", "100,,1"], "line 3: zone is empty"),
        (["0,a,1", "100,a,"], "line 3: available is empty"),
        (["0,a,1", "100,a,nan"], "line 3"),
        (["0,a,1", "100,a,inf"], "line 3: available is inf"),
        (["100,a,1", "0,a,1", "200,a,1"], "line 3: time_s 0 comes after 100"),
        (["0,a,1", "0,a,1", "100,a,1"], "line 3: zone 'a' has two rows"),
        (["0,a,1"], "contains only one time"),
        ([], "no rows"),
    ],
)
def test_an_invalid_row_is_reported_with_its_line(tmp_path: Path, rows: list[str], message: str) -> None:
    with pytest.raises(TraceError, match=message.replace("(", r"\(")):
        load_market(trace(tmp_path, *rows))


@pytest.mark.parametrize("bad", ["x", "5,6"], ids=["no number", "too many fields"])
def test_an_invalid_row_of_a_later_block_is_reported_with_its_line(tmp_path: Path, bad: str) -> None:
    ticks = rows.BLOCK // 40
    lines = [f"{tick * 100},some-zone-with-a-long-name-{zone},5" for tick in range(ticks) for zone in "ab"]
    lines[-2] = f"{(ticks - 1) * 100},some-zone-with-a-long-name-a,{bad}"
    path = trace(tmp_path, *lines)
    assert path.stat().st_size > rows.BLOCK * 1.5
    with pytest.raises(TraceError, match=f"line {len(lines)}: "):
        load_market(path)


def test_a_missing_column_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 1: column available is missing"):
        load_market(trace(tmp_path, "0,a", header="time_s,zone\n"))


def test_a_compressed_history_with_columns_in_another_order_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "market.csv.gz"
    rows = (f"a,{t * 100},5,extra\n" for t in range(3))
    path.write_bytes(gzip.compress(("zone,time_s,available,note\n" + "".join(rows)).encode()))
    read = load_market(path)
    assert read.zones == ("a",)
    assert read.available.tolist() == [[5.0], [5.0], [5.0]]


def test_an_extra_instance_is_placed_where_it_is_needed_and_kept(tmp_path: Path) -> None:
    """The rule once counted the instances of closed zones. It then requested an extra instance, placed it without
    that count, and terminated it.
    """
    capacities = {380: "900910100", 1000: "440010000", 1020: "440010000"}
    path = tmp_path / "market.csv"
    lines = [
        f"{at},us-east-1{zone},{capacity}"
        for at, row in capacities.items()
        for zone, capacity in zip("abcdefghi", row, strict=True)
    ]
    path.write_text("\n".join(["time_s,zone,available", *lines, ""]))
    terms = SpotTerms(target=6, spare=2, cold_start=0.0)
    answer = play_market(load_market(path), terms, rule("own", SpotPolicy())).answer()
    assert answer["below_target_percent"] == 0
    assert float(answer["spot_launches"]) < 15
