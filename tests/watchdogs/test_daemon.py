"""`gpufleet watch run` as a process: its page, its timeouts, its lease next to cron, and the unit that runs it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import boto3
import pytest

from app.errors import AppError
from app.fleets import load_each
from app.passes import WatchdogKind
from cli.output import Exit
from cli.watch_run import COST, COST_EVERY, EVERY, Daemon
from gpufleet.clouds.aws.notices import queue_name
from gpufleet.domain.activity import CloudError
from gpufleet.domain.policies import OrphanPolicy
from gpufleet.ledger import operations
from gpufleet.ledger.schema import LedgerError, open_ledger
from gpufleet.log_fields import FIELDS
from gpufleet.logs import LogFormat
from gpufleet.settings.document import FleetDocument, parse, render
from gpufleet.toolchain.folders import ROOT
from tests.fixtures.metrics_text import value
from tests.fixtures.moto_account import moto_account
from tests.fixtures.networks import end_process, free_address
from tests.fixtures.prometheus import without_series
from tests.fixtures.secrets import IN_TEXTS, IN_VARIABLES, PASSWORD, check
from tests.fixtures.watchdogs.plain import document
from watchdogs.ports import Ports

LIMIT_S = 120


@pytest.fixture(scope="module")
def cloud() -> Iterator[str]:
    """An EC2 that has no instances."""
    with moto_account() as url:
        yield url


@pytest.fixture
def environment(cloud: str) -> dict[str, str]:
    return os.environ | {
        "AWS_ENDPOINT_URL": cloud,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_REGION": "us-east-1",
        "COLUMNS": "200",
    }


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A fleet with one pool that nothing watches; its Prometheus does not answer."""
    made = document(groups=[], watchdogs={}, target=0)
    path = tmp_path / "fleet.json"
    path.write_text(render(made.model_copy(update={"ledger_url": f"sqlite:///{tmp_path}/ledger.db"})))
    return path


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def gpufleet(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cli.main", *arguments]


@contextmanager
def daemon(fleet: Path, environment: dict[str, str], *more: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    host, port = free_address()
    command = gpufleet("watch", "run", "--fleet", str(fleet), "--listen", f"{host}:{port}", *more)
    log = fleet.with_suffix(".log")
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)
    try:
        end = time.monotonic() + LIMIT_S
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            with socket.socket() as probe:
                if probe.connect_ex((host, port)) == 0:
                    break
            time.sleep(0.05)
        yield process, f"http://{host}:{port}"
    finally:
        if process.poll() is None:
            end_process(process)


def logged(fleet: Path) -> list[dict[str, Any]]:
    """The daemon's whole lines: each is JSON."""
    written = fleet.with_suffix(".log").read_text()
    return [json.loads(line) for line in written[: written.rfind("\n") + 1].splitlines()]


def until_run(url: str, job: str, runs: int = 1) -> dict[str, object]:
    """What the page says of a job once it has run so often."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found = json.loads(get(f"{url}/healthz")[1])["jobs"][job]
        if found["runs"] >= runs:
            return found
        time.sleep(0.1)
    pytest.fail(f"{job} never ran")


def test_the_daemon_reports_its_state_and_stops_on_request(fleet: Path, environment: dict[str, str]) -> None:
    with daemon(fleet, environment, "--apply", "--every", "idle=1s") as (process, url):
        assert until_run(url, "idle aws-test")["error"] is None
        assert until_run(url, "cost aws-test")["error"] is not None, "its Prometheus does not answer"
        status, text = get(f"{url}/healthz")
        assert (status, json.loads(text)["status"]) == (200, "ok"), "a failing source does not require a restart"
        metrics = get(f"{url}/metrics")[1]
        assert value(metrics, "gpufleet_daemon_runs_total", watchdog="idle", fleet="aws-test")
        assert value(metrics, "gpufleet_daemon_failures_total", watchdog="cost", fleet="aws-test") == 1
        calls = "gpufleet_daemon_api_calls_total"
        assert value(metrics, calls, operation="ec2:describe_instances")
        asked = value(metrics, calls, operation="prometheus:/api/v1/query")
        assert asked, "cost asks for them, also of a fleet without pools"
        assert get(f"{url}/")[0] == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=LIMIT_S) == 0
    lines = logged(fleet)
    first, *_, stopping, stopped = (line for line in lines if line["event"] == "process")
    assert (first["outcome"], first["jobs"]["orphans aws-test"]) == ("started", "10m")
    assert (first["without_rules"], first["apply"]) == (["orphans aws-test"], True)
    assert (stopping["outcome"], stopped["outcome"]) == ("stopping", "stopped")
    nothing = [line for line in lines if line["event"] == "pass" and line["outcome"] == "nothing_to_do"]
    assert {"idle", "spot", "scale", "revisions"} <= {line["watchdog"] for line in nothing}
    assert all({*line} <= {*FIELDS} and line["component"] == "daemon" for line in lines)


def test_new_rules_apply_without_a_restart(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pulumi up` rewrites the document while the daemon runs."""
    looked: list[str] = []

    def look(kind: WatchdogKind, *_: object) -> tuple[Exit, list[object]]:
        looked.append(kind.name)
        return Exit.DONE, []

    monkeypatch.setattr("cli.watch_run.over_fleets", look)
    made = parse(fleet.read_text(), str(fleet))
    daemon = Daemon(fleet_urls=(str(fleet),), apply=False)
    (job,) = (job for job in daemon.jobs([made], {**EVERY, COST: COST_EVERY}) if job.name == "orphans aws-test")
    assert job.run() and not looked
    fleet.write_text(render(made.model_copy(update={"orphans": (OrphanPolicy(name="forgotten", owner="ana"),)})))
    assert job.run() and looked == ["orphans"]


@dataclass(frozen=True, slots=True)
class Failing:
    """A watchdog that asks the metrics store, which does not answer, and ends by an error."""

    ports: Ports
    error: Exception | None

    def dry(self) -> NoReturn:
        try:
            self.ports.metrics.query("up", datetime.now(UTC))
        except CloudError as error:
            raise self.error or error from None
        pytest.fail("a server answered")

    apply = dry


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(None, id="not observed"),
        pytest.param(LedgerError("disk full"), id="the ledger"),
        pytest.param(AppError("a bad price"), id="for people to fix"),
        pytest.param(ValueError("no such thing"), id="a fault of ours"),
    ],
)
def test_the_calls_of_a_pass_that_fails_are_counted(fleet: Path, error: Exception | None) -> None:
    kind = WatchdogKind(name="idle", make=lambda _, ports: Failing(ports, error))
    daemon = Daemon(fleet_urls=(str(fleet),), apply=False)
    with suppress(AppError, ValueError):
        assert not daemon._watch(kind, 0)  # pyright: ignore[reportPrivateUsage]
    assert daemon.calls == {"prometheus:/api/v1/query": 1}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        pytest.param("fleet.json", "fleet.json: ", id="the fleet document"),
        pytest.param("ledger.db", "file is not a database", id="the ledger"),
    ],
)
def test_cause_of_a_failed_pass_is_logged(
    fleet: Path, environment: dict[str, str], tmp_path: Path, broken: str, message: str
) -> None:
    with daemon(fleet, environment, "--apply", "--every", "scale=1s") as (_, url):
        until_run(url, "scale aws-test")
        for left in tmp_path.glob(f"{broken}*"):
            left.unlink()
        (tmp_path / broken).write_bytes(b"neither a document nor a database\n" * 200)
        end, found = time.monotonic() + LIMIT_S, list[dict[str, Any]]()
        while not found and time.monotonic() < end:
            time.sleep(0.1)
            failed = (line for line in logged(fleet) if line.get("outcome") == "failed" and message in line["error"])
            found = [line for line in failed if {line.get("job"), line.get("watchdog")} & {"scale aws-test", "scale"}]
    assert found


def test_a_spot_notice_brings_the_next_spot_pass_forward(
    fleet: Path, environment: dict[str, str], cloud: str
) -> None:
    watched = json.loads(fleet.read_text())
    watched["pools"][0]["watchdogs"] = {"spot": {}}
    fleet.write_text(json.dumps(watched))
    sqs = boto3.client(
        "sqs",
        region_name="us-east-1",
        endpoint_url=cloud,
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    queue = sqs.create_queue(QueueName=queue_name("test"))["QueueUrl"]
    with daemon(fleet, environment, "--every", "spot=1h") as (_, url):
        assert until_run(url, "spot aws-test", runs=1)["runs"] == 1, "the next one is due in an hour"
        sqs.send_message(QueueUrl=queue, MessageBody="{}")
        until_run(url, "spot aws-test", runs=2)
    assert [line["count"] for line in logged(fleet) if line["event"] == "spot_notices"] == [1]


@pytest.mark.parametrize("form", LogFormat)
def test_secrets_of_its_environment_and_settings_are_in_no_line(
    form: LogFormat, fleet: Path, environment: dict[str, str]
) -> None:
    lost = json.loads(fleet.read_text()) | {"ledger_url": f"postgresql://gpufleet:{PASSWORD}@127.0.0.1:9/ledger"}
    fleet.write_text(json.dumps(lost))
    planted = IN_VARIABLES | {
        "GPUFLEET_SLACK_TOKEN": IN_TEXTS["Slack token"],
        "GPUFLEET_SLACK_APP_TOKEN": IN_TEXTS["Slack token"].replace("xoxb", "xapp"),
        "GPUFLEET_SLACK_WEBHOOK": IN_TEXTS["Slack webhook"],
        "AWS_SESSION_TOKEN": "a session token without a pattern",
        "GPUFLEET_LOG": form,
    }
    with daemon(fleet, environment | planted, "--apply") as (process, url):
        for job in ("scale aws-test", "cost aws-test", "revisions aws-test"):
            until_run(url, job)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=LIMIT_S)
    check(fleet.with_suffix(".log").read_text(), form, 5)


def test_cron_next_to_the_daemon_reports_it_and_exits_0(
    fleet: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    command = gpufleet("watch", "idle", "--fleet", str(fleet), "--apply", "--quiet")
    first = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (first.returncode, first.stdout, first.stderr) == (0, "", ""), "quiet when nothing happened"
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    span = (datetime.now(UTC), timedelta(minutes=10))
    assert operations.acquire_lease(ledger, "aws/test/us-east-1:idle", "another-host/b/1/2", span) is None
    ledger.dispose()
    second = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert second.returncode == 0
    assert "another idle watchdog is running (another-host/b/1/2" in second.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--every", "idle"], "expected NAME=SPAN", id="no span"),
        pytest.param(
            ["--every", "idel=5s"], "one of idle, spot, scale, orphans, revisions, cost", id="no such watchdog"
        ),
        pytest.param(["--every", "idle=5"], "'5' is not a duration", id="no unit"),
        pytest.param(["--every", "idle=0s"], "expected at least 1s", id="no pause"),
        pytest.param(["--listen", "9470"], "expected HOST:PORT", id="no host"),
    ],
)
def test_usage_error_is_one_line(
    fleet: Path, environment: dict[str, str], arguments: list[str], message: str
) -> None:
    command = gpufleet("watch", "run", "--fleet", str(fleet), *arguments)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_daemon_on_the_same_address_reports_it(fleet: Path, environment: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        command = gpufleet("watch", "run", "--fleet", str(fleet), "--listen", listen)
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    assert done.returncode == 1
    assert "check whether another daemon is running" in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "systemd" / "gpufleet-watch.service").read_text()
    unit = tmp_path / "gpufleet-watch.service"
    # a unit's path holds no blanks, and a clone's may
    program = tmp_path / "gpufleet"
    program.symlink_to(Path(sys.executable).parent / "gpufleet")
    unit.write_text(text.replace("/opt/gpu-fleet/bin/gpufleet", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(text.replace("Restart=always", "Restart=sometimes"))
    refused = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert "sometimes" in refused.stderr, "the check sees mistakes"


def cron_commands() -> list[str]:
    """What the crontab runs: the part of each line behind its five fields."""
    lines = (ROOT / "deploy" / "crontab").read_text().splitlines()
    return [line.split(maxsplit=5)[5] for line in lines if line[:1] == "*" or line[:1].isdigit()]


@pytest.mark.parametrize("command", cron_commands())
def test_a_line_of_the_crontab_runs_and_is_quiet(command: str, fleet: Path, environment: dict[str, str]) -> None:
    with without_series() as url:
        changed = json.loads(fleet.read_text()) | {"prometheus_url": url, "notify": None}
        fleet.write_text(json.dumps(changed))
        bare = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": environment.get("HOME", "/"),
            "GPUFLEET_FLEET": str(fleet),
            **{name: value for name, value in environment.items() if name.startswith("AWS_")},
        }
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd="/",
            env=bare,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_fleet_whose_document_cannot_be_read_stops_no_other(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, and in the middle: its passes begin when it can be read."""
    looked: list[str] = []

    def look(kind: WatchdogKind, documents: Sequence[FleetDocument], *_: object) -> tuple[Exit, list[object]]:
        looked.append(f"{kind.name} {documents[0].environment}")
        return Exit.DONE, []

    monkeypatch.setattr("cli.watch_run.over_fleets", look)
    broken = tmp_path / "broken.json"
    urls = (str(broken), str(fleet))
    daemon = Daemon(fleet_urls=urls, apply=False)
    jobs = {job.name: job for job in daemon.jobs(load_each(urls), {**EVERY, COST: COST_EVERY})}
    with pytest.raises(AppError, match="broken.json"):
        jobs[f"spot {broken}"].run()
    assert jobs["spot aws-test"].run() and looked == ["spot test"]
    broken.write_text(fleet.read_text().replace('"environment": "test"', '"environment": "other"'))
    assert jobs[f"spot {broken}"].run() and looked == ["spot test", "spot other"]
    fleet.write_text("half a docum")
    assert jobs[f"spot {broken}"].run()
    with pytest.raises(AppError, match=fleet.name):
        jobs["spot aws-test"].run()


def test_fleets_of_which_none_can_be_read_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="one.json"):
        load_each([str(tmp_path / "one.json"), str(tmp_path / "two.json")])
