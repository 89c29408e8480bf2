"""`python -m scripts.plan_stacks --out FOLDER`: creates the plan of each real environment without a cloud account.

The engine plans a new stack with its own state and the local providers; such a preview needs no cloud. So a plan
contains everything in the environment, not the difference to the running one. CI passes these files to
`scripts.judge_pull_request` of the base branch.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from localcloud.addresses import ACCESS_KEY
from localcloud.provider.install import NAMES, plugin_dir, plugin_version

from gpufleet.toolchain.folders import ROOT, find_folders
from gpufleet.toolchain.pulumi_cli import find_pulumi

LIMIT_S: Final = 300
LOCAL: Final = "-local"
PREFIX: Final = "Pulumi."
PROJECT: Final = """\
name: gpu-fleet
runtime: {name: python, options: {virtualenv: .venv}}
main: stacks
stackConfigDir: config
"""
GOOGLE: Final = ("GPUFLEET_COMPUTE_ENDPOINT", "GPUFLEET_SECRETMANAGER_ENDPOINT", "STORAGE_EMULATOR_HOST")
TOKEN: Final = "GPUFLEET_EMULATOR_TOKEN"
"""The local providers require these variables, even if they send no request."""
NOWHERE: Final = "http://127.0.0.1:9"
"""No process listens at this address, so a program that calls a cloud fails immediately."""


class PlanError(Exception):
    """A plan could not be created. The message contains its name and the reason."""


def stacks_in(folder: Path) -> tuple[str, ...]:
    """Return the environments with settings in a folder, without the embedded ones."""
    names = (path.name.removeprefix(PREFIX).removesuffix(".yaml") for path in folder.glob(f"{PREFIX}*.yaml"))
    return tuple(sorted(name for name in names if not name.endswith(LOCAL)))


def plan(stacks: Sequence[str], settings: Path, out: Path) -> None:
    """Write `STACK.json` for each stack into `out`. Raises PlanError, OSError."""
    pulumi = find_pulumi(find_folders(os.environ))
    if pulumi is None:
        raise PlanError("there is no Pulumi CLI of the right version: run `make setup`")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpufleet-plan-") as name:
        project = Path(name)
        (project / "state").mkdir()
        (project / "Pulumi.yaml").write_text(PROJECT, "utf-8")
        shutil.copytree(settings, project / "config")  # the engine changes the settings of a new stack
        (project / "stacks").symlink_to(ROOT / "stacks")
        (project / ".venv").symlink_to(Path(sys.prefix))
        engine = _Engine(pulumi, project)
        for package in NAMES:
            folder = plugin_dir(project / f"plugin-{package}", sys.executable, name=package, plans_only=True)
            engine.run("plugin", "install", "resource", package, plugin_version(package), "-f", str(folder))
        for stack in stacks:
            engine.run("stack", "init", stack)
            text = engine.run("preview", "--stack", stack, "--json", "--show-sames")
            (out / f"{stack}.json").write_text(text, "utf-8")


class _Engine:
    def __init__(self, pulumi: Path, project: Path) -> None:
        self._pulumi, self._project = pulumi, project
        nothing = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TMPDIR", "TZ")}
        self._environment = nothing | {
            "PATH": f"{pulumi.parent}:{os.environ.get('PATH', '')}",
            "HOME": str(project),
            "PULUMI_HOME": str(project / "home"),
            "PULUMI_BACKEND_URL": f"file://{project}/state",
            "PULUMI_CONFIG_PASSPHRASE": "plan",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
            "PULUMI_PYTHON_CMD": sys.executable,
            "AWS_ENDPOINT_URL": NOWHERE,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_EC2_METADATA_DISABLED": "true",
            TOKEN: "none",
            **dict.fromkeys(GOOGLE, NOWHERE),
            "PYTHONPATH": str(ROOT),
        }

    def run(self, *arguments: str) -> str:
        """Run a command and return its stdout. Raises PlanError."""
        doing = f"pulumi {' '.join(arguments[:3])}"
        try:
            done = subprocess.run(
                [str(self._pulumi), *arguments, "--non-interactive", "--color=never"],
                cwd=self._project,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PlanError(f"{doing}: not done in {LIMIT_S} s") from error
        if done.returncode != 0:
            raise PlanError(f"{doing} failed ({done.returncode}):\n{(done.stdout + done.stderr).strip()[-4000:]}")
        return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code. 0: all plans were created. 1: one was not."""
    parser = argparse.ArgumentParser(description="Plan each real environment without a cloud account.")
    parser.add_argument("--out", type=Path, required=True, help="folder for STACK.json")
    parser.add_argument("--settings", type=Path, default=ROOT / "stacks" / "config", help="folder of settings files")
    parser.add_argument("--stack", action="append", help="this one alone; may be repeated")
    given = parser.parse_args(arguments)
    stacks: Sequence[str] = given.stack or stacks_in(given.settings)
    try:
        plan(stacks, given.settings, given.out)
    except (PlanError, OSError) as error:
        print(f"plan: {error}", file=sys.stderr)
        return 1
    print(f"plan: {len(stacks)} plans in {given.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
