"""Tests of `replay scale` on small histories whose results can be calculated by hand, and of the command itself."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpufleet.domain.policies import ScalePolicy
from replay import histories, requests, sizers
from replay.histories import Arrivals
from replay.requests import RequestTerms
from replay.rows import TraceError
from replay.sizers import EMPTY, Queue

TERMS = RequestTerms(tokens_per_second=100, cold_start=20, max_wait=10)


class Fixed:
    """Always returns the same size."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas

    def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
        del at, demand, ready, running, queue
        return self.replicas


def arrivals(*tokens: float) -> Arrivals:
    return Arrivals(tick=10.0, tokens=np.array(tokens), tokens_per_request=100)


def played(tokens: list[float], replicas: int) -> dict[str, str | int | float]:
    return requests.play(arrivals(*tokens), TERMS, Fixed(replicas), "fixed").answer()  # type: ignore[arg-type]


def test_enough_replicas_miss_nothing_and_cost_their_hours() -> None:
    answer = played([1000] * 36, 1)
    assert answer["slo_missed_percent"] == 0.0
    assert (answer["replica_hours"], answer["cost_ratio"], answer["moves"]) == (0.1, 1.0, 0)


def test_tokens_that_wait_longer_than_allowed_are_counted_once() -> None:
    # 3000 within a tick, 1000 served in each: the last half of them waits for more than ten seconds
    answer = played([1000, 3000, 0, 0, 0], 1)
    assert answer["slo_missed_percent"] == pytest.approx(37.5)


@pytest.mark.parametrize(
    ("max_wait", "late"), [(1, 95), (5, 75), (10, 50), (15, 25), (19.9, 0.5), (20, 0)], ids=lambda number: f"{number}"
)
def test_a_wait_may_be_shorter_than_a_tick(tmp_path: Path, max_wait: float, late: float) -> None:
    path, sizer = tmp_path / "requests.csv", Fixed(1)
    path.write_text("time_s,input_tokens,output_tokens\n0,20,0\n600,0,0\n")
    terms = RequestTerms(tokens_per_second=1, max_wait=max_wait)
    answer = requests.play(histories.load_requests(path, None), terms, sizer, "fixed").answer()  # type: ignore[arg-type]
    assert answer["slo_missed_percent"] == pytest.approx(late, abs=0.5)


@pytest.mark.parametrize(
    ("text", "late"),
    [
        pytest.param("0,10,0\n600,1000000,0\n", 99.0, id="more than can be served in time"),
        pytest.param("0,10,0\n600,10000,0\n", 0.0, id="served in time after the end"),
    ],
)
def test_the_remaining_queue_is_served_after_the_end(tmp_path: Path, text: str, late: float) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("time_s,input_tokens,output_tokens\n" + text)
    terms = RequestTerms(tokens_per_second=1000, max_wait=10)
    score = requests.play(histories.load_requests(path, None), terms, Fixed(1), "fixed")  # type: ignore[arg-type]
    answer = score.answer()
    assert answer["slo_missed_percent"] == pytest.approx(late, abs=0.01)
    assert answer["replica_hours"] == pytest.approx(61 * 10 / 3600, abs=1e-6)


@pytest.mark.parametrize(
    ("cold_start", "late"),
    [pytest.param(0, 0.0, id="none"), pytest.param(1, 100.0, id="a second"), pytest.param(10, 100.0, id="a tick")],
)
def test_a_replica_without_cold_start_serves_immediately(cold_start: float, late: float) -> None:
    """No replica is ready for the work until the second tick."""

    class Late(Fixed):
        def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
            return 4 if at == 10 else 0

    terms = RequestTerms(tokens_per_second=100, cold_start=cold_start, max_wait=0)
    sizer: Any = Late(0)
    assert requests.play(arrivals(0, 4000, 0, 0), terms, sizer, "late").answer()["slo_missed_percent"] == late


def test_tokens_that_are_never_served_are_late() -> None:
    answer = played([1000, 0, 0, 0], 0)
    assert answer["slo_missed_percent"] == 100.0


def test_the_fixed_peak_is_the_fewest_replicas_without_a_late_token() -> None:
    assert requests.fixed_peak(arrivals(1000, 5000, 0, 0), TERMS) == 3
    assert requests.fixed_peak(arrivals(1000, 5000, 0, 0), RequestTerms(tokens_per_second=100, max_wait=0)) == 5


@pytest.mark.parametrize("name", sizers.NAMES)
def test_every_rule_follows_a_day_that_rises_and_falls(name: str) -> None:
    day = [200.0] * 360 + [4000.0] * 360 + [200.0] * 1200
    sizer = sizers.sizer(name, ScalePolicy(), 20)
    answer = requests.play(arrivals(*day), TERMS, sizer, name).answer()
    assert answer["peak_replicas"] >= 4  # type: ignore[operator]
    # pools of the timers have no spare capacity to serve the queue from the boot
    assert (answer["slo_missed_percent"] < 5) == (not name.startswith("timer"))  # type: ignore[operator]
    assert answer["moves"] >= 2  # type: ignore[operator]


def test_requests_and_rates_of_the_same_work_are_the_same_arrivals(tmp_path: Path) -> None:
    one, other = tmp_path / "requests.csv", tmp_path / "rates.csv"
    one.write_text(
        "time_s,input_tokens,output_tokens\n" + "".join(f"{t},80,20\n" for t in range(0, 100) for _ in range(2))
    )
    other.write_text("time_s,rate_rps\n" + "".join(f"{t},2\n" for t in range(0, 100, 10)))
    first, second = histories.load_requests(one, None), histories.load_requests(other, 100)
    assert first.tokens.tolist() == pytest.approx(second.tokens.tolist())


def test_an_invalid_row_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("time_s,input_tokens,output_tokens\n0,1,1\n1,-5,1\n")
    with pytest.raises(TraceError, match="line 3: input_tokens is -5"):
        histories.load_requests(path, None)


@pytest.mark.parametrize(
    ("arguments", "text", "fields"),
    [
        (
            ["spot", "--availability", "FILE", "--target", "1"],
            "time_s,zone,available\n0,a,1\n100,a,1\n200,a,1\n",
            "rule target ticks cost_ratio below_target_percent none_ready_percent on_demand_launches spot_launches"
            " preemptions on_demand_share",
        ),
        (
            ["idle", "--activity", "FILE"],
            "time_s,replica,gpu_active,requests_running,requests_waiting,tokens_total\n0,a,0,0,0,1\n60,a,0.5,1,0,2\n",
            "rule replicas gpu_hours gpu_hours_idle gpu_hours_saved saved_percent stops stops_per_replica_day"
            " wrong_stops wakes unserved_percent net_gpu_hours",
        ),
        (
            ["scale", "--requests", "FILE", "--tokens-per-second-per-replica", "100"],
            "time_s,input_tokens,output_tokens\n0,10,10\n100,10,10\n",
            "rule replica_hours peak_replicas slo_missed_percent moves cost_ratio",
        ),
    ],
    ids=["spot", "idle", "scale"],
)
def test_the_commands_print_exactly_their_fields(
    tmp_path: Path, arguments: list[str], text: str, fields: str
) -> None:
    path, policy = tmp_path / "history.csv", tmp_path / "policy.json"
    path.write_text(text)
    policy.write_text("{}")
    given = [str(path) if word == "FILE" else word for word in arguments]
    command = [sys.executable, "-m", "cli.main", "replay", *given, "--json", "--policy", str(policy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)) == fields.split()
    path.write_text(text + "x\n")
    broken = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert broken.returncode == 1
    assert "line " in broken.stderr and "Traceback" not in broken.stderr


@pytest.mark.parametrize("name", [name for name in sizers.NAMES if name not in ("own", "peak-root")])
@pytest.mark.parametrize(
    ("step", "rate", "size"), [(7, 0.1, 1000), (7, 1.1, 1000), (13.7, 1 / 3, 300)], ids=lambda number: f"{number:.3g}"
)
def test_load_that_exactly_fits_one_replica_requests_no_other(
    tmp_path: Path, name: str, step: float, rate: float, size: float
) -> None:
    """Sums of fractions differ in the last bit; this once caused up to twenty extra replicas."""
    path = tmp_path / "rates.csv"
    path.write_text("time_s,rate_rps\n" + "".join(f"{n * step!r},{rate!r}\n" for n in range(1000)))
    found, terms = histories.load_requests(path, size), RequestTerms(tokens_per_second=rate * size)
    sizer = sizers.sizer(name, ScalePolicy(), terms.cold_start)
    answer = requests.play(found, terms, sizer, name).answer()
    assert (answer["peak_replicas"], answer["moves"], answer["cost_ratio"]) == (1, 0, 1.0)


@pytest.mark.parametrize("name", sizers.NAMES)
def test_rates_of_the_same_work_are_the_same_whenever_they_begin(tmp_path: Path, name: str) -> None:
    """With just enough replicas no token waits, even with the rounding error of Unix times."""
    answers: list[dict[str, str | int | float]] = []
    for begin in (0, 1_700_000_000):
        path = tmp_path / f"{begin}.csv"
        lines = (f"{begin + n * 3.5},{50 if n < 40 else 1}\n" for n in range(80))
        path.write_text("time_s,rate_rps\n" + "".join(lines))
        found, terms = histories.load_requests(path, None), RequestTerms(tokens_per_second=1000, max_wait=0)
        sizer = sizers.sizer(name, ScalePolicy(), terms.cold_start)
        answers.append(requests.play(found, terms, sizer, name).answer())
    assert answers[0] == answers[1]
    assert answers[0]["slo_missed_percent"] == 0.0


def test_a_queue_is_served_without_excess_replicas() -> None:
    """Ten minutes at ten times the load: the rule requests more than the load needs only until the queue is empty."""
    day = [500.0] * 360 + [10_000.0] * 60 + [500.0] * 360
    sizer = sizers.sizer("own", ScalePolicy(), 180)
    terms = RequestTerms(tokens_per_second=100, cold_start=180, max_wait=10)
    answer = requests.play(arrivals(*day), terms, sizer, "own").answer()
    # ten replicas serve the load; the queue of a three-minute boot needs the same number for three minutes
    assert 10 < answer["peak_replicas"] <= 32  # type: ignore[operator]


def test_later_requests_do_not_affect_earlier_decisions(tmp_path: Path) -> None:
    """Later requests once affected earlier decisions: the request size was the mean of the whole history, and the
    queue length depends on it.
    """

    @dataclass
    class Noted:
        sizer: sizers.Sizer
        seen: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

        def target(self, at: float, demand: float, ready: int, running: int, queue: Queue = EMPTY) -> int:
            found = self.sizer.target(at, demand, ready, running, queue)
            self.seen.append((queue.requests, found))
            return found

    path, played = tmp_path / "requests.csv", list[list[tuple[float, int]]]()
    early = "".join(f"{t},{900 if t < 300 else 9000},100\n" for t in range(0, 600, 3))
    for later in ("", "".join(f"{t},10,0\n" for t in range(600, 900))):
        path.write_text("time_s,input_tokens,output_tokens\n" + early + later)
        found = histories.load_requests(path, None)
        rule: Any = Noted(sizers.sizer("own", ScalePolicy(), 180))
        requests.play(found, RequestTerms(tokens_per_second=500), rule, "own")
        played.append(rule.seen)
    assert max(queue for queue, _ in played[0]) > 1
    assert played[0] == played[1][: len(played[0])]


def test_the_size_of_a_request_is_the_mean_of_those_that_came(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("time_s,input_tokens,output_tokens\n0,10,10\n1,20,20\n15,100,0\n45,1,1\n")
    found = histories.load_requests(path, None).tokens_per_request
    assert np.asarray(found).tolist() == pytest.approx([1000, 30, 160 / 3, 160 / 3, 160 / 3])
    assert histories.load_requests(path, 7.0).tokens_per_request == 7.0
