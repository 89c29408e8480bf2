"""Tests of a pool on Google Cloud: templates by capacity type, groups, and names."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pulumi
import pytest

from components.capacity import Ownership, PoolCapacity
from components.gcp.gpu_pool import BASE_NAME_LIMIT, GpuPool, GpuPoolArgs, instance_base
from components.gcp.templates import Template
from gpufleet.settings.environment import Capacity, CapacityBlock, FlexStart, OnDemand, Reserved, Spot
from tests.fixtures.fakes import RecordingMocks

GROUP = "gcp:compute/instanceGroupManager:InstanceGroupManager"
REGIONAL = "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager"
TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"
A, B = "us-central1-a", "us-central1-b"
SPOT = Spot(zones=(A, B), machine_types=("g2-standard-12",))
FLEX = FlexStart(max=3, machine_type="a2-highgpu-1g", zone=B, run=timedelta(days=2))
KEPT = Reserved(zone=A, machine_type="g2-standard-12", count=2, ends=date(2027, 6, 1))
BLOCK = Reserved(
    zone=B,
    machine_type="a3-highgpu-8g",
    count=1,
    existing="bought",
    block=CapacityBlock(starts=datetime(2027, 1, 1, tzinfo=UTC), ends=datetime(2027, 1, 8, tzinfo=UTC)),
)


def declare(environment: str, **more: Any) -> None:
    bought: dict[str, Any] = more or {"spot": SPOT}

    @pulumi.runtime.test
    def program() -> None:
        GpuPool(
            "chat",
            GpuPoolArgs(
                owned=Ownership(environment=environment, pool="chat", owner="search-team"),
                capacity=PoolCapacity(target=1, spare=0, max=2, ways=Capacity(**bought)),
                template=Template(
                    image="projects/p/global/images/i", service_account="sa", subnet="net", region="us-central1"
                ),
                user_data=lambda capacity_type: f"# {capacity_type}",
                drain_deadline=timedelta(seconds=90),
            ),
        )

    program()


def test_instances_of_two_environments_in_one_project_have_different_names(mocks: RecordingMocks) -> None:
    declare("dev")
    dev = {group.inputs["baseInstanceName"] for group in mocks.of_type(GROUP)}
    mocks.resources.clear()
    declare("prod")
    prod = {group.inputs["baseInstanceName"] for group in mocks.of_type(GROUP)}
    assert dev == {"dev-chat-spot-us-central1-a", "dev-chat-spot-us-central1-b"}
    assert prod == {"prod-chat-spot-us-central1-a", "prod-chat-spot-us-central1-b"}


@pytest.mark.parametrize("zone", ["us-central1-a", "northamerica-northeast1-a", "northamerica-northeast1-b"])
def test_a_long_name_is_cut_and_stays_unique(zone: str) -> None:
    group = f"a-pool-of-20-letters-reserved-{zone}-a3-megagpu-8g"
    found = instance_base("an-environment-x", group)
    assert len(found) <= BASE_NAME_LIMIT
    assert found != instance_base("an-environment-y", group)
    assert found != instance_base("an-environment-x", group.replace("8g", "4g"))


def template(mocks: RecordingMocks) -> dict[str, Any]:
    (found,) = mocks.of_type(TEMPLATE)
    return found.inputs


ENDED_BY_GOOGLE = {"automaticRestart": False, "onHostMaintenance": "TERMINATE", "instanceTerminationAction": "DELETE"}


@pytest.mark.parametrize(
    ("bought", "scheduling", "affinity"),
    [
        pytest.param(
            {"reserved": (KEPT,)},
            {
                "provisioningModel": "STANDARD",
                "preemptible": False,
                "automaticRestart": True,
                "onHostMaintenance": "TERMINATE",
            },
            "SPECIFIC_RESERVATION",
            id="reserved",
        ),
        pytest.param(
            {"reserved": (BLOCK,)},
            {"provisioningModel": "RESERVATION_BOUND", "preemptible": False, **ENDED_BY_GOOGLE},
            "SPECIFIC_RESERVATION",
            id="for a time",
        ),
        pytest.param(
            {"spot": SPOT},
            {
                "provisioningModel": "SPOT",
                "preemptible": True,
                "preemptionNoticeDuration": {"seconds": 120},
                **ENDED_BY_GOOGLE,
            },
            "NO_RESERVATION",
            id="spot",
        ),
        pytest.param(
            {"on_demand": OnDemand(max=2, machine_types=("g2-standard-12",), zones=(A, B))},
            {
                "provisioningModel": "STANDARD",
                "preemptible": False,
                "automaticRestart": True,
                "onHostMaintenance": "TERMINATE",
            },
            "NO_RESERVATION",
            id="on-demand",
        ),
        pytest.param(
            {"flex_start": FLEX},
            {
                "provisioningModel": "FLEX_START",
                "preemptible": False,
                "maxRunDuration": {"seconds": 172800},
                **ENDED_BY_GOOGLE,
            },
            "NO_RESERVATION",
            id="flex-start",
        ),
    ],
)
def test_a_template_sets_the_provisioning_model(
    mocks: RecordingMocks, bought: dict[str, Any], scheduling: dict[str, Any], affinity: str
) -> None:
    declare("dev", **bought)
    found = template(mocks)
    assert found["scheduling"] == scheduling
    assert found["reservationAffinity"]["type"] == affinity


@pytest.mark.parametrize("bought", [{"spot": SPOT}, {"flex_start": FLEX}, {"reserved": (KEPT,)}], ids=str)
def test_a_template_is_safe_for_every_capacity_type(mocks: RecordingMocks, bought: dict[str, Any]) -> None:
    declare("dev", **bought)
    found = template(mocks)
    assert found["shieldedInstanceConfig"] == {
        "enableSecureBoot": True,
        "enableVtpm": True,
        "enableIntegrityMonitoring": True,
    }
    assert found["metadata"].items() >= {"enable-oslogin": "TRUE", "block-project-ssh-keys": "TRUE"}.items()
    (interface,) = found["networkInterfaces"]
    assert "accessConfigs" not in interface, "no external address"
    assert found["labels"]["gpu-fleet-owner"] == "search-team"


def test_flex_start_is_one_zonal_group_without_recreation(mocks: RecordingMocks) -> None:
    declare("dev", spot=SPOT, flex_start=FLEX)
    group = mocks.named(GROUP, "chat-flex-start")
    assert (group["zone"], group["targetSize"]) == (B, 0), "spot is tried first"
    assert group["instanceLifecyclePolicy"]["defaultActionOnFailure"] == "DO_NOTHING"
    assert not mocks.of_type(REGIONAL)


def test_flex_start_provides_a_pool_without_spot_from_creation(mocks: RecordingMocks) -> None:
    declare("dev", flex_start=FLEX)
    assert mocks.named(GROUP, "chat-flex-start")["targetSize"] == 1


def test_a_pool_has_either_on_demand_or_flex_start() -> None:
    on_demand = OnDemand(max=1, machine_types=("g2-standard-12",), zones=(A,))
    with pytest.raises(ValueError, match="only one can replace missing spot; give one"):
        PoolCapacity(target=1, spare=0, max=2, ways=Capacity(on_demand=on_demand, flex_start=FLEX))


def test_spot_instances_receive_the_length_of_their_notice(mocks: RecordingMocks) -> None:
    declare("dev", spot=SPOT)
    found = template(mocks)
    seconds = found["scheduling"]["preemptionNoticeDuration"]["seconds"]
    assert found["metadata"]["gpu-fleet-preemption-notice-s"] == str(int(seconds))


def test_a_reservation_is_used_only_by_the_pool_that_pays_for_it(mocks: RecordingMocks) -> None:
    declare("dev", reserved=(KEPT,))
    (reservation,) = mocks.of_type("gcp:compute/reservation:Reservation")
    assert reservation.inputs["specificReservationRequired"] is True
    assert reservation.inputs["deleteAtTime"] == "2027-06-01T00:00:00Z"
    named = template(mocks)["reservationAffinity"]["specificReservation"]
    assert named == {"key": "compute.googleapis.com/reservation-name", "values": [f"{reservation.name}-3f2a"]}
    (group,) = mocks.of_type(GROUP)
    assert (group.inputs["zone"], group.inputs["targetSize"]) == (A, 2), "all that is paid for"


def test_a_block_is_bought_elsewhere_and_its_group_starts_empty(mocks: RecordingMocks) -> None:
    declare("dev", reserved=(BLOCK,))
    assert not mocks.of_type("gcp:compute/reservation:Reservation")
    assert template(mocks)["reservationAffinity"]["specificReservation"]["values"] == ["bought"]
    (group,) = mocks.of_type(GROUP)
    assert group.inputs["targetSize"] == 0


def test_groups_do_nothing_against_a_watchdog(mocks: RecordingMocks) -> None:
    """Spot and reserved groups are zonal, on-demand groups regional. A new template is not rolled out, and unhealthy
    instances are only reported.
    """
    on_demand = OnDemand(max=2, machine_types=("g2-standard-12", "g2-standard-16"), zones=(A, B))
    declare("dev", reserved=(KEPT,), spot=SPOT, on_demand=on_demand)
    zonal, (regional,) = mocks.of_type(GROUP), mocks.of_type(REGIONAL)
    assert sorted(group.inputs["zone"] for group in zonal) == [A, A, B]
    assert regional.inputs["distributionPolicyZones"] == [A, B]
    assert regional.inputs["updatePolicy"]["instanceRedistributionType"] == "NONE"
    ranks = regional.inputs["instanceFlexibilityPolicy"]["instanceSelections"]
    assert [(one["rank"], one["machineTypes"]) for one in ranks] == [(1, ["g2-standard-12"]), (2, ["g2-standard-16"])]
    (health,) = mocks.of_type("gcp:compute/healthCheck:HealthCheck")
    assert health.inputs["httpHealthCheck"] == {"port": 9500, "requestPath": "/healthz"}
    for group in (*zonal, regional):
        assert group.inputs["updatePolicy"]["type"] == "OPPORTUNISTIC"
        assert group.inputs["instanceLifecyclePolicy"]["onFailedHealthCheck"] == "DO_NOTHING"
        assert group.inputs["autoHealingPolicies"]["healthCheck"] == f"{health.name}-id"
        assert group.inputs["waitForInstances"] is False


def test_local_ssds_over_nvme_hold_the_models(mocks: RecordingMocks) -> None:
    declare("dev", spot=Spot(zones=(A,), machine_types=("a2-highgpu-1g",)))
    boot, *scratch = template(mocks)["disks"]
    assert boot["boot"] is True
    assert scratch
    assert {(d["type"], d["diskType"], d["interface"], d["diskSizeGb"]) for d in scratch} == {
        ("SCRATCH", "local-ssd", "NVME", 375)
    }
