import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pulumi
import pytest

from components.aws.fabric import Fabric, interface_count
from components.aws.gpu_pool import GpuPool, GpuPoolArgs
from components.aws.templates import Template
from components.capacity import Ownership, PoolCapacity
from gpufleet.domain import tags
from gpufleet.domain.model import DRAIN_HOOK, READY_HOOK, CapacityType
from gpufleet.settings.document import GroupEntry
from gpufleet.settings.environment import Capacity, CapacityBlock, OnDemand, Reserved, Spot
from tests.fixtures.fakes import RecordingMocks

GROUP = "aws:autoscaling/group:Group"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
TYPES = ("g6.xlarge", "g5.xlarge")
BLOCK = CapacityBlock(
    starts=datetime(2026, 12, 1, 11, 30, tzinfo=UTC), ends=datetime(2026, 12, 15, 11, 30, tzinfo=UTC)
)
CAPACITY = PoolCapacity(
    target=3,
    spare=0,
    max=5,
    ways=Capacity(
        reserved=(Reserved(zone="us-east-1a", machine_type="g6.xlarge", count=1),),
        spot=Spot(zones=("us-east-1a", "us-east-1b"), machine_types=TYPES),
        on_demand=OnDemand(max=2, machine_types=TYPES, zones=("us-east-1a", "us-east-1b")),
    ),
)


def declare(
    capacity: PoolCapacity = CAPACITY, fabric_group: str | None = None, adopted: Mapping[str, str] | None = None
) -> list[GroupEntry]:
    """Declare the pool `chat` and return the groups that the fleet document would list."""
    seen: list[GroupEntry] = []

    @pulumi.runtime.test
    def program() -> pulumi.Output[None]:
        pool = GpuPool(
            "chat",
            GpuPoolArgs(
                owned=Ownership(environment="test", pool="chat", owner="search-team"),
                capacity=capacity,
                template=Template(image="ami-1", instance_profile="arn:profile", security_group="sg-1"),
                user_data=lambda capacity_type: f"#!/bin/bash\n# {capacity_type}\n",
                subnet_ids={"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"},
                drain_deadline=timedelta(seconds=90),
                fabric_group=fabric_group,
                adopted=adopted or {},
            ),
        )
        return pool.groups.apply(seen.extend)

    program()
    return seen


@pytest.mark.parametrize(
    ("name", "subnets", "limit", "at_creation"),
    [
        ("chat-reserved-us-east-1a-g6-xlarge", ["subnet-a"], 1, 1),
        ("chat-spot-us-east-1a", ["subnet-a"], 5, 1),
        ("chat-spot-us-east-1b", ["subnet-b"], 5, 1),
        ("chat-on-demand", ["subnet-a", "subnet-b"], 2, 0),
    ],
)
def test_each_capacity_type_has_its_groups(
    mocks: RecordingMocks, name: str, subnets: list[str], limit: int, at_creation: int
) -> None:
    declare()
    group = mocks.named(GROUP, name)
    assert group["vpcZoneIdentifiers"] == subnets
    assert (group["minSize"], group["maxSize"], group["desiredCapacity"]) == (0, limit, at_creation)


def test_groups_suspend_processes_that_act_against_watchdogs(mocks: RecordingMocks) -> None:
    declare()
    assert len(mocks.of_type(GROUP)) == 4
    for group in mocks.of_type(GROUP):
        assert group.inputs["capacityRebalance"] is False
        assert group.inputs["suspendedProcesses"] == ["AZRebalance"]
        assert group.inputs["waitForCapacityTimeout"] == "0"


def test_adopted_group_keeps_its_name_and_gets_its_hook_afterwards(mocks: RecordingMocks) -> None:
    entries = declare(adopted={"on-demand": "inference"})
    assert mocks.named(GROUP, "chat-on-demand")["name"] == "inference"
    assert "initialLifecycleHooks" not in mocks.named(GROUP, "chat-on-demand")
    assert "initialLifecycleHooks" in mocks.named(GROUP, "chat-spot-us-east-1a")
    hook = mocks.named("aws:autoscaling/lifecycleHook:LifecycleHook", "chat-on-demand-ready")
    assert (hook["name"], hook["autoscalingGroupName"]) == (READY_HOOK, "inference")
    assert entries[-1].name == "inference"


@pytest.mark.parametrize(
    ("name", "share", "machine_types"),
    [("chat-spot-us-east-1b", 0, list(TYPES)), ("chat-on-demand", 100, list(TYPES))],
)
def test_spot_groups_use_only_spot_and_on_demand_groups_none(
    mocks: RecordingMocks, name: str, share: int, machine_types: list[str]
) -> None:
    declare()
    policy = mocks.named(GROUP, name)["mixedInstancesPolicy"]
    assert policy["instancesDistribution"]["onDemandBaseCapacity"] == 0
    assert policy["instancesDistribution"]["onDemandPercentageAboveBaseCapacity"] == share
    assert [o["instanceType"] for o in policy["launchTemplate"]["overrides"]] == machine_types


def test_reserved_instances_start_only_in_their_reservation(mocks: RecordingMocks) -> None:
    declare()
    name = "chat-reserved-us-east-1a-g6-xlarge"
    reservation = mocks.named("aws:ec2/capacityReservation:CapacityReservation", name)
    assert reservation["instanceMatchCriteria"] == "targeted"
    assert (reservation["instanceCount"], reservation["availabilityZone"]) == (1, "us-east-1a")
    target = mocks.named(TEMPLATE, name)["capacityReservationSpecification"]["capacityReservationTarget"]
    assert target == {"capacityReservationId": f"{name}-id"}


def test_an_existing_block_is_used_and_not_created(mocks: RecordingMocks) -> None:
    block = Reserved(zone="us-east-1a", machine_type="p5.48xlarge", count=2, existing="cr-1", block=BLOCK)
    entries = declare(PoolCapacity(target=2, spare=0, max=2, ways=Capacity(reserved=(block,))))
    assert not mocks.of_type("aws:ec2/capacityReservation:CapacityReservation")
    template = mocks.named(TEMPLATE, "chat-reserved-us-east-1a-p5-48xlarge")
    assert template["instanceMarketOptions"] == {"marketType": "capacity-block"}
    assert [entry.reservation for entry in entries] == ["cr-1"]
    group = mocks.named(GROUP, "chat-reserved-us-east-1a-p5-48xlarge")
    assert (group["desiredCapacity"], group["maxSize"]) == (0, 2), "nothing is wanted before its time"
    assert [(entry.opens, entry.closes) for entry in entries] == [
        (datetime(2026, 12, 1, 11, 30, tzinfo=UTC), datetime(2026, 12, 15, 11, 0, tzinfo=UTC))
    ], "AWS begins to terminate instances 30 minutes before the block's end"


def test_templates_are_safe(mocks: RecordingMocks) -> None:
    declare()
    assert len(mocks.of_type(TEMPLATE)) == 3
    for template in mocks.of_type(TEMPLATE):
        inputs: dict[str, Any] = template.inputs
        assert inputs["metadataOptions"]["httpTokens"] == "required"
        assert [i["associatePublicIpAddress"] for i in inputs["networkInterfaces"]] == ["false"]
        assert [d["ebs"]["encrypted"] for d in inputs["blockDeviceMappings"]] == ["true"]
        assert "keyName" not in inputs


def test_user_data_contains_the_capacity_type(mocks: RecordingMocks) -> None:
    declare()
    scripts = {t.name: base64.b64decode(t.inputs["userData"]).decode() for t in mocks.of_type(TEMPLATE)}
    assert scripts == {
        "chat-reserved-us-east-1a-g6-xlarge": "#!/bin/bash\n# reserved\n",
        "chat-spot": "#!/bin/bash\n# spot\n",
        "chat-on-demand": "#!/bin/bash\n# on-demand\n",
    }


def test_every_group_propagates_the_fleet_tags_to_its_instances(mocks: RecordingMocks) -> None:
    declare()
    for group in mocks.of_type(GROUP):
        handed = {tag["key"]: tag["value"] for tag in group.inputs["tags"] if tag["propagateAtLaunch"]}
        assert handed.keys() >= tags.REQUIRED
        assert handed[tags.POOL] == "chat"


def test_every_group_has_a_launch_hook_that_continues_at_its_timeout(mocks: RecordingMocks) -> None:
    declare()
    for group in mocks.of_type(GROUP):
        (hook,) = group.inputs["initialLifecycleHooks"]
        assert (hook["name"], hook["lifecycleTransition"]) == (READY_HOOK, "autoscaling:EC2_INSTANCE_LAUNCHING")
        assert (hook["defaultResult"], hook["heartbeatTimeout"]) == ("CONTINUE", 1800)


def test_every_group_waits_for_the_drain(mocks: RecordingMocks) -> None:
    declare()
    hooks = mocks.of_type("aws:autoscaling/lifecycleHook:LifecycleHook")
    assert {hook.inputs["autoscalingGroupName"] for hook in hooks} == {f"{g.name}-3f2a" for g in mocks.of_type(GROUP)}
    for hook in hooks:
        assert (hook.inputs["name"], hook.inputs["defaultResult"]) == (DRAIN_HOOK, "CONTINUE")
        assert hook.inputs["lifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
        assert hook.inputs["heartbeatTimeout"] == 150


def test_the_document_lists_every_group_with_its_cloud_name(mocks: RecordingMocks) -> None:
    entries = declare()
    assert [(e.type, e.zone, e.name, e.max) for e in entries] == [
        (CapacityType.RESERVED, "us-east-1a", "chat-reserved-us-east-1a-g6-xlarge-3f2a", 1),
        (CapacityType.SPOT, "us-east-1a", "chat-spot-us-east-1a-3f2a", 5),
        (CapacityType.SPOT, "us-east-1b", "chat-spot-us-east-1b-3f2a", 5),
        (CapacityType.ON_DEMAND, None, "chat-on-demand-3f2a", 2),
    ]
    assert {e.machine_types for e in entries[1:]} == {TYPES}


ONE_ZONE = ("us-east-1a",)
MULTI = PoolCapacity(
    target=1,
    spare=0,
    max=3,
    ways=Capacity(
        reserved=(
            Reserved(zone="us-east-1a", machine_type="p5.48xlarge", count=1),
            Reserved(zone="us-east-1b", machine_type="p5.48xlarge", count=1, existing="cr-1", block=BLOCK),
        ),
        spot=Spot(zones=("us-east-1a", "us-east-1b"), machine_types=("g6.8xlarge", "g6e.8xlarge")),
        on_demand=OnDemand(max=1, machine_types=("p4d.24xlarge",), zones=ONE_ZONE),
    ),
)


@pytest.mark.parametrize(
    ("name", "count"),
    [("chat-spot", 1), ("chat-on-demand", 4), ("chat-reserved-us-east-1a-p5-48xlarge", 32)],
    ids=["one card", "four cards", "32 cards"],
)
def test_machines_with_efa_have_all_their_interfaces(mocks: RecordingMocks, name: str, count: int) -> None:
    declare(MULTI, fabric_group="sg-fabric")
    found = mocks.named(TEMPLATE, name)["networkInterfaces"]
    assert [i["networkCardIndex"] for i in found] == list(range(count)), "one for each card"
    assert [i["deviceIndex"] for i in found] == [0, *[1] * (count - 1)]
    assert [i["interfaceType"] for i in found] == ["efa", *["efa-only"] * (count - 1)], "one address is enough"
    assert all(i["associatePublicIpAddress"] == "false" for i in found)
    assert all(i["securityGroups"] == ["sg-1", "sg-fabric"] for i in found)


def test_machines_with_efa_use_a_placement_group_in_their_zone(mocks: RecordingMocks) -> None:
    declare(MULTI, fabric_group="sg-fabric")
    near = {g.name: g.inputs.get("placementGroup") for g in mocks.of_type(GROUP)}
    made = {g.name: g.inputs["strategy"] for g in mocks.of_type("aws:ec2/placementGroup:PlacementGroup")}
    bought = "chat-reserved-us-east-1b-p5-48xlarge"
    assert near.pop(bought) is None, "a block is where it was bought"
    assert made == dict.fromkeys(near, "cluster"), "one for each other group"
    assert None not in near.values() and len(set(near.values())) == len(near)
    made_here = mocks.named("aws:ec2/capacityReservation:CapacityReservation", "chat-reserved-us-east-1a-p5-48xlarge")
    assert "placementGroupArn" in made_here, "what is reserved is reserved there"


def test_without_efa_there_is_no_placement_group(mocks: RecordingMocks) -> None:
    declare()
    assert not mocks.of_type("aws:ec2/placementGroup:PlacementGroup")
    assert all(g.inputs.get("placementGroup") is None for g in mocks.of_type(GROUP))


@pytest.mark.parametrize("types", [("g6.xlarge",), ("g6.8xlarge", "p4d.24xlarge")], ids=["none", "not the same"])
def test_a_template_needs_the_same_interfaces_for_all_machine_types(types: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="EFA"):
        interface_count(types)


def test_the_fabric_allows_traffic_between_its_members_only(mocks: RecordingMocks) -> None:
    @pulumi.runtime.test
    def program() -> None:
        Fabric("fleet-fabric", "vpc-1", {})

    program()
    rules = [r for r in mocks.resources if r.typ.startswith("aws:vpc/securityGroup")]
    assert sorted(r.name for r in rules) == ["fleet-fabric-in", "fleet-fabric-out"]
    for rule in rules:
        assert rule.inputs["securityGroupId"] == rule.inputs["referencedSecurityGroupId"] == "fleet-fabric-id"
        assert rule.inputs["ipProtocol"] == "-1" and "cidrIpv4" not in rule.inputs
