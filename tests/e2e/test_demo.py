"""`make demo` as a test: a whole run, an interrupted one and a killed one. It needs the addresses of the embedded
cloud, so it ends one that runs in this clone."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from decimal import Decimal
from typing import Any

import pytest
from localcloud.lifecycle import processes, sockets
from localcloud.lifecycle.environment import is_ours

from gpufleet.toolchain.folders import ROOT, find_folders
from scripts.demo.recompute import recompute
from tests.fixtures.costs.report_arithmetic import faults

pytestmark = pytest.mark.slow
LIMIT_S = 1200
ZONES = {"aws": ["us-east-1a", "us-east-1b"], "gcp": ["us-central1-a", "us-central1-b"]}
LAST_PLACES = Decimal("0.0000001")
"""The report rounds each row to nine decimals."""
FOLDERS = find_folders(os.environ)


def left() -> list[str]:
    """Processes and listeners of this clone that still exist."""
    found = processes.find_marked(lambda environment: is_ours(environment, FOLDERS))
    return [process.name for process in found]


def work_tree() -> str:
    return subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, timeout=180, check=True
    ).stdout


def demo(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.demo", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "AWS_ACCESS_KEY_ID": "AKIAREALREALREALREAL", "AWS_PROFILE": "production"},
    )


@pytest.fixture
def ended() -> Generator[None]:
    """End what a test leaves, and fail the test when something remains."""
    yield
    end()
    assert left() == []


def end() -> None:
    subprocess.run([sys.executable, "-m", "cli.main", "local", "down"], cwd=ROOT, check=True, timeout=300)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("aws", "processes"), id="aws"),
        pytest.param(("gcp", "processes"), id="gcp"),
        # the control host is replaced in the middle of the run
        pytest.param(("aws", "machine"), id="aws with a control host", marks=pytest.mark.long),
    ],
)
def facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The facts of one whole run on each cloud."""
    cloud, control = request.param
    summary = tmp_path_factory.mktemp("demo") / "summary.json"
    before = work_tree()
    with demo("--cloud", cloud, "--control", control, "--summary", str(summary)) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=180)
            pytest.fail(f"the demo took longer than {LIMIT_S} s:\n{output[-4000:]}")
    if left():
        end()
        pytest.fail(f"the demo left processes behind:\n{output[-4000:]}")
    assert process.returncode == 0, output[-6000:]
    assert work_tree() == before
    facts: dict[str, Any] = json.loads(summary.read_text())
    return facts | {"output": output, "cloud": cloud, "control": control}


def test_pools_start_as_declared(facts: dict[str, Any]) -> None:
    assert facts["instances"] == {"chat": 3, "batch": 2}
    assert facts["reserved"] == 1
    assert facts["spot_zones"] == ZONES[facts["cloud"]]
    assert facts["scraped"] == {"engine": 5, "accelerator": 5, "node": 5}


def test_requests_reach_their_pool_and_none_is_lost(facts: dict[str, Any]) -> None:
    assert facts["requests_by_pool"]["chat"] >= 60
    assert facts["requests_by_pool"]["batch"] == 0
    assert facts["requests_sent"] > 300
    assert facts["requests_failed"] == 0


def test_preempted_instance_drains_and_has_a_fallback_until_spot_is_back(facts: dict[str, Any]) -> None:
    assert {"draining", "drained"} & set(facts["preempted_phases"]), facts["preempted_phases"]
    assert len(facts["fallback"]) == 1
    assert facts["fallback_left"] == 0
    assert facts["failed_during_preemption"] == 0


def test_idle_instance_is_terminated_and_the_one_without_metrics_is_kept(facts: dict[str, Any]) -> None:
    assert facts["ended"] != facts["silenced"]
    assert facts["silenced_reason"] == "metrics missing"
    assert facts["batch_desired"] == [2, 1]
    assert facts["chat_after_idle"] == 3
    assert facts["slack_about_idle"] >= 1


def test_no_instance_is_terminated_twice(facts: dict[str, Any]) -> None:
    ended = re.findall(r"^ *end (\S+): done", facts["output"], re.MULTILINE)
    assert len(ended) >= 2, "the stand-in of spot and the idle one"
    assert sorted(set(ended)) == sorted(ended)


def test_policy_acts_only_after_a_user_saw_its_dry_run(facts: dict[str, Any]) -> None:
    assert facts["unseen_policy_waits"] is True


def test_replaced_control_host_loses_no_state(facts: dict[str, Any]) -> None:
    if facts["control"] == "processes":
        assert "control_hosts" not in facts
        return
    first, second = facts["control_hosts"]
    assert first != second
    assert (facts["brake_kept"], facts["silence_kept"], facts["samples_kept"]) == (True, True, True)
    assert facts["failed_meanwhile"] == 0


def test_next_preview_has_no_changes(facts: dict[str, Any]) -> None:
    assert facts["preview_without_change"] is True


def test_report_adds_up(facts: dict[str, Any]) -> None:
    report = facts["report"]
    total = Decimal(report["total"]["usd"])
    assert total > 0
    for name, rows in report["by"].items():
        assert abs(sum(Decimal(row["usd"]) for row in rows.values()) - total) <= LAST_PLACES, name
    assert abs(recompute(report).usd - total) <= LAST_PLACES
    assert faults(report) == []
    assert facts["slack_reports"] >= 1


def test_report_counts_the_tokens_that_clients_received(facts: dict[str, Any]) -> None:
    """The report also counts warm-ups. It misses tokens after the last scrape of an instance: at most one request
    of each client, for each of the two instances that end under traffic."""
    total = facts["report"]["total"]
    warm_ups = total["tokens"]["generation"] - facts["output_tokens"]
    clients, tokens = 6, 24
    missed = 2 * clients * tokens
    assert -missed < warm_ups <= 8 * total["instances"]


def test_dashboards_show_the_data_of_a_short_run(facts: dict[str, Any]) -> None:
    """Dollars per hour need five minutes of facts: a longer run has them, too."""
    assert facts["dashboard_queries"] > 30
    assert len(facts["empty_queries"]) <= 5
    assert [query for query in facts["empty_queries"] if "gpufleet_spend_" not in query] == []
    drawn = facts["dashboard_queries"] - len(facts["empty_queries"])
    assert f"{drawn} of {facts['dashboard_queries']} queries find data" in facts["output"]


def test_no_secret_is_written_to_a_file(facts: dict[str, Any]) -> None:
    assert facts["secret_found_in"] == []
    assert "AKIAREAL" not in facts["output"]


def test_no_process_listener_or_mount_is_left(facts: dict[str, Any]) -> None:
    assert facts["instances_after_destroy"] == 0
    left_over = facts["left"]
    assert (left_over["processes_left"], left_over["listeners_left"], left_over["mounts_left"]) == (0, 0, 0)
    assert not sockets.find_listeners_in("127.16.0.0/16")


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """The output of the demo up to the line with `words`."""
    output = ""
    assert process.stdout is not None
    for line in process.stdout:
        output += line
        if text in line:
            return output
    pytest.fail(f"the demo never printed {text!r}:\n{output[-3000:]}")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("$ gpufleet local up", id="while the cloud starts"),
        pytest.param("$ gpufleet local status", id="while a command starts", marks=pytest.mark.long),
        pytest.param("$ pulumi up", id="while pulumi works"),
        pytest.param("waiting until every replica", id="while instances boot"),
    ],
)
@pytest.mark.usefixtures("ended")
def test_ctrl_c_leaves_no_process(text: str) -> None:
    with demo() as process:
        read_until(process, text)
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert left() == []


@pytest.mark.usefixtures("ended")
def test_next_command_cleans_up_after_a_kill() -> None:
    with demo() as process:
        read_until(process, "waiting until every replica")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()
    assert left()
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "local", "down", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    counts = json.loads(done.stdout)
    assert counts["processes_ended"] > 0
    assert counts["processes_left"] == 0
