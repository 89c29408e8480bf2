"""Runs the real Pulumi engine and an unmodified program on the local provider, against an AWS server on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from localcloud.addresses import ACCESS_KEY
from localcloud.provider.install import plugin_dir, plugin_version
from localcloud.time_scale import FAST

from gpufleet.toolchain.folders import find_folders
from gpufleet.toolchain.pulumi_cli import find_pulumi
from tests.fixtures import local_token
from tests.fixtures.networks import end_process, free_network

pytestmark = pytest.mark.slow

_LIMIT_S = 600
_START_LIMIT_S = 120

_PROGRAMS = Path(__file__).with_name("programs")
_POOL = (_PROGRAMS / "pool.py").read_text(encoding="utf-8")
_EVERYTHING = (_PROGRAMS / "everything.py").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A Pulumi project in its own folder, with its own home, state and cloud."""

    pulumi: Path
    folder: Path
    environment: dict[str, str]

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Run the CLI and return its output. The exit code must match `fails`."""
        done = subprocess.run(
            [str(self.pulumi), *arguments, "--non-interactive"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def up(self, **kwargs: bool) -> str:
        return self.run("up", "--yes", "--skip-preview", "--color=never", **kwargs)

    def program(self, text: str) -> None:
        (self.folder / "__main__.py").write_text(text, encoding="utf-8")

    def outputs(self) -> dict[str, Any]:
        return json.loads(self.run("stack", "output", "--json"))

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            region_name="us-east-1",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=local_token.TOKEN,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedCloud:
    """The embedded AWS emulator of this project, on separate addresses."""

    network: str
    endpoint: str


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCloud]:
    folder = tmp_path_factory.mktemp("cloud")
    network = free_network()
    ready = folder / "state" / "cloud.json"
    command = [sys.executable, "-m", "localcloud.cloud", "--state", str(ready.parent), "--network", network]
    command += local_token.options(folder)
    with (folder / "cloud.log").open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **FAST}
        )
        try:
            end = time.monotonic() + _START_LIMIT_S
            while not ready.exists():
                assert process.poll() is None, (folder / "cloud.log").read_text()
                assert time.monotonic() < end, f"no embedded cloud within {_START_LIMIT_S} s"
                time.sleep(0.1)
            yield EmbeddedCloud(network=network, endpoint=json.loads(ready.read_text())["api"])
        finally:
            end_process(process, _START_LIMIT_S)


@pytest.fixture(scope="module")
def pulumi_home(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the CLI and a private home with the local provider installed."""
    pulumi = find_pulumi(find_folders(os.environ))
    if pulumi is None:
        pytest.skip("no Pulumi CLI of the right version; run `make setup`")
    home = tmp_path_factory.mktemp("pulumi home")
    plugin = plugin_dir(home / "made here", sys.executable)
    environment = {**os.environ, "PULUMI_HOME": str(home), "PULUMI_SKIP_UPDATE_CHECK": "true"}
    command = [str(pulumi), "plugin", "install", "resource", "aws", plugin_version(), "-f", str(plugin)]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=_LIMIT_S)
    return pulumi, home


@pytest.fixture
def stack(tmp_path: Path, cloud: EmbeddedCloud, pulumi_home: tuple[Path, Path]) -> Iterator[Stack]:
    pulumi, home = pulumi_home
    folder, state = tmp_path / "program", tmp_path / "state"
    folder.mkdir()
    state.mkdir()
    runtime = {"name": "python", "options": {"virtualenv": sys.prefix}}
    (folder / "Pulumi.yaml").write_text(json.dumps({"name": "proof", "runtime": runtime}), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PULUMI_"))} | {
        "AWS_ENDPOINT_URL": cloud.endpoint,
        **local_token.ENVIRONMENT,
        "AWS_REGION": "us-east-1",
        "PATH": f"{pulumi.parent}:{os.environ['PATH']}",
        "PULUMI_BACKEND_URL": state.as_uri(),
        "PULUMI_CONFIG_PASSPHRASE": "test",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_HOME": str(home),
        "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }
    made = Stack(pulumi=pulumi, folder=folder, environment=environment)
    made.run("stack", "init", "test")
    yield made
    made.run("destroy", "--yes", "--skip-preview")


def _desired(stack: Stack, group: str) -> int:
    answer = stack.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])
    return answer["AutoScalingGroups"][0]["DesiredCapacity"]


def _assert_nothing_left(stack: Stack) -> None:
    assert stack.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []
    ec2 = stack.client("ec2")
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []
    reservations = ec2.describe_instances()["Reservations"]
    assert {i["State"]["Name"] for r in reservations for i in r["Instances"]} <= {"terminated"}


def test_size_written_by_a_watchdog_survives_refresh_preview_and_a_new_template(stack: Stack) -> None:
    stack.program(_POOL)
    stack.up()
    outputs = stack.outputs()
    assert outputs["version"] == 1
    assert outputs["user_data"] == "[secret]"
    stack.client("autoscaling").set_desired_capacity(AutoScalingGroupName=outputs["group"], DesiredCapacity=4)

    stack.run("preview", "--expect-no-changes")
    stack.run("refresh", "--yes", "--skip-preview")
    stack.run("preview", "--expect-no-changes")

    stack.run("config", "set", "type", "t3.large")
    stack.up()
    assert stack.outputs()["version"] == 2
    assert _desired(stack, outputs["group"]) == 4

    stack.run("destroy", "--yes", "--skip-preview")
    _assert_nothing_left(stack)


def test_size_survives_a_new_template_without_refresh(stack: Stack) -> None:
    stack.program(_POOL)
    stack.up()
    group = stack.outputs()["group"]
    stack.client("autoscaling").set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=3)
    stack.run("config", "set", "type", "t3.large")
    stack.up()
    assert _desired(stack, group) == 3


def test_the_preview_refuses_what_the_cloud_would_refuse(stack: Stack) -> None:
    stack.program(_POOL.replace("max_size=5", "max_size=1"))
    output = stack.run("preview", "--color=never", fails=True)
    assert "desiredCapacity 2 is above maxSize 1" in output


def test_only_the_embedded_cloud_is_called(stack: Stack) -> None:
    stack.program(_POOL)
    stack.environment["AWS_ENDPOINT_URL"] = "https://autoscaling.us-east-1.amazonaws.com"
    output = stack.run("preview", "--color=never", fails=True)
    assert "is not a loopback address" in output


def test_a_stack_of_a_real_account_is_not_changed(stack: Stack, tmp_path: Path) -> None:
    stack.program(_POOL)
    stack.up()
    group = stack.outputs()["group"]
    exported = json.loads(stack.run("stack", "export"))
    for resource in exported["deployment"]["resources"]:
        resource.get("outputs", {}).pop("__local", None)
    foreign = tmp_path / "foreign.json"
    original = tmp_path / "original.json"
    original.write_text(stack.run("stack", "export"), encoding="utf-8")
    foreign.write_text(json.dumps(exported), encoding="utf-8")

    stack.run("stack", "import", "--file", str(foreign))
    output = stack.run("destroy", "--yes", "--skip-preview", "--color=never", fails=True)
    assert "was not made by the local provider" in output
    assert _desired(stack, group) == 2

    stack.run("stack", "import", "--file", str(original))


def test_every_modelled_type_is_created_read_updated_and_deleted(stack: Stack, cloud: EmbeddedCloud) -> None:
    stack.program(_EVERYTHING)
    stack.run("config", "set", "network", cloud.network)
    buckets = stack.client("s3").list_buckets()["Buckets"]

    stack.run("preview")
    stack.up()
    first = stack.outputs()
    assert first["account"] == "000000000000"
    assert first["region"] == "us-east-1"
    assert first["zones"][:3] == ["us-east-1a", "us-east-1b", "us-east-1c"]
    assert first["vpc"] == f"{cloud.network}.0.0/16"
    assert json.loads(first["policy"])["Statement"][0]["Action"] == "s3:GetObject"
    assert first["bucket"].startswith("models-")
    _assert_no_drift(stack)

    stack.run("config", "set", "second", "true")
    stack.up()
    second = stack.outputs()
    assert second["reservation"] == first["reservation"]
    assert second["document_version"] != first["document_version"]
    body = stack.client("s3").get_object(Bucket=second["bucket"], Key="fleet/fleet.json")["Body"].read()
    assert json.loads(body) == {"team": "two"}
    _assert_no_drift(stack)

    assert "hunter-" not in stack.run("stack", "export")
    stack.run("destroy", "--yes", "--skip-preview")
    _assert_nothing_left(stack)
    assert stack.client("s3").list_buckets()["Buckets"] == buckets


def _assert_no_drift(stack: Stack) -> None:
    """Check that neither the program nor the cloud shows a difference: the resources match the declaration."""
    stack.run("preview", "--expect-no-changes")
    stack.run("refresh", "--yes", "--skip-preview", "--expect-no-changes")
