"""The smallest real `up` and `destroy`, in an account of yours. Off by default.

GPUFLEET_LIVE=aws-dev GPUFLEET_LIVE_USD_PER_MONTH=200 pytest tests/live

uses `stacks/config/Pulumi.aws-dev.yaml` as you have filled it in, but starts no GPU: every pool's target is 0, its
maximum 1. The cost is printed first; without GPUFLEET_LIVE_USD_PER_MONTH, or above it, nothing is made. The state
is stored in `.local/live/<stack>` until the destroy has succeeded, so that no resource is forgotten.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.toolchain.folders import ROOT

STACK = os.environ.get("GPUFLEET_LIVE", "")
ALLOWED = os.environ.get("GPUFLEET_LIVE_USD_PER_MONTH", "")
LIMIT_S = 1800

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(not STACK, reason="touches a real account: set GPUFLEET_LIVE=aws-dev"),
]


def smallest(config: dict[str, Any]) -> dict[str, Any]:
    """The settings with no instance wanted and one allowed, and nothing that a destroy would have to be asked for."""
    for pool in config["config"]["gpu-fleet:fleet"]["pools"]:
        pool.update({"target": 0, "min": 0, "max": 1, "spare": 0})
        pool["capacity"].pop("reserved", None)
        if on_demand := pool["capacity"].get("on_demand"):
            on_demand["max"] = 1
        pool["watchdogs"].pop("scale", None)
    return config


class Project:
    """A project of its own around the repository's program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "config").mkdir(parents=True, exist_ok=True)
        (folder / "state").mkdir(exist_ok=True)
        for name, target in {"stacks": ROOT / "stacks", ".venv": Path(sys.prefix)}.items():
            if not (folder / name).exists():
                (folder / name).symlink_to(target)
        (folder / "Pulumi.yaml").write_text(
            "name: gpu-fleet\nruntime: {name: python, options: {virtualenv: .venv}}\n"
            "main: stacks\nstackConfigDir: config\n"
        )
        settings = yaml.safe_load((ROOT / "stacks" / "config" / f"Pulumi.{STACK}.yaml").read_text())
        (folder / "config" / f"Pulumi.{STACK}.yaml").write_text(yaml.safe_dump(smallest(settings)))

    def pulumi(self, *arguments: str) -> str:
        done = subprocess.run(
            ["pulumi", *arguments, "--stack", STACK, "--non-interactive", "--color=never"],
            cwd=self.folder,
            env=os.environ
            | {
                "PULUMI_BACKEND_URL": f"file://{self.folder}/state",
                "PULUMI_CONFIG_PASSPHRASE": os.environ.get("PULUMI_CONFIG_PASSPHRASE", "live"),
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def project() -> Iterator[Project]:
    if shutil.which("pulumi") is None:
        pytest.fail("no pulumi on PATH")
    folder = ROOT / ".local" / "live" / STACK
    yield Project(folder)
    if not json.loads((folder / "left.json").read_text() if (folder / "left.json").exists() else "[]"):
        shutil.rmtree(folder)


def test_up_and_destroy(project: Project) -> None:
    left = project.folder / "left.json"
    left.write_text('["not destroyed yet"]')
    project.pulumi("stack", "select", "--create")
    preview = project.folder / "preview.json"
    preview.write_text(project.pulumi("preview", "--json", "--show-sames"))
    priced = subprocess.run(
        [sys.executable, "-m", "cli.main", "plan-cost", str(preview), "--fail-over", ALLOWED or "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    sys.stderr.write(priced.stdout + priced.stderr)
    if priced.returncode != 0 or not ALLOWED:
        left.write_text("[]")
        pytest.fail(
            "nothing was made. Read the cost above, then set GPUFLEET_LIVE_USD_PER_MONTH to what you allow:\n"
            + priced.stdout
            + priced.stderr
        )
    try:
        project.pulumi("up", "--yes", "--skip-preview")
        project.pulumi("preview", "--expect-no-changes")
        project.pulumi("refresh", "--yes", "--skip-preview")
        project.pulumi("preview", "--expect-no-changes")
    finally:
        project.pulumi("state", "unprotect", "--all", "--yes")
        project.pulumi("destroy", "--yes", "--skip-preview")
        left.write_text("[]")
