"""The Lambda handler and the Cloud Run job: the same pass, on PostgreSQL."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app import adapters as ports
from app.errors import AppError
from app.fleets import load
from cli import serverless, watch_cost
from cli.commands import build
from cli.output import Exit
from cli.serverless import PassFailedError, handler
from gpufleet.ledger import operations
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import FleetDocument, render
from gpufleet.toolchain.folders import ROOT
from tests.fixtures.moto_account import moto_account
from tests.fixtures.postgres import running
from tests.fixtures.prometheus import without_series
from tests.fixtures.watchdogs.plain import document
from watchdogs.idle.watchdog import IdleWatchdog, Pass


@pytest.fixture(scope="module")
def cloud() -> Iterator[str]:
    with moto_account() as url:
        yield url


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    # a short path for its socket, in a folder that the server's user reaches
    with tempfile.TemporaryDirectory(prefix="gpufleet-pg-") as folder:
        Path(folder).chmod(0o755)
        with running(Path(folder) / "pg") as url:
            yield url


def fleet_file(folder: Path, **changes: str) -> str:
    made: FleetDocument = document(groups=[], watchdogs={}, target=0)
    path = folder / "fleet.json"
    path.write_text(render(made.model_copy(update={"prometheus_url": "http://10.9.9.9:9090", **changes})))
    return str(path)


@pytest.fixture
def account(cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": cloud,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("account")
def test_lambda_runs_a_pass_and_the_loser_of_two_reports_it(tmp_path: Path, database: str) -> None:
    event: dict[str, Any] = {
        "watchdog": "idle",
        "apply": True,
        "fleet": [fleet_file(tmp_path, ledger_url=database)],
    }
    answer = handler(event)
    assert (answer["watchdog"], answer["applied"]) == ("idle", True)
    assert answer["fleets"][0]["environment"] == "test"
    assert answer["fleets"][0]["api_calls"]["ec2:describe_instances"] >= 1
    json.dumps(answer)

    ledger = open_ledger(database)
    span = (datetime.now(UTC), timedelta(minutes=10))
    assert operations.acquire_lease(ledger, "aws/test/us-east-1:idle", "elsewhere/b/1/2", span) is None
    assert "elsewhere" in handler(event)["fleets"][0]["skipped"]
    operations.release_lease(ledger, "aws/test/us-east-1:idle", "elsewhere/b/1/2")
    ledger.dispose()


@pytest.mark.usefixtures("account")
def test_a_second_function_leaves_the_lease_to_the_first(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are `localhost` and process 1, in machines of their own that began at different moments."""
    event = {"watchdog": "idle", "apply": True, "fleet": [fleet_file(tmp_path, ledger_url=database)]}
    began: list[str] = []
    seen: list[str] = []

    def at_work(watchdog: IdleWatchdog) -> Pass:
        began.append("at work")
        if len(began) == 1:
            monkeypatch.setattr(ports, "_boot", lambda: "second boot")
            seen.append(handler(event)["fleets"][0].get("skipped", ""))
        return watchdog.dry()

    monkeypatch.setattr(ports, "_boot", lambda: "first boot")
    monkeypatch.setattr(IdleWatchdog, "apply", at_work)
    handler(event)
    assert began == ["at work"] and seen[0].startswith("function/")


@pytest.mark.usefixtures("account")
def test_a_pass_that_fails_is_an_error_of_the_function(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for watchdog in ("idle", "cost"):
        with pytest.raises(PassFailedError, match=f"{watchdog}: .*describe_instances"):
            handler({"watchdog": watchdog, "fleet": [fleet_file(tmp_path, ledger_url=database)]})


@pytest.mark.usefixtures("account")
def test_a_cost_pass_reports_what_it_wrote_and_read(tmp_path: Path, database: str) -> None:
    with without_series() as url:
        made = load([fleet_file(tmp_path, ledger_url=database, prometheus_url=url)])
        counted: dict[str, int] = {}
        code, [answer] = watch_cost.over_fleets(made, show=False, count=counted.update)
        arguments = ["watch", "cost", "--apply", "--json", "--fleet", str(tmp_path / "fleet.json")]
        result = CliRunner().invoke(build("watch"), arguments)
    json.dumps(answer)
    assert result.exit_code == Exit.DONE, "one crontab line for all watchdogs"
    assert json.loads(result.stdout)[0].keys() == answer.keys()
    assert (code, answer["environment"], answer["notes"]) == (Exit.DONE, "test", ())
    assert answer["api_calls"] == counted
    assert counted["ec2:describe_instances"] == 1
    assert counted["prometheus:/api/v1/query"] >= 1


@pytest.mark.usefixtures("account")
def test_a_cost_pass_without_metrics_reports_it(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serverless, "reachable", lambda _: None)
    made = fleet_file(tmp_path, ledger_url=database, prometheus_url="http://127.0.0.1:9")
    with pytest.raises(PassFailedError, match=r"cost: .*metrics.*refused"):
        handler({"watchdog": "cost", "fleet": [made]})


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        pytest.param({}, "watchdog '': expected one of idle, spot", id="no watchdog"),
        pytest.param({"watchdog": "idel"}, "watchdog 'idel': expected one of", id="no such watchdog"),
        pytest.param({"watchdog": "idle", "aply": True}, "unknown key aply", id="a slip of the pen"),
        pytest.param(
            {"watchdog": "idle", "apply": "no"}, "apply: expected true or false, got 'no'", id="a word that is true"
        ),
        pytest.param({"watchdog": "idle", "fleet": "s3://b"}, "expected a list", id="one fleet"),
    ],
)
def test_a_wrong_event_does_nothing(event: dict[str, Any], arguments: str) -> None:
    with pytest.raises(AppError, match=arguments):
        handler(event)


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        pytest.param({"ledger_url": "sqlite:///x.db"}, "does not have a persistent disk", id="SQLite"),
        pytest.param(
            {"ledger_url": "postgresql://x/y", "prometheus_url": "http://127.0.0.1:9090"},
            "a function cannot reach",
            id="Prometheus on loopback",
        ),
    ],
)
def test_a_fleet_that_a_function_cannot_watch_is_refused(
    tmp_path: Path, changes: dict[str, str], arguments: str
) -> None:
    with pytest.raises(AppError, match=arguments):
        handler({"watchdog": "idle", "fleet": [fleet_file(tmp_path, **changes)]})


def test_a_cloud_run_job_prints_json_and_exits_0(tmp_path: Path, database: str, cloud: str) -> None:
    environment = os.environ | {
        "AWS_ENDPOINT_URL": cloud,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_REGION": "us-east-1",
        "GPUFLEET_FLEET": fleet_file(tmp_path, ledger_url=database),
    }
    command = [sys.executable, "-m", "cli.serverless", "spot"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fleets"][0]["watchdog"] == "spot"


def test_a_cloud_run_job_without_a_watchdog_is_a_mistake() -> None:
    assert serverless.main([]) == 2
