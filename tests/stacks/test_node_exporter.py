"""Tests of `machines.node_exporter_image`: its effect on both clouds, and no effect when absent."""

import base64
import json
from pathlib import Path

import pytest
import yaml

from gpufleet.domain.model import Cloud
from tests.fixtures.fakes import RecordingMocks
from tests.fixtures.stacks.running import ROOT, run, written

IMAGE = "mirror/node-exporter@sha256:" + "c" * 64


@pytest.fixture(params=list(Cloud), ids=str)
def cloud(request: pytest.FixtureRequest) -> Cloud:
    return request.param


def _run(mocks: RecordingMocks, folder: Path, cloud: Cloud, image: str | None) -> None:
    path = folder / f"Pulumi.{cloud}-dev.yaml"
    settings = yaml.safe_load((ROOT / "stacks" / "config" / path.name).read_text())
    if image is not None:
        settings["config"]["gpu-fleet:fleet"]["machines"]["node_exporter_image"] = image
    path.write_text(yaml.safe_dump(settings))
    run(path, mocks)


def _scripts(mocks: RecordingMocks, cloud: Cloud) -> list[str]:
    """Return the user data of every template of GPU instances."""
    if cloud is Cloud.AWS:
        templates = mocks.of_type("aws:ec2/launchTemplate:LaunchTemplate")
        return [base64.b64decode(template.inputs["userData"]).decode() for template in templates]
    templates = mocks.of_type("gcp:compute/instanceTemplate:InstanceTemplate")
    return [json.dumps(template.inputs) for template in templates]


def _open_ports(mocks: RecordingMocks, cloud: Cloud) -> list[str]:
    if cloud is Cloud.AWS:
        rules = mocks.of_type("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule")
        return [str(int(rule.inputs["fromPort"])) for rule in rules if rule.inputs.get("referencedSecurityGroupId")]
    rules = mocks.of_type("gcp:compute/firewall:Firewall")
    named = [rule.inputs for rule in rules if rule.inputs.get("sourceServiceAccounts")]
    return [port for rule in named for allow in rule["allows"] for port in allow["ports"]]


@pytest.mark.parametrize(
    "image", [pytest.param(None, id="not asked for", marks=pytest.mark.slow), pytest.param(IMAGE, id="asked for")]
)
def test_instances_firewall_and_document_use_it_when_configured(
    mocks: RecordingMocks, tmp_path: Path, cloud: Cloud, image: str | None
) -> None:
    _run(mocks, tmp_path, cloud, image)
    scripts = _scripts(mocks, cloud)
    assert scripts
    assert {"node_exporter_image" in script for script in scripts} == {image is not None}
    assert all(image is None or image in script for script in scripts)
    assert _open_ports(mocks, cloud).count("9100") == (image is not None)
    assert written(mocks, cloud).node_exporter == (image is not None)
