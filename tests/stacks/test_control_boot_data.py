"""What control host and routers are given to boot with, on both clouds."""

from pathlib import Path

import pytest
import yaml

from tests.fakes import RecordingMocks
from tests.stacks.test_program import run

ROOT = Path(__file__).parents[2]
SHA256 = "ab" * 32
MACHINE = {"aws": "aws:ec2/instance:Instance", "gcp": "gcp:compute/instance:Instance"}
SCRIPT = {"aws": "userData", "gcp": "metadataStartupScript"}
VOLUME = {
    "aws": "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_",
    "gcp": "/dev/disk/by-id/google-data",
}


def scripts(mocks: RecordingMocks, folder: Path, cloud: str, bundle: str | None) -> dict[str, str | None]:
    """Machine to its boot data, with two routers of their own."""
    path = folder / f"Pulumi.{cloud}-prod.yaml"
    document = yaml.safe_load((ROOT / "stacks" / "config" / path.name).read_text())
    control = document["config"]["gpu-fleet:fleet"]["control"]
    control["routers"] = 2
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
    control = [script for name, script in found.items() if name.endswith("-control")]
    assert len(control) == 1 and control[0] is not None
    assert '"role": "control"' in control[0] and '"routes": false' in control[0]
    assert VOLUME[cloud] in control[0]
    routers = [script or "" for name, script in found.items() if not name.endswith("-control")]
    assert len(routers) == 2
    assert all('"role": "router"' in script and '"volume": null' in script for script in routers)


def test_new_boot_data_make_a_new_machine_where_they_run_once(mocks: RecordingMocks, tmp_path: Path) -> None:
    scripts(mocks, tmp_path, "aws", SHA256)
    assert all(machine.inputs["userDataReplaceOnChange"] for machine in mocks.of_type(MACHINE["aws"]))
