"""Tests of the boot data of the control host and routers, on both clouds."""

from pathlib import Path

import pytest
import yaml

from gpufleet.toolchain.folders import ROOT
from tests.fixtures.fakes import RecordingMocks
from tests.fixtures.stacks.running import run

SHA256 = "ab" * 32
MACHINE = {"aws": "aws:ec2/instance:Instance", "gcp": "gcp:compute/instance:Instance"}
SCRIPT = {"aws": "userData", "gcp": "metadataStartupScript"}
VOLUME = {
    "aws": "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_",
    "gcp": "/dev/disk/by-id/google-data",
}


def scripts(
    mocks: RecordingMocks, folder: Path, cloud: str, bundle: str | None, **more: object
) -> dict[str, str | None]:
    """Return the boot data by machine, with two separate routers."""
    path = folder / f"Pulumi.{cloud}-prod.yaml"
    document = yaml.safe_load((ROOT / "stacks" / "config" / path.name).read_text())
    control = document["config"]["gpu-fleet:fleet"]["control"]
    control |= {"routers": 2, **more}
    if bundle:
        control["bundle"] = bundle
    path.write_text(yaml.safe_dump(document))
    run(path, mocks)
    return {machine.name: machine.inputs.get(SCRIPT[cloud]) for machine in mocks.of_type(MACHINE[cloud])}


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_without_a_bundle_they_start_empty(mocks: RecordingMocks, tmp_path: Path, cloud: str) -> None:
    found = scripts(mocks, tmp_path, cloud, None)
    assert len(found) == 3 and set(found.values()) == {None}


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_with_a_bundle_each_has_its_role(mocks: RecordingMocks, tmp_path: Path, cloud: str) -> None:
    found = scripts(mocks, tmp_path, cloud, SHA256)
    assert all(script and SHA256 in script for script in found.values())
    assert all('"GPUFLEET_ENVIRONMENT": "prod"' in (script or "") for script in found.values())
    control = [script for name, script in found.items() if name.endswith("-control")]
    assert len(control) == 1 and control[0] is not None
    assert '"role": "control"' in control[0] and '"routes": false' in control[0]
    assert VOLUME[cloud] in control[0]
    routers = [script or "" for name, script in found.items() if not name.endswith("-control")]
    assert len(routers) == 2
    assert all('"role": "router"' in script and '"volume": null' in script for script in routers)


def test_new_boot_data_replace_a_machine_that_runs_them_once(mocks: RecordingMocks, tmp_path: Path) -> None:
    scripts(mocks, tmp_path, "aws", SHA256)
    assert all(machine.inputs["userDataReplaceOnChange"] for machine in mocks.of_type(MACHINE["aws"]))


SECRET = {"aws": "/gpu-fleet/prod/slack-token", "gcp": "gpu-fleet-prod-slack-token"}
PLACE = {"aws": "ssm:/gpu-fleet/prod/slack-token", "gcp": "/secrets/gpu-fleet-prod-slack-token"}


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_only_the_control_host_receives_the_name_of_a_secret(
    mocks: RecordingMocks, tmp_path: Path, cloud: str
) -> None:
    found = scripts(mocks, tmp_path, cloud, SHA256, secrets={"GPUFLEET_SLACK_TOKEN": SECRET[cloud]})
    receivers = {name for name, script in found.items() if "GPUFLEET_SLACK_TOKEN" in (script or "")}
    assert len(receivers) == 1 and receivers.pop().endswith("-control")
    assert any(PLACE[cloud] in (script or "") for script in found.values())
    if cloud == "aws":
        rights = {one.name: str(one.inputs["policy"]) for one in mocks.of_type("aws:iam/rolePolicy:RolePolicy")}
        readers = {name for name, policy in rights.items() if f"parameter{SECRET[cloud]}" in policy}
    else:
        members = mocks.of_type("gcp:secretmanager/secretIamMember:SecretIamMember")
        readers = {one.name for one in members if one.inputs["secretId"] == SECRET[cloud]}
    assert len(readers) == 1 and "-instance" not in str(readers) and "-gpu-gpu" not in str(readers)


ROUTER_METRICS = "8404"


@pytest.mark.parametrize("routers", [1, 2])
@pytest.mark.parametrize("cloud", ["aws", "gcp"])
def test_separate_routers_are_found_by_their_tag_and_reachable(
    mocks: RecordingMocks, tmp_path: Path, cloud: str, routers: int
) -> None:
    scripts(mocks, tmp_path, cloud, SHA256, routers=routers)
    key, role = ("tags", "gpu-fleet:role") if cloud == "aws" else ("labels", "gpu-fleet-role")
    tagged = [one for one in mocks.of_type(MACHINE[cloud]) if one.inputs[key].get(role) == "router"]
    assert len(tagged) == (routers if routers > 1 else 0)
    assert [one.inputs[key].get(role) for one in mocks.of_type(MACHINE[cloud])].count("control") == 1
    if cloud == "aws":
        rules = mocks.of_type("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule")
        ports = [str(int(one.inputs["fromPort"])) for one in rules]
    else:
        firewalls = mocks.of_type("gcp:compute/firewall:Firewall")
        ports = [port for one in firewalls for allow in one.inputs["allows"] for port in allow["ports"]]
    assert (ROUTER_METRICS in ports) == (routers > 1)
