"""What changes in a group that a pool takes over, and which groups it cannot take over."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import yaml

from app.adoption import GroupChange, PoolGroups, RefusalCode, compare
from app.adoption_files import import_file, with_adopted
from app.errors import AppError
from components.aws import group_shape
from components.capacity import Ownership, PoolCapacity
from gpufleet.domain.existing_group import Distribution, ExistingGroup, GroupMember, GroupTag, LifecycleHook
from gpufleet.domain.model import CapacityType
from gpufleet.settings.environment import Capacity, OnDemand, Spot

ZONES = ("us-east-1a", "us-east-1b")
TYPES = ("g6.xlarge", "g5.xlarge")
OWNED = Ownership(environment="prod", pool="chat", owner="search-team")
CAPACITY = PoolCapacity(
    target=2,
    spare=0,
    max=4,
    ways=Capacity(
        spot=Spot(zones=ZONES, machine_types=TYPES), on_demand=OnDemand(max=4, machine_types=TYPES, zones=ZONES)
    ),
)
HOOKS = (group_shape.ready_hook(), group_shape.drain_hook(timedelta(seconds=90)))
POOL = PoolGroups(
    pool="chat",
    environment="prod",
    shapes=tuple(group_shape.adoptable(CAPACITY)),
    network="vpc-1",
    subnets={"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"},
    tags={kind: OWNED.tags(kind) for kind in CapacityType},
    hooks=HOOKS,
    adopted={},
)
MEMBER = GroupMember(id="i-1", machine_type="g6.xlarge", capacity_type=CapacityType.ON_DEMAND, state="InService")
GROUP = ExistingGroup(
    name="inference",
    min=1,
    max=3,
    desired=1,
    zones=ZONES,
    subnets=("subnet-a", "subnet-b"),
    networks=frozenset({"vpc-1"}),
    template="lt-1, version 7",
    distribution=None,
    machine_types=("g6.xlarge",),
    members=(MEMBER,),
)
ALL_SPOT = Distribution(
    on_demand_base=0, on_demand_percentage=0, on_demand_strategy="prioritized", spot_strategy="capacity-optimized"
)
IN_ONE_ZONE: Mapping[str, Any] = {"zones": ("us-east-1a",), "subnets": ("subnet-a",)}
FLEET_TAGS = {f"Tags.gpu-fleet:{name}" for name in ("capacity-type", "environment", "owner", "pool")}
ALWAYS = {
    *("MixedInstancesPolicy", "LifecycleHooks.ready", "LifecycleHooks.drain", "Tags.Name"),
    *("SuspendedProcesses", "MinSize", "MaxSize"),
    *FLEET_TAGS,
}


def codes(group: ExistingGroup, pool: PoolGroups = POOL, **siblings: ExistingGroup) -> list[RefusalCode]:
    found = compare(group, pool, siblings)
    assert not (found.refusals and found.changes), "a group that cannot be adopted does not change"
    assert all(one.detail and one.remedy for one in found.refusals)
    return [one.code for one in found.refusals]


def test_each_change_of_a_plain_group_is_listed() -> None:
    found = compare(replace(GROUP, tags={"team": GroupTag(value="search", at_launch=True)}), POOL, {})
    assert (found.key, found.instances, found.refusals) == ("on-demand", 1, ())
    assert found.changes == (
        GroupChange(field="MinSize", before="1", after="0"),
        GroupChange(field="MaxSize", before="3", after="4"),
        GroupChange(field="LaunchTemplate", before="lt-1, version 7", after="none"),
        GroupChange(
            field="MixedInstancesPolicy",
            before="none",
            after="100 % on-demand, prioritized, g6.xlarge, g5.xlarge; a new launch template of the pool, for new"
            " instances",
        ),
        GroupChange(field="SuspendedProcesses", before="none", after="AZRebalance"),
        GroupChange(field="LifecycleHooks.ready", before="none", after="launching, 1800 s, then CONTINUE"),
        GroupChange(field="LifecycleHooks.drain", before="none", after="terminating, 150 s, then CONTINUE"),
        GroupChange(field="Tags.Name", before="none", after="chat-on-demand, also on new instances"),
        GroupChange(field="Tags.gpu-fleet:capacity-type", before="none", after="on-demand, also on new instances"),
        GroupChange(field="Tags.gpu-fleet:environment", before="none", after="prod, also on new instances"),
        GroupChange(field="Tags.gpu-fleet:owner", before="none", after="search-team, also on new instances"),
        GroupChange(field="Tags.gpu-fleet:pool", before="none", after="chat, also on new instances"),
        GroupChange(field="Tags.team", before="search, also on new instances", after="none"),
    )


@pytest.mark.parametrize(
    ("group", "key", "more", "less"),
    [
        pytest.param({}, "on-demand", {"LaunchTemplate"}, set[str](), id="on-demand by template"),
        pytest.param(
            {**IN_ONE_ZONE},
            "on-demand",
            {"LaunchTemplate", "VPCZoneIdentifier", "AvailabilityZones"},
            set[str](),
            id="fewer zones",
        ),
        pytest.param(
            {**IN_ONE_ZONE, "distribution": ALL_SPOT, "members": (replace(MEMBER, capacity_type=CapacityType.SPOT),)},
            "spot-us-east-1a",
            set[str](),
            set[str](),
            id="spot by policy",
        ),
        pytest.param(
            {**IN_ONE_ZONE, "market": "spot", "members": ()},
            "spot-us-east-1a",
            {"LaunchTemplate"},
            set[str](),
            id="spot by template",
        ),
        pytest.param(
            {"min": 0, "max": 4, "suspended": ("AZRebalance",), "hooks": {hook.name: hook for hook in HOOKS}},
            "on-demand",
            {"LaunchTemplate"},
            {"MinSize", "MaxSize", "SuspendedProcesses", "LifecycleHooks.ready", "LifecycleHooks.drain"},
            id="equal fields",
        ),
        pytest.param(
            {"capacity_rebalance": True, "health_check": "ELB"},
            "on-demand",
            {"LaunchTemplate", "CapacityRebalance", "HealthCheckType"},
            set[str](),
            id="rebalancing and health check",
        ),
    ],
)
def test_only_fields_that_differ_change(group: dict[str, Any], key: str, more: set[str], less: set[str]) -> None:
    found = compare(replace(GROUP, **group), POOL, {})
    assert (found.key, found.refusals) == (key, ())
    assert {one.field for one in found.changes} == (ALWAYS | more) - less


def tagged(**values: str) -> dict[str, Any]:
    return {"tags": {key: GroupTag(value=value, at_launch=False) for key, value in values.items()}}


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        pytest.param({"template": None}, RefusalCode.LAUNCH_CONFIGURATION, id="launch configuration"),
        pytest.param(
            {"distribution": replace(ALL_SPOT, on_demand_percentage=30)}, RefusalCode.MIXED_CAPACITY, id="mixed"
        ),
        pytest.param(
            {"distribution": replace(ALL_SPOT, on_demand_base=1)}, RefusalCode.MIXED_CAPACITY, id="on-demand base"
        ),
        pytest.param(
            {"members": (replace(MEMBER, capacity_type=CapacityType.SPOT),)},
            RefusalCode.CAPACITY_TYPE,
            id="spot member",
        ),
        pytest.param(
            {"distribution": ALL_SPOT, "zones": ("us-east-1c",), "members": ()},
            RefusalCode.CAPACITY_TYPE,
            id="spot in a zone without a spot group",
        ),
        pytest.param({"distribution": ALL_SPOT, "members": ()}, RefusalCode.ZONE, id="spot in two zones"),
        pytest.param({"reservation": "cr-1"}, RefusalCode.RESERVED_CAPACITY, id="reservation"),
        pytest.param({"market": "capacity-block"}, RefusalCode.RESERVED_CAPACITY, id="capacity block"),
        pytest.param(
            {**IN_ONE_ZONE, "distribution": replace(ALL_SPOT, spot_max_price="0.4"), "members": ()},
            RefusalCode.SPOT_PRICE_LIMIT,
            id="spot price limit",
        ),
        pytest.param({"weighted": True}, RefusalCode.WEIGHTED_CAPACITY, id="weights"),
        pytest.param({"units": "vcpu"}, RefusalCode.WEIGHTED_CAPACITY, id="vCPUs"),
        pytest.param({"by_attributes": True}, RefusalCode.ATTRIBUTE_BASED_TYPES, id="attributes"),
        pytest.param({"machine_types": ("g99.xlarge",)}, RefusalCode.UNKNOWN_MACHINE_TYPE, id="unknown type"),
        pytest.param(
            {"members": (replace(MEMBER, machine_type="g6.2xlarge"),)}, RefusalCode.MACHINE_TYPE, id="other type"
        ),
        pytest.param({"networks": frozenset({"vpc-2"})}, RefusalCode.ANOTHER_NETWORK, id="other VPC"),
        pytest.param({"networks": frozenset[str]()}, RefusalCode.ANOTHER_NETWORK, id="no VPC"),
        pytest.param({"subnets": ("subnet-a", "subnet-z")}, RefusalCode.SUBNET, id="other subnet"),
        pytest.param({"zones": (*ZONES, "us-east-1f")}, RefusalCode.ZONE, id="other zone"),
        pytest.param({"desired": 5, "max": 6}, RefusalCode.ABOVE_LIMIT, id="larger than the pool"),
        pytest.param({"unencrypted": ("vol-1",)}, RefusalCode.UNENCRYPTED_DISK, id="unencrypted disk"),
        pytest.param({"warm_pool": True}, RefusalCode.WARM_POOL, id="warm pool"),
        pytest.param({"placement_group": "near"}, RefusalCode.PLACEMENT_GROUP, id="placement group"),
        pytest.param({"max_lifetime_s": 604800}, RefusalCode.INSTANCE_LIFETIME, id="maximum lifetime"),
        pytest.param({"protects_new": True}, RefusalCode.SCALE_IN_PROTECTION, id="protects new instances"),
        pytest.param(
            {"members": (replace(MEMBER, protected=True),)}, RefusalCode.SCALE_IN_PROTECTION, id="protected"
        ),
        pytest.param({"policies": ("cpu",)}, RefusalCode.SCALING_POLICIES, id="scaling policy"),
        pytest.param({"schedules": ("night",)}, RefusalCode.SCHEDULED_ACTIONS, id="scheduled action"),
        pytest.param(
            {"hooks": {"mine": LifecycleHook(name="mine", transition="autoscaling:EC2_INSTANCE_X", timeout_s=60)}},
            RefusalCode.OTHER_HOOKS,
            id="other hook",
        ),
        pytest.param({"suspended": ("Launch",)}, RefusalCode.SUSPENDED_PROCESSES, id="suspended launches"),
        pytest.param({"refreshing": True}, RefusalCode.IN_CHANGE, id="refresh in progress"),
        pytest.param({"deleting": True}, RefusalCode.IN_CHANGE, id="deletion in progress"),
        pytest.param({"members": (replace(MEMBER, state="Standby"),)}, RefusalCode.IN_CHANGE, id="standby"),
        pytest.param(
            {"members": tuple(replace(MEMBER, id=f"i-{n}") for n in range(21))},
            RefusalCode.TOO_MANY_INSTANCES,
            id="more instances than watchdogs read one by one",
        ),
        pytest.param(
            tagged(**{"gpu-fleet:environment": "prod"}), RefusalCode.ALREADY_MANAGED, id="managed by this fleet"
        ),
        pytest.param(tagged(**{"gpu-fleet:environment": "dev"}), RefusalCode.ANOTHER_FLEET, id="another fleet"),
        *(
            pytest.param(tagged(**{key: "x"}), RefusalCode.ANOTHER_OWNER, id=key)
            for key in (
                *("aws:cloudformation:stack-name", "eks:nodegroup-name", "karpenter.sh/nodepool"),
                *("k8s.io/cluster-autoscaler/enabled", "kubernetes.io/cluster/one", "AmazonECSManaged"),
            )
        ),
    ],
)
def test_group_that_cannot_be_adopted_is_refused_with_a_code(group: dict[str, Any], expected: RefusalCode) -> None:
    assert codes(replace(GROUP, **group)) == [expected]


def test_all_reasons_are_named_at_once() -> None:
    assert codes(replace(GROUP, template=None, warm_pool=True, policies=("cpu",))) == [
        RefusalCode.LAUNCH_CONFIGURATION,
        RefusalCode.WARM_POOL,
        RefusalCode.SCALING_POLICIES,
    ]


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        pytest.param({"network": None, "subnets": {}}, RefusalCode.ANOTHER_NETWORK, id="network of the program"),
        pytest.param({"close_together": True}, RefusalCode.PLACEMENT_GROUP, id="EFA"),
        pytest.param({"shapes": ()}, RefusalCode.CAPACITY_TYPE, id="no on-demand"),
    ],
)
def test_pool_that_cannot_adopt_is_refused_with_a_code(pool: dict[str, Any], expected: RefusalCode) -> None:
    assert codes(GROUP, replace(POOL, **pool)) == [expected]


@pytest.mark.parametrize(
    ("kind", "zones", "expected"),
    [
        pytest.param("on-demand", ZONES, [RefusalCode.POOL_HAS_GROUP], id="same group"),
        pytest.param("spot", ZONES[:1], [], id="another capacity type"),
    ],
)
def test_pool_never_loses_its_own_group(kind: str, zones: tuple[str, ...], expected: list[RefusalCode]) -> None:
    own = replace(GROUP, name="chat-on-demand-1", zones=zones, **tagged(**{"gpu-fleet:capacity-type": kind}))
    assert codes(GROUP, POOL, **{own.name: own}) == expected


def test_pool_that_adopts_another_group_is_refused() -> None:
    pool = replace(POOL, adopted={"on-demand": "earlier"})
    own = replace(GROUP, name="earlier", **tagged(**{"gpu-fleet:capacity-type": "on-demand"}))
    assert codes(GROUP, pool, **{own.name: own}) == [RefusalCode.POOL_HAS_GROUP]
    assert codes(GROUP, replace(POOL, adopted={"on-demand": GROUP.name})) == []


FILE = """\
# prod
config:
  aws:region: us-east-1
  gpu-fleet:fleet:
    pools:
      - name: chat  # the first
        model: chat-8b
      - model: sql
        name: batch
        adopt: {spot-us-east-1a: old}  # since May
      - {name: flow, model: sql}
"""


@pytest.mark.parametrize(
    ("pool", "line"),
    [
        pytest.param("chat", "        adopt: {on-demand: inference}", id="first group"),
        pytest.param(
            "batch", "        adopt: {on-demand: inference, spot-us-east-1a: old}  # since May", id="another group"
        ),
    ],
)
def test_setting_is_added_and_others_stay(pool: str, line: str) -> None:
    changed = with_adopted(FILE, pool, "on-demand", "inference")
    assert line in changed.splitlines()
    assert {*FILE.splitlines()} - {*changed.splitlines()} <= {"        adopt: {spot-us-east-1a: old}  # since May"}
    pools = yaml.safe_load(changed)["config"]["gpu-fleet:fleet"]["pools"]
    assert next(one for one in pools if one["name"] == pool)["adopt"]["on-demand"] == "inference"


@pytest.mark.parametrize("pool", ["flow", "missing"])
def test_file_that_cannot_be_changed_in_place_is_left(pool: str) -> None:
    with pytest.raises(AppError, match=r"add `adopt: \{on-demand: inference\}` to pool"):
        with_adopted(FILE, pool, "on-demand", "inference")


def test_adopted_group_is_not_exchanged_for_another() -> None:
    with pytest.raises(AppError, match="pool batch adopts old as spot-us-east-1a already"):
        with_adopted(FILE, "batch", "spot-us-east-1a", "inference")


def test_import_file_names_the_group_as_the_program_does() -> None:
    component, group = import_file(compare(GROUP, POOL, {}))["resources"]
    assert component == {"type": "gpu-fleet:aws:GpuPool", "name": "chat", "component": True}
    assert (group["name"], group["id"], group["parent"]) == ("chat-on-demand", "inference", "chat")
