"""`gpufleet rollout` for groups of the embedded cloud."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.clouds.emulator import REPOSITORY, RunningCloud, make_group, make_template, wait_for
from tests.fixtures.local_token import KEYS


def _document(folder: Path, group: str) -> Path:
    pool: dict[str, Any] = {
        "name": "chat", "model": "models/chat", "engine": "vllm", "owner": "o", "target": 2, "min": 1, "max": 4,
        "drain_deadline": "20s", "watchdogs": {},
        "groups": [{"type": "on-demand", "zone": None, "name": group, "max": 4, "machine_types": ["g6.xlarge"]}],
    }  # fmt: skip
    document = {
        "version": 1, "environment": "test", "cloud": "aws", "region": "us-east-1", "account": "000000000000",
        "generated_by": {"project": "p", "stack": "s", "revision": "r", "at": "2026-11-21T00:00:00Z"},
        "bucket": "s3://b", "prometheus_url": "http://127.0.0.1:1", "ledger_url": f"sqlite:///{folder}/ledger.db",
        "router": {"url": "http://127.0.0.1:1"}, "pools": [pool],
    }  # fmt: skip
    file = folder / "fleet.json"
    file.write_text(json.dumps(document))
    return file


def _run(cloud: RunningCloud, document: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli.main", "rollout", "chat", "--fleet", str(document), *arguments],
        cwd=REPOSITORY,
        env=os.environ
        | {
            "AWS_ENDPOINT_URL": cloud.places.api_url,
            **KEYS,
            "AWS_EC2_METADATA_DISABLED": "true",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _pin(cloud: RunningCloud, group: str, template: str, version: str) -> None:
    cloud.client("autoscaling").update_auto_scaling_group(
        AutoScalingGroupName=group, LaunchTemplate={"LaunchTemplateId": template, "Version": version}
    )


@pytest.mark.slow
def test_a_rollout_replaces_every_instance_once(cloud: RunningCloud, tmp_path: Path) -> None:
    template = make_template(cloud, "roll")
    make_group(cloud, "roll", template, size=2)
    _pin(cloud, "roll", template, "1")
    wait_for("two in service", lambda: len(cloud.in_service("roll")) == 2)
    before = {member["InstanceId"] for member in cloud.in_service("roll")}
    document = _document(tmp_path, "roll")

    nothing_to_do = _run(cloud, document, "--json")
    assert (nothing_to_do.returncode, json.loads(nothing_to_do.stdout)["groups"][0]["outdated"]) == (0, [])

    ec2 = cloud.client("ec2")
    data = ec2.describe_launch_template_versions(LaunchTemplateId=template)["LaunchTemplateVersions"][0]
    ec2.create_launch_template_version(LaunchTemplateId=template, LaunchTemplateData=data["LaunchTemplateData"])
    _pin(cloud, "roll", template, "2")
    dry = _run(cloud, document, "--json")
    assert (dry.returncode, set(json.loads(dry.stdout)["groups"][0]["outdated"])) == (3, before)
    assert {member["InstanceId"] for member in cloud.in_service("roll")} == before

    done = _run(cloud, document, "--apply")
    assert done.returncode == 0, done.stderr
    assert "100 %" in done.stderr
    after = {member["InstanceId"] for member in cloud.in_service("roll")}
    assert len(after) == 2
    assert not before & after
    assert _run(cloud, document).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        pytest.param(("--limit", "soon", "--apply"), 2, "'soon' is not a duration", id="bad limit"),
        pytest.param(("--cancel",), 0, "", id="nothing to cancel"),
    ],
)
def test_arguments_that_change_nothing(
    cloud: RunningCloud, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    name = f"still-{code}"
    template = make_template(cloud, name)
    make_group(cloud, name, template, size=0)
    _pin(cloud, name, template, "1")
    done = _run(cloud, _document(tmp_path, name), *arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr


def test_a_group_with_the_latest_version_is_an_error(cloud: RunningCloud, tmp_path: Path) -> None:
    make_group(cloud, "latest", make_template(cloud, "latest"), size=0)
    done = _run(cloud, _document(tmp_path, "latest"))
    assert done.returncode == 1
    assert "uses the launch template version $Latest" in done.stderr


def test_an_unknown_pool_is_named(cloud: RunningCloud, tmp_path: Path) -> None:
    del cloud
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "rollout", "nope", "--fleet", str(_document(tmp_path, "x"))],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no pool 'nope'; pools: chat" in done.stderr
