"""How the inventory reads Google's responses, with the message types of the real client."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from google.cloud import compute_v1

from gpufleet.clouds.gcp.calls import GoogleCalls
from gpufleet.clouds.gcp.instance_history import GoogleInstanceHistory
from gpufleet.clouds.gcp.inventory import GoogleInventory
from gpufleet.domain.activity import CloudError
from gpufleet.domain.model import CapacityType

ZONE = "us-central1-a"


class Answers(GoogleCalls):
    """Calls that return instances from a list, by zone."""

    def __init__(self, machines: dict[str, list[dict[str, Any]]]) -> None:
        super().__init__("project")
        self._machines = machines

    def pages(self, service: str, operation: str, **request: Any) -> Iterator[Any]:
        for zone, rows in self._machines.items():
            yield f"zones/{zone}", compute_v1.InstancesScopedList(instances=rows)


def machine(name: str = "one", **changes: Any) -> dict[str, Any]:
    plain = {
        "name": name,
        "machine_type": f"projects/p/zones/{ZONE}/machineTypes/g2-standard-8",
        "status": "RUNNING",
        "creation_timestamp": "2026-11-21T08:00:00.000-08:00",
    }
    return {**plain, **changes}


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        pytest.param({}, None, id="no end is stated"),
        pytest.param(
            {"scheduling": {"provisioning_model": "FLEX_START", "max_run_duration": {"seconds": 3600}}},
            datetime(2026, 11, 21, 17, tzinfo=UTC),
            id="an hour since it was made",
        ),
        pytest.param(
            {
                "scheduling": {"max_run_duration": {"seconds": 3600}},
                "last_start_timestamp": "2026-11-21T09:30:00.000-08:00",
            },
            datetime(2026, 11, 21, 18, 30, tzinfo=UTC),
            id="an hour since it was started",
        ),
        pytest.param(
            {"scheduling": {"termination_time": "2026-11-22T00:00:00Z"}},
            datetime(2026, 11, 22, tzinfo=UTC),
            id="a stated time",
        ),
    ],
)
def test_the_end_time_of_an_instance_is_read(changes: dict[str, Any], ends: datetime | None) -> None:
    (found,) = GoogleInventory(Answers({ZONE: [machine(**changes)]}), "us-central1", "test").instances()
    assert found.ends_at == ends
    flex = changes.get("scheduling", {}).get("provisioning_model") == "FLEX_START"
    assert found.capacity_type is (CapacityType.FLEX_START if flex else CapacityType.ON_DEMAND)


@pytest.mark.parametrize(
    ("changes", "listed"),
    [
        pytest.param({}, True, id="G2"),
        pytest.param({"machine_type": "zones/z/machineTypes/a2-highgpu-1g"}, True, id="A2"),
        pytest.param({"machine_type": "zones/z/machineTypes/ct6e-standard-4t"}, True, id="TPU v6e"),
        pytest.param({"machine_type": "zones/z/machineTypes/tpu7x-standard-4t"}, True, id="TPU7x"),
        pytest.param({"machine_type": "zones/z/machineTypes/n1-standard-8"}, False, id="N1"),
        pytest.param(
            {
                "machine_type": "zones/z/machineTypes/n1-standard-8",
                "guest_accelerators": [{"accelerator_type": "nvidia-tesla-t4", "accelerator_count": 1}],
            },
            True,
            id="N1 with a T4",
        ),
    ],
)
def test_gpu_machines_are_listed(changes: dict[str, Any], listed: bool) -> None:
    found = GoogleInventory(Answers({ZONE: [machine(**changes)]}), "us-central1", "test").gpus().instances
    assert bool(found) is listed


@pytest.mark.parametrize(
    "changes", [{"creation_timestamp": ""}, {"scheduling": {"termination_time": "soon"}}], ids=["no time", "no date"]
)
def test_an_unreadable_instance_is_named(changes: dict[str, Any]) -> None:
    rows = {ZONE: [machine("one"), machine("odd", **changes)]}
    inventory = GoogleInventory(Answers(rows), "us-central1", "test")
    with pytest.raises(CloudError, match="odd cannot be read"):
        inventory.instances()
    history = GoogleInstanceHistory(Answers(rows), "us-central1", "test").history()
    assert [record.instance.id for record in history.records] == ["one"] and list(history.errors) == ["odd"]
    for found in (inventory.listed(), inventory.gpus()):
        assert [one.id for one in found.instances] == ["one"] and list(found.errors) == ["odd"]
    assert inventory.ended(["one", "odd"]) == (), "why others ended is known all the same"


def test_a_name_in_two_zones_is_an_error() -> None:
    both = {ZONE: [machine()], "us-central1-b": [machine()]}
    with pytest.raises(CloudError, match="the instance is ambiguous"):
        GoogleInventory(Answers(both), "us-central1", "test").instance("one")


@pytest.mark.parametrize("name", ["two", "one-2"])
def test_a_response_about_another_instance_is_an_error(name: str) -> None:
    with pytest.raises(CloudError, match=f"requested one, received {name}"):
        GoogleInventory(Answers({ZONE: [machine(name)]}), "us-central1", "test").instance("one")


def test_regions_with_a_common_prefix_are_distinguished() -> None:
    rows = {"europe-west1-b": [machine("mine")], "europe-west10-b": [machine("other")]}
    found = GoogleInventory(Answers(rows), "europe-west1", "test").instances()
    assert [one.id for one in found] == ["mine"]
