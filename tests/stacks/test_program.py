"""Runs every settings file through the real program with mocked engine responses."""

from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

import pulumi
import pytest
import yaml

from gpufleet.domain.model import Cloud
from gpufleet.prices.plan.extras import extras, root_disk_units
from gpufleet.prices.plan.preview import PlannedResource
from gpufleet.settings.document import FleetDocument
from tests.fixtures.fakes import RecordingMocks
from tests.fixtures.stacks.running import ROOT, run, written

FILES = sorted((ROOT / "stacks" / "config").glob("Pulumi.*.yaml"))
GROUPS = {
    Cloud.AWS: ("aws:autoscaling/group:Group",),
    Cloud.GCP: (
        "gcp:compute/instanceGroupManager:InstanceGroupManager",
        "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager",
    ),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem.removeprefix("Pulumi."))
def test_every_settings_file_declares_its_pools_and_lists_them_in_the_document(
    mocks: RecordingMocks, path: Path
) -> None:
    run(path, mocks)
    cloud_name, environment = path.stem.removeprefix("Pulumi.").split("-")
    described = written(mocks, Cloud(cloud_name))
    assert described.environment == environment
    groups = [group for typ in GROUPS[described.cloud] for group in mocks.of_type(typ)]
    assert sorted(g.name for pool in described.pools for g in pool.groups) == sorted(f"{g.name}-3f2a" for g in groups)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem.removeprefix("Pulumi."))
def test_a_second_run_of_the_same_tree_gives_the_same_result(path: Path) -> None:
    documents: list[FleetDocument] = []
    for _ in range(2):
        recording = RecordingMocks()
        run(path, recording)
        documents.append(written(recording, Cloud(path.stem.removeprefix("Pulumi.").split("-")[0])))
    assert documents[0] == documents[1]


PRICED = [path for path in FILES if "budget" in yaml.safe_load(path.read_text())["config"]["gpu-fleet:fleet"]]


def units(found: Iterable[tuple[str, Decimal]]) -> dict[str, Decimal]:
    sums: dict[str, Decimal] = {}
    for sku, amount in found:
        sums[sku] = sums.get(sku, Decimal(0)) + amount
    return sums


@pytest.mark.parametrize("path", PRICED, ids=lambda path: path.stem.removeprefix("Pulumi."))
def test_the_document_lists_all_paid_resources_besides_instances(mocks: RecordingMocks, path: Path) -> None:
    run(path, mocks)
    declared = [PlannedResource(type=r.typ, name=r.name, urn=r.name, inputs=r.inputs) for r in mocks.resources]
    priced, _, unknown = extras(declared)
    listed = written(mocks, Cloud(path.stem.removeprefix("Pulumi.").split("-")[0])).shared
    assert unknown == []
    # a missing entry, an extra resource or different units would leave costs out of the reports
    assert units((extra.sku, extra.units) for extra in priced) == units(
        (entry.sku, entry.units) for entry in listed if entry.per == "environment"
    )
    per_instance = units((entry.sku, entry.units) for entry in listed if entry.per == "instance")
    for template in declared:
        root = units(root_disk_units(template))
        assert root in ({}, per_instance), template.name


def test_a_program_with_bad_settings_declares_nothing(mocks: RecordingMocks, tmp_path: Path) -> None:
    bad = tmp_path / "Pulumi.aws-bad.yaml"
    bad.write_text(yaml.safe_dump({"config": {"aws:region": "us-east-1", "gpu-fleet:fleet": {"cloud": "aws"}}}))
    with pytest.raises(pulumi.RunError, match=r"gpu-fleet:fleet\.pools: is missing"):
        run(bad, mocks)
    assert not mocks.resources


@pytest.mark.parametrize("cloud", list(Cloud), ids=str)
@pytest.mark.parametrize("routers", [1, 2])
def test_the_document_names_separate_routers(
    mocks: RecordingMocks, tmp_path: Path, cloud: Cloud, routers: int
) -> None:
    settings = yaml.safe_load((ROOT / f"stacks/config/Pulumi.{cloud}-prod.yaml").read_text())
    settings["config"]["gpu-fleet:fleet"]["control"]["routers"] = routers
    path = tmp_path / f"Pulumi.{cloud}-prod.yaml"
    path.write_text(yaml.safe_dump(settings))
    run(path, mocks)
    found = written(mocks, cloud).router.machines
    assert found is not None
    assert len(set(found)) == (0 if routers == 1 else routers)
    assert all("router" in name for name in found)
