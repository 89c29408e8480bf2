"""How the groups of a pool on Google Cloud name their instances."""

from datetime import timedelta

import pulumi
import pytest

from components.capacity import Capacity, Owned, Spot
from components.gcp.gpu_pool import BASE_NAME_LIMIT, GpuPool, GpuPoolArgs, instance_base
from components.gcp.templates import Template
from tests.fakes import RecordingMocks

GROUP = "gcp:compute/instanceGroupManager:InstanceGroupManager"


def declare(environment: str) -> None:
    @pulumi.runtime.test
    def program() -> None:
        GpuPool(
            "chat",
            GpuPoolArgs(
                owned=Owned(environment=environment, pool="chat", owner="search-team"),
                capacity=Capacity(
                    target=1,
                    spare=0,
                    max=2,
                    spot=Spot(zones=("us-central1-a", "us-central1-b"), machine_types=("g2-standard-12",)),
                ),
                template=Template(
                    image="projects/p/global/images/i", service_account="sa", subnet="net", region="us-central1"
                ),
                user_data=lambda capacity_type: f"# {capacity_type}",
                drain_deadline=timedelta(seconds=90),
            ),
        )

    program()


def test_two_environments_of_one_project_name_their_instances_apart(mocks: RecordingMocks) -> None:
    declare("dev")
    dev = {group.inputs["baseInstanceName"] for group in mocks.of_type(GROUP)}
    mocks.resources.clear()
    declare("prod")
    prod = {group.inputs["baseInstanceName"] for group in mocks.of_type(GROUP)}
    assert dev == {"dev-chat-spot-us-central1-a", "dev-chat-spot-us-central1-b"}
    assert prod == {"prod-chat-spot-us-central1-a", "prod-chat-spot-us-central1-b"}


@pytest.mark.parametrize("zone", ["us-central1-a", "northamerica-northeast1-a", "northamerica-northeast1-b"])
def test_a_long_name_is_cut_and_stays_its_own(zone: str) -> None:
    group = f"a-pool-of-20-letters-reserved-{zone}-a3-megagpu-8g"
    found = instance_base("an-environment-x", group)
    assert len(found) <= BASE_NAME_LIMIT
    assert found != instance_base("an-environment-y", group)
    assert found != instance_base("an-environment-x", group.replace("8g", "4g"))
