"""Pools whose machine types have other accelerators than NVIDIA GPUs: checks, images, and the note for people."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.commands import build
from gpufleet.domain.model import CapacityType
from stacks import pools, reading
from tests.fixtures.fakes import RecordingMocks
from tests.fixtures.stacks.running import ROOT, run
from tests.fixtures.stacks.settings_files import AWS, FLEET, GCP, TODAY, a_pool, changed, problems

EXPORTER = "mirror/neuron-monitor@sha256:" + "d" * 64
AMI = "ami-0123456789abcdef0"
SIZE = {"target": 1, "min": 0, "max": 1}


def bought(*machine_types: str) -> dict[str, Any]:
    return {"on_demand": {"max": 1, "machine_types": list(machine_types)}}


def neuron(*machine_types: str, **machines: Any) -> dict[str, Any]:
    """The settings of aws-prod with one more pool."""
    pool = a_pool("neuron", **SIZE, capacity=bought(*machine_types))
    number = len(AWS[FLEET]["pools"])
    given = {"machines.accelerators": machines} if machines else {}
    return changed(AWS, {f"pools.{number}": pool, **given})


def tpu(**machines: Any) -> dict[str, Any]:
    """The settings of gcp-prod with one more pool."""
    shipped = GCP[FLEET]["pools"]
    pool = {**shipped[0], **SIZE, "spare": 0, "name": "tpu", "capacity": bought("ct6e-standard-1t")}
    given = {"machines.accelerators": machines} if machines else {}
    return changed(GCP, {f"pools.{len(shipped)}": pool, **given})


POOL = f"{FLEET}.pools.{len(AWS[FLEET]['pools'])}"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param(
            neuron("inf2.xlarge"),
            f"{FLEET}.machines.accelerators.neuron: is missing, and the machine types of pool neuron "
            "have AWS Neuron devices; write it with exporter_image, an image of neuron-monitor-prometheus by its "
            "digest: with it you accept a launch that was not tried on hardware",
            id="not accepted",
        ),
        pytest.param(
            neuron("inf2.xlarge", neuron={}),
            f"{FLEET}.machines.accelerators.neuron.exporter_image: is missing, and the machine types of pool neuron "
            "have AWS Neuron devices; name an image of neuron-monitor-prometheus by its digest",
            id="no exporter",
        ),
        pytest.param(
            tpu(),
            f"{FLEET}.machines.accelerators.tpu: is missing, and the machine types of pool tpu have Google Cloud "
            "TPUs; write it as {}: with it you accept a launch that was not tried on hardware",
            id="TPUs",
        ),
        pytest.param(
            neuron("inf2.xlarge", "g6.xlarge", neuron={"exporter_image": EXPORTER}),
            f"{POOL}.capacity: has machine types with AWS Neuron devices and NVIDIA GPUs "
            "(is 'inf2.xlarge, g6.xlarge'); write a pool for each: the engine's image and the machine image are of "
            "one kind",
            id="two kinds",
        ),
        pytest.param(
            neuron("inf2.xlarge", neuron={"exporter_image": EXPORTER, "image": "my-image"}),
            f"{FLEET}.machines.accelerators.neuron.image: is not a pinned machine image of aws (is 'my-image'); "
            "write an AMI id or resolve:ssm:/<parameter>:<version>",
            id="a machine image that is not pinned",
        ),
        pytest.param(
            neuron("inf2.xlarge", neuron={"exporter_image": EXPORTER}, nvidia={"image": AMI}),
            f"{FLEET}.machines.accelerators.nvidia: is not read; write machines.image and machines.dcgm_image "
            "instead: they are the settings of NVIDIA GPUs",
            id="NVIDIA in the wrong place",
        ),
    ],
)
def test_settings_of_another_kind_are_checked(config: dict[str, Any], message: str) -> None:
    assert message in problems(config)


def test_an_instance_gets_the_machine_image_and_the_exporter_of_its_kind() -> None:
    config = neuron("inf2.xlarge", neuron={"exporter_image": EXPORTER, "image": AMI})
    assert problems(config) == []
    settings = reading.parse(config, "file", TODAY)
    pool = settings.pools[-1]
    instance = pools.instance_settings(settings, pool, CapacityType.ON_DEMAND)
    assert (instance.accelerator, instance.exporter_image) == ("neuron", EXPORTER)
    assert [pools.machine_image(settings, one) for one in (settings.pools[0], pool)] == [settings.machines.image, AMI]
    first = pools.instance_settings(settings, settings.pools[0], CapacityType.ON_DEMAND)
    assert (first.accelerator, first.exporter_image) == ("nvidia", settings.machines.dcgm_image)


def test_tpus_need_no_image_of_an_exporter() -> None:
    config = tpu(tpu={})
    assert problems(config) == []
    settings = reading.parse(config, "file", TODAY)
    instance = pools.instance_settings(settings, settings.pools[-1], CapacityType.ON_DEMAND)
    assert (instance.accelerator, instance.exporter_image) == ("tpu", "")


def test_templates_have_the_machine_image_of_their_pool(mocks: RecordingMocks, tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.aws-dev.yaml"
    settings = yaml.safe_load((ROOT / "stacks" / "config" / path.name).read_text())
    fleet = settings["config"][FLEET]
    fleet["machines"]["accelerators"] = {"neuron": {"exporter_image": EXPORTER, "image": AMI}}
    fleet["pools"].append(
        {**fleet["pools"][0], **SIZE, "spare": 0, "name": "neuron", "capacity": bought("inf2.xlarge")}
    )
    path.write_text(yaml.safe_dump(settings))
    run(path, mocks)
    images: dict[bool, set[str]] = {True: set(), False: set()}
    for template in mocks.of_type("aws:ec2/launchTemplate:LaunchTemplate"):
        script = base64.b64decode(template.inputs["userData"]).decode()
        images["neuron-monitor" in script].add(template.inputs["imageId"])
    assert images == {True: {AMI}, False: {fleet["machines"]["image"]}}


def test_the_check_names_machine_types_that_were_not_tried(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump({"config": neuron("inf2.xlarge", neuron={"exporter_image": EXPORTER})}))
    shown = CliRunner().invoke(build("settings"), ["settings", "check", str(path)])
    (note,) = [line for line in shown.output.splitlines() if line.startswith("  note:")]
    assert note.startswith("  note: not tried on hardware: ")
    assert "inf2.xlarge (AWS Neuron device)" in note
    listed = CliRunner().invoke(build("settings"), ["settings", "check", "--json", str(path)])
    assert json.loads(listed.output) == {str(path): []}
