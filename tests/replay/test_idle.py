"""Tests of `replay idle` on small histories whose results can be calculated by hand."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpufleet.domain.policies import IdlePolicy, ScalePolicy
from replay import histories, idle, pools, sizers
from replay.rows import TraceError

HEADER = "time_s,replica,gpu_active,requests_running,requests_waiting,tokens_total"
MINUTE = 60
HOUR = 3600
POLICY = IdlePolicy(
    window=timedelta(minutes=10),
    grace=timedelta(minutes=5),
    min_age=timedelta(minutes=10),
    max_stops_per_day=None,
    stop_price=None,
)


def history(tmp_path: Path, works: dict[str, str], pool: str = "", holes: str = " ") -> Path:
    """Write a history with one character per minute: `#` is work with gpu_active 0.5, `.` is idle, and a space is not
    reported.
    """
    lines = [HEADER + (",pool" if pool else "")]
    tokens = dict.fromkeys(works, 0)
    for tick in range(len(next(iter(works.values())))):
        for replica, work in works.items():
            if work[tick] in holes:
                continue
            busy = work[tick] == "#"
            tokens[replica] += 100 * busy
            end = f",{pool}" if pool else ""
            row = f"{tick * MINUTE},{replica},{0.5 * busy},{int(busy)},0,{tokens[replica]}"
            lines.append(row + end)
    path = tmp_path / "activity.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def alone(path: Path, rule: str = "own", policy: IdlePolicy = POLICY) -> dict[str, str | int | float]:
    found = histories.load_activity(path, policy.gpu_active_below)
    return idle.play(found, idle.rule(rule, found, policy), 180).answer()


def test_an_idle_replica_is_marked_after_its_window_and_ended_after_its_grace(tmp_path: Path) -> None:
    answer = alone(history(tmp_path, {"a": "#" * 20 + "." * 40}))
    assert (answer["stops"], answer["wrong_stops"], answer["wakes"]) == (1, 0, 0)
    # 40 idle minutes minus ten of window, five of grace and one because each pass is late
    assert answer["gpu_hours_saved"] == pytest.approx(25 / 60, abs=1.1 / 60)
    assert answer["gpu_hours"] == pytest.approx(1.0)
    assert answer["gpu_hours_idle"] == pytest.approx(40 / 60)


def test_new_work_removes_the_mark(tmp_path: Path) -> None:
    answer = alone(history(tmp_path, {"a": "#" * 10 + "." * 12 + "#" + "." * 12 + "#" * 5}))
    assert answer["stops"] == 0


def test_work_starts_a_stopped_replica_and_is_unserved_until_it_is_ready(tmp_path: Path) -> None:
    answer = alone(history(tmp_path, {"a": "#" * 5 + "." * 40 + "#" * 15}))
    assert (answer["stops"], answer["wakes"]) == (1, 1)
    assert answer["unserved_percent"] == pytest.approx(100 * 3 / 20)  # three minutes of twenty


@pytest.mark.parametrize("hole", ["." * 25 + "  " + "." * 8, "".join(". "[n % 2] for n in range(40))])
def test_a_sparse_or_old_history_keeps_the_replica(tmp_path: Path, hole: str) -> None:
    """With half of the rows, or rows that stop, idleness cannot be confirmed."""
    works = {"a": "#" * 10 + hole, "b": "#" * (10 + len(hole))}
    path = history(tmp_path, works)
    answer = alone(path, policy=replace(POLICY, coverage=1.0))
    assert answer["stops"] == (0 if "  " not in hole else 1)


def test_a_replica_that_is_never_reported_again_is_kept(tmp_path: Path) -> None:
    answer = alone(history(tmp_path, {"a": "#" * 10 + " " * 50, "b": "#" * 60}))
    assert answer["stops"] == 0


@pytest.mark.filterwarnings("error")
def test_more_requests_than_single_precision_holds_are_work(tmp_path: Path) -> None:
    path = tmp_path / "activity.csv"
    path.write_text(f"{HEADER}\n0,a,0,1e300,0,1\n60,a,0,0,0,1\n")
    assert histories.load_activity(path, POLICY.gpu_active_below).work[:, 0].tolist() == [True, False]


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        pytest.param("#####" + " " * 20, 1, id="the newest row"),
        pytest.param("####." + " " * 20, 1, id="the row before"),
        pytest.param("###.." + " " * 20, 0, id="two rows at rest"),
        pytest.param("###. ." + " " * 20, 0, id="two rows at rest, with one missing between"),
        pytest.param("#####" + "." * 20, 0, id="no row missing"),
    ],
)
def test_a_stop_is_evaluated_by_rows_and_not_by_times_without_one(tmp_path: Path, rows: str, wrong: int) -> None:
    """A timer ignores coverage, so it also stops a replica without reports."""
    answer = alone(history(tmp_path, {"a": rows, "b": "#" * len(rows)}), "timer-15m")
    assert (answer["stops"], answer["wrong_stops"]) == (1, wrong)


@pytest.mark.parametrize("gap", [3 * MINUTE, HOUR], ids=["shorter than the window", "an hour"])
def test_a_gap_in_the_recording_is_not_evidence(tmp_path: Path, gap: int) -> None:
    """The last ten minutes have nine rows. Rows before the gap do not count."""
    path = history(tmp_path, {"a": "#" * 10 + "." * 50})
    lines = path.read_text().splitlines()
    late = [f"{int(time) + gap},{rest}" for time, rest in (line.split(",", 1) for line in lines[19:])]
    path.write_text("\n".join([*lines[:19], *late]) + "\n")
    answer = alone(path)
    assert (answer["stops"], answer["wrong_stops"]) == (1, 0)
    assert answer["gpu_hours"] == 1.0  # a time without any row is not part of the history
    # nine rows after the gap, and five minutes of grace
    assert answer["gpu_hours_saved"] == pytest.approx((60 - 18 - 9 - 5) / 60, abs=1e-6)


def test_a_grace_period_ends_by_time_with_sparse_rows(tmp_path: Path) -> None:
    path = history(tmp_path, {"a": "#" * 10 + "." * 11 + "." * 9})
    lines = path.read_text().splitlines()
    apart = [f"{(20 + 2 * n) * MINUTE},{line.split(',', 1)[1]}" for n, line in enumerate(lines[21:])]
    path.write_text("\n".join([*lines[:21], *apart]) + "\n")
    policy = replace(POLICY, coverage=0.3)
    assert alone(path, policy=policy)["gpu_hours_saved"] == pytest.approx(7 / 60, abs=1e-6)


@pytest.mark.parametrize(
    ("silent", "stops"),
    [
        pytest.param(" " * 500, 0, id="for good"),
        pytest.param(" " * 400 + "." * 100, 1, id="comes back"),
        pytest.param("." * 8 + " .." * 160 + "." * 12, 1, id="too few of its rows, then all"),
    ],
)
def test_a_replica_with_too_few_reports_is_kept(tmp_path: Path, silent: str, stops: int) -> None:
    path = history(tmp_path, {"a": "#" * 510, "b": "#" * 10 + silent})
    assert alone(path)["stops"] == stops


def test_unreported_time_is_not_idle(tmp_path: Path) -> None:
    path = history(tmp_path, {"a": "#" * 10 + "." * 20 + " " * 30, "b": "#" * 60})
    with path.open("a") as file:
        file.write("3600,a,0,,0,1000\n3600,b,0,0,0,6000\n")  # it is unknown whether replica a had a running request
    answer = alone(path)
    assert answer["gpu_hours_idle"] == pytest.approx(21 / 60)
    assert answer["gpu_hours"] == pytest.approx(2 * 61 / 60)


def test_timers_stop_a_replica_after_their_duration(tmp_path: Path) -> None:
    path = history(tmp_path, {"a": "#" * 10 + "." * 80})
    assert alone(path, "timer-15m")["gpu_hours_saved"] == pytest.approx(65 / 60)
    assert alone(path, "timer-60m")["gpu_hours_saved"] == pytest.approx(20 / 60)


def pooled(path: Path, rule: str, cold_start: float = 180) -> dict[str, str | int | float]:
    found = histories.load_activity(path, 0.01)
    scale = ScalePolicy(down_after=timedelta(minutes=10))
    return pools.play(found, lambda pool: pools.rule(rule, pool, POLICY, scale, cold_start), cold_start, 0.8).answer()


@pytest.mark.parametrize("rule", sizers.NAMES)
def test_a_pool_stops_surplus_replicas_and_never_a_working_one(tmp_path: Path, rule: str) -> None:
    works = dict.fromkeys("abcd", "#" * 10 + "." * 290) | {"e": "#" * 300}
    answer = pooled(history(tmp_path, works, pool="p"), rule)
    assert answer["stops"] >= 2  # type: ignore[operator]
    assert answer["wrong_stops"] == 0
    assert answer["unserved_percent"] == 0.0


def test_the_idle_watchdog_names_the_longest_idle_of_a_pool(tmp_path: Path) -> None:
    works = {"a": "." * 30 + "#" * 5 + "." * 5, "b": "#" * 5 + "." * 35, "c": "#" * 20 + "." * 20, "d": "#" * 40}
    found = histories.load_activity(history(tmp_path, works, pool="p"), 0.01)
    player = pools.rule("own", found, POLICY, ScalePolicy(), 180)
    named = [found.replicas[n] for n in player.victims(39, [0, 1, 2, 3], 2)]
    assert named == ["b", "c"]
    # a working replica cannot be a candidate, and if it were one it would be kept
    assert [found.replicas[n] for n in player.victims(39, [3], 1)] == []


def test_load_over_the_ready_capacity_is_unserved(tmp_path: Path) -> None:
    works = dict.fromkeys("abcdefgh", "#" * 10 + "." * 200 + "#" * 20)
    answer = pooled(history(tmp_path, works, pool="p"), "own")
    # 8 × 0.5 against one replica that serves 0.8, for the three minutes of a boot
    assert answer["unserved_percent"] == pytest.approx(100 * 3 * (4 - 0.8) / (30 * 4), rel=0.35)


@pytest.mark.parametrize(
    ("cold_start", "minutes"),
    [pytest.param(0, 0, id="none"), pytest.param(1, 1, id="a second"), pytest.param(60, 1, id="a row")],
)
def test_a_replica_without_cold_start_serves_immediately(tmp_path: Path, cold_start: float, minutes: int) -> None:
    path = history(tmp_path, dict.fromkeys("ab", "#" * 10 + "." * 100 + "#" * 10), pool="p")
    answer = pooled(path, "timer-15m", cold_start)
    assert (answer["stops"], answer["wakes"]) == (1, 1)
    assert answer["unserved_percent"] == pytest.approx(100 * minutes * (1 - 0.8) / 20)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("60,a,0.5,1,0,x", "line 3: tokens_total is 'x'; expected a number"),
        ("60,a,50,1,0,5", "line 3: gpu_active is 50"),
        ("0,a,0.5,1,0,5", "line 3: replica 'a' has two rows"),
        ("60,a,0.5,-1,0,5", "line 3: requests_running is -1"),
        ("-60,a,0.5,1,0,5", "line 3: time_s -60 comes after 0"),
    ],
)
def test_an_invalid_row_is_reported_with_its_line(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "activity.csv"
    path.write_text(f"{HEADER}\n0,a,0.5,1,0,1\n{row}\n120,a,0.5,1,0,9\n")
    with pytest.raises(TraceError, match=message):
        histories.load_activity(path, 0.01)
