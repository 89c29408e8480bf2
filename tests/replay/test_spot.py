"""`replay spot` on small markets whose answer can be worked out by hand."""

import gzip
from pathlib import Path

import pytest

from gpufleet.domain.policies import SpotPolicy
from replay import market, rows
from replay.market import ON_DEMAND, State, Terms, Wishes
from replay.rows import TraceError
from replay.spot_rules import NAMES, rule

HEADER = "time_s,zone,available\n"


def trace(tmp_path: Path, *lines: str, header: str = HEADER) -> Path:
    path = tmp_path / "market.csv"
    path.write_text(header + "".join(f"{line}\n" for line in lines))
    return path


def calm(ticks: int, zones: str = "abc", room: int = 9) -> list[str]:
    return [f"{tick * 100},us-east-1{zone},{room}" for tick in range(ticks) for zone in zones]


def play(path: Path, name: str = "own", **terms: float) -> dict[str, str | int | float]:
    given = {"target": 4, "spare": 0, "cold_start": 200.0} | terms
    return market.play(market.load(path), Terms(**given), rule(name, SpotPolicy())).answer()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_calm_market_costs_spot_alone_once_it_is_ready(tmp_path: Path, name: str) -> None:
    answer = play(trace(tmp_path, *calm(101)), name)
    assert (answer["ticks"], answer["preemptions"], answer["spot_launches"]) == (100, 0, 4)
    assert answer["below_target_percent"] == 2.0  # launched at 0, ready from 200: two ticks
    assert answer["none_ready_percent"] == 2.0
    # on demand stands in for what boots with SkyServe alone: two ticks of four, at the full price
    assert answer["cost_ratio"] == (0.3 if name == "own" else pytest.approx(0.3 + 2 * 4 * 1.0 / 400))


def test_the_newest_beyond_what_a_zone_gives_are_lost_and_their_tick_is_not_paid(tmp_path: Path) -> None:
    launches = iter([(0, 0, 0), (), (), (), (), (), ()])

    class Once:
        name = "once"
        lost: list[int] = []

        def decide(self, state: State) -> Wishes:
            self.lost += [m.number for m in state.lost]
            return Wishes(launch=next(launches, ()))

    player = Once()
    path = trace(tmp_path, "0,a,3", "100,a,1", "200,a,3")
    score = market.play(market.load(path), Terms(target=1, spare=0, cold_start=100), player)
    assert player.lost == [2, 3]
    assert score.preemptions == 2
    assert score.answer()["cost_ratio"] == pytest.approx(0.3 * (3 + 1) / 2)
    assert score.answer()["below_target_percent"] == 50.0


def test_a_refusal_is_free_and_comes_back_within_the_tick(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    class Stubborn:
        name = "stubborn"

        def decide(self, state: State) -> Wishes:
            seen.append(list(state.refused))
            return Wishes(launch=[0] if len(seen) == 1 else [ON_DEMAND] if state.refused else [])

    score = market.play(market.load(trace(tmp_path, "0,a,0", "100,a,0")), Terms(target=1), Stubborn())
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
    room = [(zone, 2000 if zone == zones - 1 else 0) for zone in range(zones)]
    path = trace(tmp_path, *(f"{at},z{zone},{free}" for at in (0, 600) for zone, free in room))
    assert play(path, name, target=target)["spot_launches"] == target


def test_every_zone_is_asked_before_anything_is_bought(tmp_path: Path) -> None:
    rows = [f"{t * 100},us-east-1{zone},{4 if zone == 'c' else 0}" for t in range(50) for zone in "abc"]
    answer = play(trace(tmp_path, *rows))
    assert (answer["on_demand_launches"], answer["spot_launches"]) == (0, 4)


def test_without_any_spot_the_whole_target_is_on_demand_and_no_more(tmp_path: Path) -> None:
    rows = [f"{t * 100},us-east-1{zone},0" for t in range(50) for zone in "abc"]
    answer = play(trace(tmp_path, *rows), spare=1)
    assert (answer["on_demand_launches"], answer["cost_ratio"], answer["on_demand_share"]) == (4, 1.0, 1.0)


def test_recorded_prices_at_or_above_on_demand_keep_spot_away(tmp_path: Path) -> None:
    rows = [f"{t * 100},us-east-1a,9,{1.0}" for t in range(20)]
    path = trace(tmp_path, *rows, header="time_s,zone,available,spot_price\n")
    answer = play(path)
    assert (answer["spot_launches"], answer["on_demand_launches"]) == (0, 4)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["0,a,1", "100,a,x"], "line 3: available is 'x', a number is wanted"),
        (["0,a,1", "100,a"], "line 3: 2 fields"),
        (["0,a,1", "100,a,-1"], "line 3: available is -1"),
        (["0,a,1", "100,,1"], "line 3: zone is empty"),
        (["0,a,1", "100,a,"], "line 3: available is empty"),
        (["0,a,1", "100,a,nan"], "line 3"),
        (["0,a,1", "100,a,inf"], "line 3: available is inf"),
        (["100,a,1", "0,a,1", "200,a,1"], "line 3: time_s 0 comes after 100"),
        (["0,a,1", "0,a,1", "100,a,1"], "line 3: zone 'a' has two rows"),
        (["0,a,1"], "one moment only"),
        ([], "no rows"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, rows: list[str], words: str) -> None:
    with pytest.raises(TraceError, match=words.replace("(", r"\(")):
        market.load(trace(tmp_path, *rows))


@pytest.mark.parametrize("bad", ["x", "5,6"], ids=["no number", "too many fields"])
def test_a_bad_row_of_a_later_block_is_named_with_its_line(tmp_path: Path, bad: str) -> None:
    ticks = rows.BLOCK // 40
    lines = [f"{tick * 100},some-zone-with-a-long-name-{zone},5" for tick in range(ticks) for zone in "ab"]
    lines[-2] = f"{(ticks - 1) * 100},some-zone-with-a-long-name-a,{bad}"
    path = trace(tmp_path, *lines)
    assert path.stat().st_size > rows.BLOCK * 1.5
    with pytest.raises(TraceError, match=f"line {len(lines)}: "):
        market.load(path)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 1: no column available"):
        market.load(trace(tmp_path, "0,a", header="time_s,zone\n"))


def test_a_compressed_history_with_columns_in_another_order_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "market.csv.gz"
    rows = (f"a,{t * 100},5,extra\n" for t in range(3))
    path.write_bytes(gzip.compress(("zone,time_s,available,note\n" + "".join(rows)).encode()))
    read = market.load(path)
    assert read.zones == ("a",)
    assert read.available.tolist() == [[5.0], [5.0], [5.0]]


class Holder:
    """Wants two of each zone, and says for how long it will want nothing else; what it was asked at is noted."""

    name = "holder"

    def __init__(self, rest: float, ceiling: float | None = None) -> None:
        self.rest, self.ceiling = rest, ceiling
        self.asked: list[float] = []

    def decide(self, state: State) -> Wishes:
        self.asked.append(state.now)
        have = [machine.place for machine in state.machines]
        missing = [p for p in range(len(state.zones)) if have.count(p) < 2 and p not in state.refused]
        if missing:
            return Wishes(launch=missing)
        if len(have) < 2 * len(state.zones):
            return Wishes()
        boots = [m.launched + state.terms.cold_start for m in state.machines if not state.ready(m)]
        return Wishes(rest_until=min((state.now + self.rest, *boots)), ceiling=self.ceiling)


def test_a_rest_changes_no_number_and_ends_with_a_loss(tmp_path: Path) -> None:
    """Ticks at which nobody is asked are counted all at once: readiness, money and losses stay what they are."""
    rooms = [9] * 40 + [1] + [9] * 60
    rows = [
        f"{t * 100},{z},{room if z == 'a' else 9},{0.2 + t % 7 / 10}" for t, room in enumerate(rooms) for z in "ab"
    ]
    found = market.load(trace(tmp_path, *rows, header="time_s,zone,available,spot_price\n"))
    terms = Terms(target=4, spare=0, cold_start=250.0)
    busy, calm = Holder(rest=0.0), Holder(rest=3000.0)
    assert market.play(found, terms, calm).answer() == market.play(found, terms, busy).answer()
    assert 4000.0 in calm.asked
    assert len(calm.asked) < len(busy.asked) / 4


def test_a_rest_ends_when_a_price_reaches_the_ceiling_or_falls_below_it(tmp_path: Path) -> None:
    rows = [f"{t * 100},a,9,{0.95 if 20 <= t < 30 else 0.3}" for t in range(50)]
    found = market.load(trace(tmp_path, *rows, header="time_s,zone,available,spot_price\n"))
    player = Holder(rest=1e6, ceiling=0.9)
    market.play(found, Terms(target=1, spare=0, cold_start=0.0), player)
    assert {2000.0, 3000.0} <= set(player.asked)
    assert not {1900.0, 2100.0, 2900.0, 3100.0} & set(player.asked)


def test_an_extra_goes_where_it_was_wanted_for_and_is_not_ended_again(tmp_path: Path) -> None:
    """What zones that are closed hold counts, too: one more was asked for by that, placed without it, and ended."""
    rooms = {380: "900910100", 1000: "440010000", 1020: "440010000"}
    path = tmp_path / "market.csv"
    lines = [
        f"{at},us-east-1{zone},{room}"
        for at, row in rooms.items()
        for zone, room in zip("abcdefghi", row, strict=True)
    ]
    path.write_text("\n".join(["time_s,zone,available", *lines, ""]))
    terms = Terms(target=6, spare=2, cold_start=0.0)
    answer = market.play(market.load(path), terms, rule("own", SpotPolicy())).answer()
    assert answer["below_target_percent"] == 0
    assert float(answer["spot_launches"]) < 15
