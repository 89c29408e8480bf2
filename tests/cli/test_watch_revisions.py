"""`gpufleet watch revisions`, for fleets whose watchdogs run in cron or in a function."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.errors import AppError
from cli import serverless
from cli.commands import build
from gpufleet.toolchain.folders import ROOT
from serving.cache.store import FolderStore
from tests.fixtures.model_document import DOCUMENT
from tests.fixtures.rollouts import NEW, POOL


def fleet_in(folder: Path, **more: Any) -> str:
    (folder / "bucket").mkdir()
    bucket = f"file://{folder / 'bucket'}"
    (folder / "fleet.json").write_text(json.dumps({**DOCUMENT, "bucket": bucket, "pools": [POOL], **more}))
    return str(folder / "fleet.json")


def test_cron_runs_all_that_the_daemon_runs() -> None:
    """A rollout waits for the job `revisions`: without it, a fleet without a daemon would wait forever."""
    lines = (ROOT / "deploy" / "crontab").read_text()
    assert all(f"gpufleet watch {name} --apply --quiet" in lines for name in ("idle", "spot", "scale", "revisions"))


def test_fleet_without_a_rollout_needs_no_action_and_quiet_prints_nothing(tmp_path: Path) -> None:
    url = fleet_in(tmp_path)
    done = CliRunner().invoke(build(), ["watch", "revisions", "--apply", "--quiet", "--fleet", url])
    assert (done.exit_code, done.output) == (0, "")


@pytest.mark.parametrize("by", ["cron", "function"])
def test_unreadable_input_fails_with_an_error(tmp_path: Path, by: str) -> None:
    url = fleet_in(tmp_path, ledger_url="postgresql://u@ledger.internal/x", prometheus_url="http://10.0.0.2:9090")
    (tmp_path / "bucket/models/chat").mkdir(parents=True)
    FolderStore(tmp_path / "bucket").put_bytes("models/chat/served.json", b"{")
    if by == "cron":
        done = CliRunner().invoke(build(), ["watch", "revisions", "--apply", "--quiet", "--fleet", url])
        assert done.exit_code == 1
        assert "revisions: " in done.output and "models/chat" in done.output
    else:
        with pytest.raises(serverless.PassFailedError, match="revisions: .*models/chat"):
            serverless.handler({"watchdog": "revisions", "apply": True, "fleet": [url]})


def test_job_of_the_daemon_and_command_share_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same lease, so that cron and a daemon together still change one instance at a time."""
    seen: list[str] = []

    def wire(_document: object, lease: str, holder: str | None = None) -> None:
        seen.append(lease)
        raise AppError("no further")

    monkeypatch.setattr("app.wiring.wire", wire)
    url = fleet_in(tmp_path)
    (tmp_path / "bucket/models/chat").mkdir(parents=True)
    served = {"version": 1, "digest": NEW, "changes_running": True}
    FolderStore(tmp_path / "bucket").put_bytes("models/chat/served.json", json.dumps(served).encode())
    done = CliRunner().invoke(build(), ["watch", "revisions", "--apply", "--fleet", url])
    assert (done.exit_code, seen) == (1, ["revisions"])
