"""The real Pulumi engine, an unmodified pulumi_aws program and the local provider, against an AWS server on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from localcloud.control.folders import find_folders
from localcloud.control.pulumi_cli import find_pulumi
from localcloud.provider.install import plugin_dir, plugin_version

pytestmark = pytest.mark.slow

_LIMIT_S = 120
_START_LIMIT_S = 30

_POOL = """
import base64
import pulumi
import pulumi_aws as aws

config = pulumi.Config()
template = aws.ec2.LaunchTemplate(
    "pool",
    image_id="ami-12c6146b",
    instance_type=config.get("type") or "t3.micro",
    user_data=pulumi.Output.secret(base64.b64encode(b"#!/bin/sh").decode()),
    metadata_options={"http_tokens": "required", "http_put_response_hop_limit": 2},
    block_device_mappings=[{"device_name": "/dev/sda1", "ebs": {"volume_size": 100, "encrypted": "true"}}],
    tag_specifications=[{"resource_type": "instance", "tags": {"gpu-fleet:pool": "chat"}}],
)
group = aws.autoscaling.Group(
    "pool",
    min_size=0,
    max_size=5,
    desired_capacity=2,
    availability_zones=["us-east-1a"],
    mixed_instances_policy={
        "launch_template": {
            "launch_template_specification": {
                "launch_template_id": template.id,
                "version": template.latest_version.apply(str),
            },
            "overrides": [{"instance_type": "t3.micro"}, {"instance_type": "t3.small"}],
        },
        "instances_distribution": {"on_demand_percentage_above_base_capacity": 0},
    },
    tags=[{"key": "gpu-fleet:pool", "value": "chat", "propagate_at_launch": True}],
    initial_lifecycle_hooks=[
        {"name": "drain", "lifecycle_transition": "autoscaling:EC2_INSTANCE_TERMINATING", "heartbeat_timeout": 120}
    ],
    suspended_processes=["AZRebalance"],
    wait_for_capacity_timeout="0",
    force_delete=True,
    opts=pulumi.ResourceOptions(ignore_changes=["desired_capacity"]),
)
pulumi.export("group", group.name)
pulumi.export("version", template.latest_version)
pulumi.export("user_data", template.user_data)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A Pulumi project in a folder of its own, with its own home, state and cloud."""

    pulumi: Path
    folder: Path
    environment: dict[str, str]

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Run the CLI and return what it said; the exit code must be as told."""
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
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < end:
        assert server.poll() is None, "the AWS server ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"no AWS server on port {port} within {_START_LIMIT_S} s")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = _free_port()
    log = tmp_path_factory.mktemp("aws") / "server.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            _wait_for_port(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


@pytest.fixture(scope="module")
def pulumi_home(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The CLI and a private home that has the local provider installed."""
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
def stack(tmp_path: Path, endpoint: str, pulumi_home: tuple[Path, Path]) -> Iterator[Stack]:
    pulumi, home = pulumi_home
    folder, state = tmp_path / "program", tmp_path / "state"
    folder.mkdir()
    state.mkdir()
    runtime = {"name": "python", "options": {"virtualenv": sys.prefix}}
    (folder / "Pulumi.yaml").write_text(json.dumps({"name": "proof", "runtime": runtime}), encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PULUMI_"))} | {
        "AWS_ENDPOINT_URL": endpoint,
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
    assert stack.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []
    assert stack.client("ec2").describe_launch_templates()["LaunchTemplates"] == []


def test_size_survives_a_new_template_without_refresh(stack: Stack) -> None:
    stack.program(_POOL)
    stack.up()
    group = stack.outputs()["group"]
    stack.client("autoscaling").set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=3)
    stack.run("config", "set", "type", "t3.large")
    stack.up()
    assert _desired(stack, group) == 3


def test_what_the_cloud_would_refuse_is_refused_in_the_preview(stack: Stack) -> None:
    stack.program(_POOL.replace("max_size=5", "max_size=1"))
    said = stack.run("preview", "--color=never", fails=True)
    assert "desiredCapacity 2 is above maxSize 1" in said


def test_only_the_embedded_cloud_is_spoken_to(stack: Stack) -> None:
    stack.program(_POOL)
    stack.environment["AWS_ENDPOINT_URL"] = "https://autoscaling.us-east-1.amazonaws.com"
    said = stack.run("preview", "--color=never", fails=True)
    assert "is not a loopback address" in said


def test_a_stack_of_a_real_account_is_left_alone(stack: Stack, tmp_path: Path) -> None:
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
    said = stack.run("destroy", "--yes", "--skip-preview", "--color=never", fails=True)
    assert "was not made by the local provider" in said
    assert _desired(stack, group) == 2

    stack.run("stack", "import", "--file", str(original))
