"""Tests of recorded replicas in run-length form, as `gpufleet replay idle` reads them."""

import gzip
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli import replay
from replay import runs
from replay.rows import TraceError

RUNS = "replica,start_s,ticks,working\na,0,2,1\na,120,2,0\nb,0,1,0\nb,60,1,\nb,120,1,0\nb,180,1,1\n"
DEMAND = "time_s,gpu_active_sum,reporting\n0,0.5,2\n60,0.25,1\n120,0,2\n180,3,2\n"


def written(folder: Path, runs_text: str = RUNS, demand: str = DEMAND) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((runs.RUNS, runs_text), (runs.DEMAND, demand)):
        with gzip.open(folder / name, "wt", encoding="utf-8") as file:
            file.write(text)
    return folder


@pytest.mark.parametrize("below", ["", runs.AMONG_OTHERS], ids=["itself", "among other histories"])
def test_runs_become_what_each_replica_did_at_each_tick(tmp_path: Path, below: str) -> None:
    written(tmp_path / below)
    found = runs.load_runs(tmp_path)
    assert list(found.replicas) == ["a", "b"] and found.step == 60 and found.pools is None
    assert found.work.T.tolist() == [[True, True, False, False], [False, False, False, True]]
    assert found.reported.T.tolist() == [[True] * 4, [True, False, True, True]]
    # replicas that work at the same time share the sum equally; none exceeds a whole GPU
    assert found.active.T.tolist() == [[0.5, 0.25, 0, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("runs_text", "demand", "wrong"),
    [
        pytest.param(
            RUNS + "a,180,2,0\n", DEMAND, "line 8: the run of replica 'a' ends at tick 5 of 4", id="too long"
        ),
        pytest.param(RUNS + "a,60,1,0\n", DEMAND, "line 8: the run of replica 'a' overlaps", id="twice"),
        pytest.param(RUNS.replace(",1\n", ",x\n", 1), DEMAND, "working is 'x'", id="no number"),
        pytest.param(RUNS, DEMAND.replace("120,", "60,"), "time_s must increase", id="a time twice"),
    ],
)
def test_an_invalid_run_is_reported(tmp_path: Path, runs_text: str, demand: str, wrong: str) -> None:
    written(tmp_path, runs_text, demand)
    with pytest.raises(TraceError, match=wrong):
        runs.load_runs(tmp_path)


def test_a_folder_without_runs_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"runs\.csv\.gz is missing"):
        runs.load_runs(tmp_path)


def test_the_command_replays_the_available_folder_of_histories(tmp_path: Path) -> None:
    day = "replica,start_s,ticks,working\na,0,10,1\na,600,490,0\n"
    demand = "time_s,gpu_active_sum\n" + "".join(f"{60 * tick},{int(tick < 10)}\n" for tick in range(500))
    written(tmp_path / runs.AMONG_OTHERS, day, demand)
    app = typer.Typer()
    replay.register(app)
    arguments = ["replay", "idle", "--json", "--cold-start", "0"]
    done = CliRunner(env={"GPUFLEET_HISTORIES": str(tmp_path)}).invoke(app, arguments)
    answer = json.loads(done.stdout)
    assert (answer["stops"], answer["wrong_stops"]) == (1, 0)
    assert set(answer["net_gpu_hours"]) == {"30m", "1h"}
    at_30 = answer["net_gpu_hours"]["30m"]
    assert at_30["foresight"] == pytest.approx((490 - 30) / 60)
    assert at_30["own"] == pytest.approx((490 - 45 - 30) / 60, abs=3 / 60)
    printed = CliRunner(env={"GPUFLEET_HISTORIES": str(tmp_path)}).invoke(app, [*arguments[:2], *arguments[3:]])
    assert "net GPU-hours, if each stop costs 30m" in printed.stdout and "best_timer_minutes" in printed.stdout
