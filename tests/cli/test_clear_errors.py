"""Errors of commands: each names the option or file, its value and what was expected. None is a traceback."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.errors import AppError, ErrorCode
from cli.commands import build
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import render
from gpufleet.settings.quotas import needs
from tests.fixtures.watchdogs.plain import document


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A document whose ledger exists and is empty."""
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    open_ledger(ledger).dispose()
    return _written(tmp_path / "fleet.json", ledger)


def _written(path: Path, ledger: str) -> Path:
    path.write_text(render(document().model_copy(update={"ledger_url": ledger})))
    return path


def run(*arguments: str | Path) -> str:
    """Run a command. Returns what it prints; raises its AppError."""
    done = CliRunner().invoke(build(), [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["status", "--fleet", ""], "--fleet: expected a file or a URL", id="no fleet"),
        pytest.param(["status", "--fleet", "s3://"], "s3://: the bucket is missing; write s3://BUCKET/KEY", id="s3"),
        pytest.param(["model", "show", "--name", "../x", "--bucket", "."], "--name: .* got '../x'", id="dots"),
        pytest.param(["model", "show", "--name", "A B", "--bucket", "."], "--name: .* got 'A B'", id="space"),
        pytest.param(["model", "show", "--name", "", "--bucket", "."], "--name: expected .* got ''", id="no name"),
        pytest.param(["bootstrap", "dev", "--region", "us-east-1", "--shared-project"], "--shared-project", id="aws"),
        pytest.param(["target", "chat", "3", "--fleet", "x"], "--reason is missing", id="reason"),
        pytest.param(
            ["choose", ".", "--rps", "1", "--input", "1", "--output", "1", "--region", "mars"],
            "--region: 'mars' is not a known region of aws or gcp", id="region",
        ),
    ],
)  # fmt: skip
def test_wrong_use_names_the_option_and_what_was_expected(arguments: list[str], message: str) -> None:
    with pytest.raises(AppError, match=message) as caught:
        run(*arguments)
    assert caught.value.code is ErrorCode.WRONG_USE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["top", "--once", "--pool", "nope"], "--pool: no pool 'nope'; pools: batch", id="pool"),
        pytest.param(["router", "canary", "batch", "--salt", "x"], "--salt, --pool and --apply need", id="salt"),
        pytest.param(
            ["router", "canary", "batch", "500", "--pool", "batch"],
            "the canary is not valid: percent: expected 100 or less, got 500", id="canary",
        ),
        pytest.param(["monitoring", "render", "--p99", "batch"], "--p99 batch: expected POOL=TIME", id="p99"),
        pytest.param(["monitoring", "render", "--p99", "batch=0s"], "--p99 batch=0s: .* above 0s", id="p99 of 0"),
        pytest.param(["monitoring", "render", "--console", "9600"], "--console 9600: expected HOST:PORT", id="port"),
        pytest.param(["monitoring", "render", "--router", "x"], "--router x: expected HOST:PORT", id="router"),
    ],
)  # fmt: skip
def test_wrong_use_of_a_fleet_is_named(fleet: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    out = ["--out", str(tmp_path / "out")] if arguments[0] == "monitoring" else []
    with pytest.raises(AppError, match=message) as caught:
        run(*arguments, "--fleet", fleet, *out)
    assert caught.value.code is ErrorCode.WRONG_USE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "is empty", id="empty"),
        pytest.param('{"version": 1, "x"', "is not complete: the JSON ends at line 1", id="cut off"),
        pytest.param("{x}", "is not JSON: expecting property name .* at line 1, column 2", id="no JSON"),
        pytest.param("[]", "must be a JSON object", id="list"),
        pytest.param("{}", "version: is missing: this is not a fleet document", id="another document"),
        pytest.param('{"version": "1"}', "version: is '1'; this gpufleet reads version 1", id="text as version"),
    ],
)
def test_an_invalid_fleet_document_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(text)
    with pytest.raises(AppError, match=f"fleet.json: {message}"):
        run("report", "cost", "--fleet", file)


@pytest.mark.parametrize("text", ['{"status": 1}', "[]", '{"problems": 3}', "{", ""])
def test_an_invalid_status_of_a_router_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_text(text)
    with pytest.raises(AppError, match=r"status\.json: (is not the status of a router|cannot read)"):
        run("router", "status", "--state", tmp_path)


@pytest.mark.parametrize("command", ["cost", "waste", "savings", "digest"])
def test_a_report_needs_the_ledger_on_this_machine(tmp_path: Path, command: str) -> None:
    file = _written(tmp_path / "fleet.json", f"sqlite:///{tmp_path}/missing/ledger.db")
    with pytest.raises(AppError, match=r"ledger\.db is not on this machine: run this where the watchdogs run"):
        run("report", command, "--fleet", file)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("command", ["waste", "savings"])
def test_an_empty_ledger_is_not_a_fleet_without_waste(fleet: Path, command: str) -> None:
    printed = run("report", command, "--fleet", fleet)
    assert "! the ledger of this environment is empty: run `gpufleet watch cost`" in printed
    assert "nothing was wasted" not in printed
    assert "−0" not in printed


def test_a_bucket_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="nowhere: is not a folder; check --bucket"):
        run("model", "ls", "--bucket", tmp_path / "nowhere")
    assert "no models" in run("model", "ls", "--bucket", tmp_path)


def test_a_model_that_is_not_cached_is_not_verified(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="'nope' is not in the cache .*; models there: none"):
        run("cache", "verify", "nope", "--to", tmp_path)


def test_why_of_a_paused_pool_without_decisions_names_the_pause(fleet: Path) -> None:
    run("pause", "batch", "--reason", "test", "--for", "1h", "--fleet", fleet)
    printed = run("watch", "why", "batch", "--fleet", fleet)
    assert "no decision about 'batch' is recorded" in printed
    assert "paused" in printed
    with pytest.raises(AppError, match="no decision about 'nope' is recorded"):
        run("watch", "why", "nope", "--fleet", fleet)


def test_the_quota_of_an_unknown_machine_type_is_unknown() -> None:
    group: dict[str, Any] = {
        "type": "on-demand", "zone": None, "name": "a", "max": 2, "machine_types": ["zz9.huge"],
    }  # fmt: skip
    made = document(groups=[group], max=2, target=0)
    (need,) = needs(made)
    assert (need.quota, need.unit, need.most, need.for_) == (None, "instances", 2, "zz9.huge on-demand")
