"""The real Pulumi engine, the real program, a folder of settings: for tests on the embedded cloud."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from localcloud.places import ACCESS_KEY
from localcloud.provider.install import NAMES, plugin_dir, plugin_version
from localcloud.time_scale import FAST

from gpufleet.toolchain.folders import find_folders
from gpufleet.toolchain.pulumi_cli import find_pulumi
from tests import local_token
from tests.networks import end_process

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "stacks" / "config"
LIMIT_S = 180
START_LIMIT_S = 30
GOOGLE = ("GPUFLEET_COMPUTE_ENDPOINT", "GPUFLEET_SECRETMANAGER_ENDPOINT", "STORAGE_EMULATOR_HOST")
PROJECT = """\
name: gpu-fleet
runtime: {name: python, options: {virtualenv: .venv}}
main: stacks
stackConfigDir: config
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A project of its own around the repository's program: own home, own state, own settings files."""

    folder: Path
    pulumi: Path
    environment: dict[str, str]

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Run the CLI and give what it said; asserts that it fails as told."""
        done = subprocess.run(
            [str(self.pulumi), *arguments, "--non-interactive", "--color=never"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def settings(self, stack: str, config: dict[str, Any] | None = None) -> dict[str, Any]:
        """Take over a shipped settings file, or write another one in its place."""
        place = self.folder / "config" / f"Pulumi.{stack}.yaml"
        chosen = config or yaml.safe_load((SETTINGS / place.name).read_text())
        place.write_text(yaml.safe_dump(chosen, sort_keys=False))
        return chosen

    def outputs(self, stack: str) -> dict[str, Any]:
        return json.loads(self.run("stack", "output", "--json", "--stack", stack))

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            region_name="us-east-1",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=local_token.TOKEN,
        )


def make_engine(folder: Path, network: str, names: Sequence[str] = NAMES) -> Engine:
    """A project in `folder` that speaks to an embedded cloud on that network, with those provider plugins.

    Fails the test without Pulumi.
    """
    pulumi = find_pulumi(find_folders(os.environ))
    if pulumi is None:
        pytest.fail("no Pulumi CLI of the right version; `make setup` brings it")
    (folder / "config").mkdir()
    (folder / "state").mkdir()
    (folder / "Pulumi.yaml").write_text(PROJECT)
    (folder / "stacks").symlink_to(ROOT / "stacks")
    (folder / ".venv").symlink_to(Path(sys.prefix))
    environment = {
        "PATH": f"{pulumi.parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PULUMI_HOME": str(folder / "home"),
        "PULUMI_BACKEND_URL": f"file://{folder}/state",
        "PULUMI_CONFIG_PASSPHRASE": "local",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
        "PULUMI_PYTHON_CMD": sys.executable,
        "AWS_ENDPOINT_URL": f"http://{network}.0.2:4566",
        **local_token.ENVIRONMENT,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        **dict.fromkeys(GOOGLE, f"http://{network}.0.4:4567"),
        # the fleet document names the commit, which others may change while a test runs
        "GIT_DIR": os.devnull,
        # this tree's rooms, whichever tree the Python environment was made for
        "PYTHONPATH": str(ROOT),
    }
    engine = Engine(folder=folder, pulumi=pulumi, environment=environment)
    for name in names:
        plugin = plugin_dir(folder / f"plugin-{name}", sys.executable, name=name)
        engine.run("plugin", "install", "resource", name, plugin_version(name), "-f", str(plugin))
    return engine


@contextmanager
def embedded_cloud(folder: Path, network: str) -> Iterator[None]:
    """The embedded cloud in a process of its own, on addresses of its own."""
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "localcloud.cloud", "--state", str(folder), "--network", network),
                *local_token.options(folder),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, **FAST},
        )
    try:
        _wait_for(f"{network}.0.2", 4566, process)
        yield
    finally:
        end_process(process, START_LIMIT_S)


def _wait_for(host: str, port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        assert process.poll() is None, "the embedded cloud ended"
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"no embedded cloud on {host}:{port} within {START_LIMIT_S} s")
