"""The wheel in a bare environment without extras, next to an embedded cloud that runs from the repository."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain import tags
from gpufleet.toolchain.folders import ROOT, find_folders
from scripts.dist import build_wheel
from tests.fixtures.clouds.emulator import (
    RunningCloud,
    make_group,
    make_network,
    make_template,
    start_cloud,
    stop_cloud,
    wait_for,
)
from tests.fixtures.local_token import KEYS
from tests.fixtures.prometheus import without_series
from tests.fixtures.small_fleet import document

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
UV = find_folders(os.environ).tools / "uv"
LIMIT_S = 300
OURS = ("AWS_", "GPUFLEET_", "PYTHON", "UV_PROJECT", "VIRTUAL_ENV")


def run_uv(*arguments: str | Path, **environment: str) -> None:
    done = subprocess.run(
        [UV, *arguments], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The environment of the wheel."""

    folder: Path
    work: Path
    """An empty folder, in which commands run."""

    def call(self, program: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, with nothing of this repository in its own environment."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        kept |= {"HOME": str(self.work), **environment}
        return subprocess.run(
            [self.folder / "bin" / program, *arguments], cwd=self.work, env=kept, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The packages of uv.lock without extras and groups, which uv has in its cache, and the wheel."""
    made = tmp_path_factory.mktemp("wheel")
    environment = made / "environment"
    locked = ("sync", "--frozen", "--no-dev", "--no-install-project", "--quiet", "--python", sys.executable)
    run_uv(*locked, UV_PROJECT_ENVIRONMENT=str(environment))
    wheel = build_wheel(made, str(UV), 1_700_000_000)
    python = environment / "bin" / "python"
    run_uv("pip", "install", "--offline", "--no-deps", "--quiet", "--python", python, wheel)
    run_uv("pip", "check", "--quiet", "--python", python)
    (made / "work").mkdir()
    return Installed(folder=environment, work=made / "work")


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCloud]:
    """A cloud with one instance of pool chat, without metrics."""
    made = start_cloud(tmp_path_factory.mktemp("cloud"))
    try:
        made.network = make_network(made)
        named = {tags.ENVIRONMENT: "dev", tags.POOL: "chat", tags.CAPACITY_TYPE: "on-demand", tags.OWNER: "search"}
        written = [{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in named.items()]
        make_group(made, "chat", make_template(made, "chat"), size=1, Tags=written)
        wait_for("the instance", lambda: made.in_service("chat"))
        yield made
    finally:
        stop_cloud(made)


def environment_of(cloud: RunningCloud) -> dict[str, str]:
    return {
        **KEYS,
        "AWS_ENDPOINT_URL": cloud.places.api_url,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def test_the_help_lists_the_commands(installed: Installed) -> None:
    done = installed.call("gpufleet", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "scan" in done.stdout and "report" in done.stdout


@pytest.mark.parametrize("module", ["localcloud", "pulumi", "psycopg", "matplotlib", "tests", "scripts"])
def test_emulators_and_packages_of_extras_are_not_installed(installed: Installed, module: str) -> None:
    done = installed.call("python", "-c", f"import {module}")
    assert f"No module named '{module}'" in done.stderr


def test_a_scan_finds_and_prices_the_instance(installed: Installed, cloud: RunningCloud) -> None:
    page = installed.work / "scan.html"
    done = installed.call(
        "gpufleet", "scan", "--region", "us-east-1", "--json", "--html", page, **environment_of(cloud)
    )
    found: Any = json.loads(done.stdout)
    (one,) = found["instances"]
    assert one["id"] == cloud.in_service("chat")[0]["InstanceId"]
    assert float(one["usd_per_hour"]) > 0, done.stderr
    assert one["id"] in page.read_text()


def test_a_report_shows_the_cost_of_the_instance(installed: Installed, cloud: RunningCloud) -> None:
    with without_series() as url:
        fleet = document(installed.work, prometheus_url=url)
        collected = installed.call("gpufleet", "watch", "cost", "--fleet", fleet, "--json", **environment_of(cloud))
    assert collected.returncode == 0, collected.stderr
    done = installed.call("gpufleet", "report", "cost", "--since", "1h", "--fleet", fleet, "--json")
    assert done.returncode == 0, done.stderr
    assert {one["resource"] for one in json.loads(done.stdout)["charges"]} == {
        cloud.in_service("chat")[0]["InstanceId"]
    }
    page = installed.work / "cost.html"
    shown = installed.call(
        "gpufleet", "report", "cost", "--since", "1h", "--fleet", fleet, "--format", "html", "--out", page
    )
    assert (shown.returncode, shown.stderr) == (
        0,
        "without charts: matplotlib is not installed; install the extra plots: uv tool install 'gpu-fleet[plots]'\n",
    )


def test_a_command_that_needs_an_extra_names_it_in_one_line(installed: Installed) -> None:
    fleet = document(installed.work, ledger_url="postgresql://ledger@127.0.0.1/ledger")
    done = installed.call("gpufleet", "report", "cost", "--fleet", fleet)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "gpufleet: postgresql://ledger@127.0.0.1/ledger: psycopg is not installed; install the extra postgres:"
        " uv tool install 'gpu-fleet[postgres]'\n",
    )


def test_a_settings_file_is_drafted_and_checked(installed: Installed) -> None:
    drafted = installed.call("gpufleet", "init", "--machine-type", "g6.xlarge", "--out", "Pulumi.aws-dev.yaml")
    assert drafted.returncode == 0, drafted.stderr
    checked = installed.call("gpufleet", "settings", "check", "Pulumi.aws-dev.yaml")
    assert checked.stdout.startswith("Pulumi.aws-dev.yaml: valid"), checked.stderr
