"""Compares an existing Auto Scaling group with the group of a pool that is to take it over. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from components.aws import group_shape
from components.aws.group_shape import GroupShape
from gpufleet.domain import catalogue, tags
from gpufleet.domain.existing_group import Distribution, ExistingGroup, GroupMember, GroupTag, LifecycleHook
from gpufleet.domain.model import DRAIN_HOOK, READY_HOOK, CapacityType, Cloud
from gpufleet.settings.environment import GivenNetwork, PoolSettings, Settings
from stacks import pools
from watchdogs.observe.completeness import MAX_ASKED

OTHER_OWNERS: Final[Mapping[str, str]] = {
    "aws:cloudformation:": "CloudFormation",
    "eks:": "EKS",
    "karpenter.sh/": "Karpenter",
    "k8s.io/": "Kubernetes",
    "kubernetes.io/": "Kubernetes",
    "elasticbeanstalk:": "Elastic Beanstalk",
    "AmazonECSManaged": "ECS",
    "AWSBatchServiceTag": "AWS Batch",
}
"""Prefixes of the keys of tags, and the tool or service that owns a group with such a tag."""
_IN_SERVICE: Final = "InService"
_NONE: Final = "none"
_ALL: Final = 100
"""Percent."""


class RefusalCode(StrEnum):
    """Why a group cannot be adopted. The codes never change."""

    ALREADY_MANAGED = "already_managed"
    ANOTHER_FLEET = "another_fleet"
    ANOTHER_OWNER = "another_owner"
    POOL_HAS_GROUP = "pool_has_group"
    LAUNCH_CONFIGURATION = "launch_configuration"
    MIXED_CAPACITY = "mixed_capacity"
    CAPACITY_TYPE = "capacity_type"
    RESERVED_CAPACITY = "reserved_capacity"
    SPOT_PRICE_LIMIT = "spot_price_limit"
    WEIGHTED_CAPACITY = "weighted_capacity"
    ATTRIBUTE_BASED_TYPES = "attribute_based_types"
    MACHINE_TYPE = "machine_type"
    UNKNOWN_MACHINE_TYPE = "unknown_machine_type"
    ANOTHER_NETWORK = "another_network"
    SUBNET = "subnet"
    ZONE = "zone"
    ABOVE_LIMIT = "above_limit"
    UNENCRYPTED_DISK = "unencrypted_disk"
    WARM_POOL = "warm_pool"
    PLACEMENT_GROUP = "placement_group"
    INSTANCE_LIFETIME = "instance_lifetime"
    SCALE_IN_PROTECTION = "scale_in_protection"
    SCALING_POLICIES = "scaling_policies"
    SCHEDULED_ACTIONS = "scheduled_actions"
    OTHER_HOOKS = "other_hooks"
    SUSPENDED_PROCESSES = "suspended_processes"
    IN_CHANGE = "in_change"
    TOO_MANY_INSTANCES = "too_many_instances"
    NOT_ON_GOOGLE = "not_on_google"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One reason why a group cannot be adopted."""

    code: RefusalCode
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """A field of the group, as the API of Auto Scaling names it, that `pulumi up` changes."""

    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGroups:
    """What a pool declares of the groups that can take over an existing one."""

    pool: str
    environment: str
    shapes: tuple[GroupShape, ...]
    network: str | None
    """VPC; None: the program creates it."""
    subnets: Mapping[str, str]
    """Subnet by zone."""
    tags: Mapping[CapacityType, Mapping[str, str]]
    hooks: tuple[LifecycleHook, ...]
    adopted: Mapping[str, str]
    """Existing group by the key of the group that it becomes, in the settings."""
    close_together: bool = False
    """Whether its groups have a placement group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What it takes to adopt a group: the changes, or the reasons why it cannot be adopted."""

    group: str
    pool: str
    key: str | None
    """The group of the pool that the existing one becomes. None: none fits."""
    instances: int
    changes: tuple[GroupChange, ...]
    refusals: tuple[Refusal, ...]


def groups_of(settings: Settings, pool: PoolSettings) -> PoolGroups:
    """Return the groups that this pool declares."""
    owned = pools.owned(settings, pool)
    given = settings.network if isinstance(settings.network, GivenNetwork) else None
    return PoolGroups(
        pool=pool.name,
        environment=settings.environment,
        shapes=tuple(group_shape.adoptable(pools.capacity(settings, pool))),
        network=given and given.id,
        subnets=given.subnets if given else {},
        tags={kind: owned.tags(kind) for kind in CapacityType},
        hooks=(group_shape.ready_hook(), group_shape.drain_hook(pool.drain_deadline)),
        adopted=pool.adopt,
        close_together=pool.network == "efa",
    )


def on_google(pool: str, group: str) -> Adoption:
    """Return the answer for a managed instance group of Google Cloud."""
    refusal = Refusal(
        code=RefusalCode.NOT_ON_GOOGLE,
        detail="is a managed instance group; groups of Google Cloud cannot be adopted yet",
        remedy="let the pool create its own groups, send clients to it, and delete the old group",
    )
    return Adoption(group=group, pool=pool, key=None, instances=0, changes=(), refusals=(refusal,))


def compare(existing: ExistingGroup, pool: PoolGroups, siblings: Mapping[str, ExistingGroup]) -> Adoption:
    """Return the changes of the group, and why it cannot be adopted. `siblings`: groups with the tags of the pool."""
    kind = _capacity_type(existing)
    shape = _shape(existing, kind, pool.shapes)
    refusals = [
        *_of_owner(existing, pool),
        *_of_capacity(existing, kind, shape, pool),
        *_of_behaviour(existing),
        *_of_instances(existing),
    ]
    if shape is not None:
        refusals += [*_of_shape(existing, shape), *_of_place(existing, shape, pool)]
        refusals += _of_siblings(existing, shape, pool, siblings)
    return Adoption(
        group=existing.name,
        pool=pool.pool,
        key=shape and shape.key,
        instances=len(existing.members),
        changes=() if shape is None or refusals else tuple(_changes(existing, shape, pool)),
        refusals=tuple(refusals),
    )


def _capacity_type(existing: ExistingGroup) -> CapacityType | None:
    """How the group buys new instances; None: in several ways."""
    if existing.reservation or existing.market == "capacity-block":
        return CapacityType.RESERVED
    mix = existing.distribution
    if mix is None:
        return CapacityType.SPOT if existing.market == "spot" else CapacityType.ON_DEMAND
    if mix.on_demand_percentage == _ALL:
        return CapacityType.ON_DEMAND
    return CapacityType.SPOT if mix.on_demand_base == mix.on_demand_percentage == 0 else None


def _shape(existing: ExistingGroup, kind: CapacityType | None, shapes: Sequence[GroupShape]) -> GroupShape | None:
    """The group of the pool for this capacity type. A spot group has one zone."""
    fitting = [one for one in shapes if one.capacity_type is kind]
    if kind is CapacityType.SPOT:
        fitting = [one for one in fitting if one.zones == existing.zones]
    return next(iter(fitting), None)


def _of_owner(existing: ExistingGroup, pool: PoolGroups) -> Iterator[Refusal]:
    environment = existing.tags.get(tags.ENVIRONMENT)
    if environment is not None and environment.value == pool.environment:
        yield Refusal(
            code=RefusalCode.ALREADY_MANAGED,
            detail=f"has the tag {tags.ENVIRONMENT}={environment.value}, so this fleet manages it already",
            remedy="nothing is left to do; `pulumi preview` shows what differs",
        )
    elif environment is not None:
        yield Refusal(
            code=RefusalCode.ANOTHER_FLEET,
            detail=f"has the tag {tags.ENVIRONMENT}={environment.value}: another fleet manages it",
            remedy="choose another group; groups are never handed over between fleets",
        )
    for key in sorted(existing.tags):
        owner = next((name for prefix, name in OTHER_OWNERS.items() if key.startswith(prefix)), None)
        if owner is not None:
            yield Refusal(
                code=RefusalCode.ANOTHER_OWNER,
                detail=f"has the tag {key}: {owner} manages it and would undo each change",
                remedy=f"let {owner} release the group, or let the pool create its own group",
            )
            return


def _of_siblings(
    existing: ExistingGroup, shape: GroupShape, pool: PoolGroups, siblings: Mapping[str, ExistingGroup]
) -> Iterator[Refusal]:
    adopted = pool.adopted.get(shape.key, existing.name)
    if adopted != existing.name:
        yield Refusal(
            code=RefusalCode.POOL_HAS_GROUP,
            detail=f"the settings of the pool adopt {adopted} as {shape.key}",
            remedy="remove that from `adopt` of the pool, or adopt this group into a new pool",
        )
    for name, other in sorted(siblings.items()):
        kind = other.tags.get(tags.CAPACITY_TYPE)
        same_zone = shape.capacity_type is not CapacityType.SPOT or other.zones == shape.zones
        if name in (existing.name, adopted) or kind is None:
            continue
        if kind.value == shape.capacity_type and same_zone:
            yield Refusal(
                code=RefusalCode.POOL_HAS_GROUP,
                detail=f"the pool has its own group {name} for {shape.key}, which would be deleted",
                remedy="adopt it into a new pool of the same model",
            )


def _of_capacity(
    existing: ExistingGroup, kind: CapacityType | None, shape: GroupShape | None, pool: PoolGroups
) -> Iterator[Refusal]:
    if existing.template is None:
        yield Refusal(
            code=RefusalCode.LAUNCH_CONFIGURATION,
            detail="uses a launch configuration",
            remedy="change it to a launch template first",
        )
    if kind is None and existing.distribution is not None:
        mix = existing.distribution
        yield Refusal(
            code=RefusalCode.MIXED_CAPACITY,
            detail=f"mixes spot and on-demand (base {mix.on_demand_base}, {mix.on_demand_percentage} % on-demand); a"
            " pool has a group for each",
            remedy="set its on-demand share to 0 or 100 % first; this replaces instances",
        )
    elif kind is CapacityType.RESERVED:
        yield Refusal(
            code=RefusalCode.RESERVED_CAPACITY,
            detail="starts its instances in a reservation or a Capacity Block",
            remedy="let the pool create its own group: `existing` of capacity.reserved takes over the reservation",
        )
    elif kind is CapacityType.SPOT and shape is None and len(existing.zones) != 1:
        yield Refusal(
            code=RefusalCode.ZONE,
            detail=f"buys spot capacity in several zones, {', '.join(existing.zones)}; a pool has one per zone",
            remedy="reduce its subnets to one zone first",
        )
    elif shape is None:
        known = ", ".join(one.key for one in pool.shapes) or _NONE
        where = f" in {existing.zones[0]}" if kind is CapacityType.SPOT else ""
        yield Refusal(
            code=RefusalCode.CAPACITY_TYPE,
            detail=f"buys {kind} capacity{where}, and the groups of pool {pool.pool} are {known}",
            remedy="add this capacity to the pool, or name another --pool",
        )
    if existing.distribution is not None and existing.distribution.spot_max_price:
        yield Refusal(
            code=RefusalCode.SPOT_PRICE_LIMIT,
            detail=f"has the spot price limit {existing.distribution.spot_max_price} USD/h",
            remedy="remove the limit: the spot watchdog compares the price with on-demand",
        )
    if existing.weighted or existing.units != "units":
        yield Refusal(
            code=RefusalCode.WEIGHTED_CAPACITY,
            detail="counts weights, vCPUs or memory and not instances in its sizes",
            remedy="remove the weights: the sizes of a pool are numbers of instances",
        )
    if existing.by_attributes:
        yield Refusal(
            code=RefusalCode.ATTRIBUTE_BASED_TYPES,
            detail="chooses machine types by attributes",
            remedy="name its machine types",
        )
    if existing.placement_group or pool.close_together:
        why = (
            f"is in the placement group {existing.placement_group}"
            if existing.placement_group
            else "the pool uses EFA"
        )
        yield Refusal(
            code=RefusalCode.PLACEMENT_GROUP,
            detail=f"{why}, and running instances cannot change their placement group",
            remedy="let the pool create its own group",
        )


def _of_behaviour(existing: ExistingGroup) -> Iterator[Refusal]:
    """What would act against watchdogs, or what they cannot see."""
    if existing.warm_pool:
        yield Refusal(
            code=RefusalCode.WARM_POOL,
            detail="has a warm pool, whose instances no watchdog sees",
            remedy=f"aws autoscaling delete-warm-pool --auto-scaling-group-name {existing.name}",
        )
    if existing.max_lifetime_s:
        yield Refusal(
            code=RefusalCode.INSTANCE_LIFETIME,
            detail=f"replaces instances after {existing.max_lifetime_s} s",
            remedy=f"aws autoscaling update-auto-scaling-group --auto-scaling-group-name {existing.name}"
            " --max-instance-lifetime 0",
        )
    protected = [one.id for one in existing.members if one.protected]
    if existing.protects_new or protected:
        yield Refusal(
            code=RefusalCode.SCALE_IN_PROTECTION,
            detail=f"protects instances from scale-in ({', '.join(protected) or 'new ones'})",
            remedy="remove the protection from the group and its instances; `gpufleet keep` protects an instance",
        )
    if existing.policies:
        yield Refusal(
            code=RefusalCode.SCALING_POLICIES,
            detail=f"has scaling policies: {', '.join(existing.policies)}; the watchdogs set its size",
            remedy="delete them with `aws autoscaling delete-policy`; `watchdogs.scale` of the pool replaces them",
        )
    if existing.schedules:
        yield Refusal(
            code=RefusalCode.SCHEDULED_ACTIONS,
            detail=f"has scheduled actions: {', '.join(existing.schedules)}; the watchdogs set its size",
            remedy="delete them with `aws autoscaling delete-scheduled-action`; use `watchdogs.scale.schedule`",
        )
    other = sorted(existing.hooks.keys() - {READY_HOOK, DRAIN_HOOK})
    if other:
        yield Refusal(
            code=RefusalCode.OTHER_HOOKS,
            detail=f"has lifecycle hooks that new instances of the pool do not complete: {', '.join(other)}",
            remedy="delete them with `aws autoscaling delete-lifecycle-hook`",
        )
    if paused := sorted(set(existing.suspended) - set(group_shape.SUSPENDED_PROCESSES)):
        yield Refusal(
            code=RefusalCode.SUSPENDED_PROCESSES,
            detail=f"has suspended processes: {', '.join(paused)}; `pulumi up` would resume them",
            remedy="find out why they are suspended, and resume them with `aws autoscaling resume-processes`",
        )
    if existing.refreshing or existing.deleting:
        yield Refusal(
            code=RefusalCode.IN_CHANGE,
            detail="is being deleted" if existing.deleting else "has an instance refresh in progress",
            remedy="choose another group" if existing.deleting else "wait for its end",
        )


def _of_instances(existing: ExistingGroup) -> Iterator[Refusal]:
    if len(existing.members) > MAX_ASKED:
        yield Refusal(
            code=RefusalCode.TOO_MANY_INSTANCES,
            detail=f"has {len(existing.members)} instances; with more than {MAX_ASKED} that lack the fleet's tags,"
            " watchdogs consider their list of instances incomplete",
            remedy="adopt it when it is smaller, or let the pool create its own group and move the traffic",
        )
    if waiting := sorted(one.id for one in existing.members if one.state != _IN_SERVICE):
        yield Refusal(
            code=RefusalCode.IN_CHANGE,
            detail=f"has instances that are not in service: {', '.join(waiting)}",
            remedy="wait until they are in service or gone; end the standby of instances",
        )
    if existing.unencrypted:
        yield Refusal(
            code=RefusalCode.UNENCRYPTED_DISK,
            detail=f"has instances with unencrypted disks: {', '.join(existing.unencrypted)}",
            remedy="encrypt the disks in its launch template and replace the instances",
        )


def _of_shape(existing: ExistingGroup, shape: GroupShape) -> Iterator[Refusal]:
    others = [one for one in existing.members if one.capacity_type is not shape.capacity_type]
    if others:
        yield Refusal(
            code=RefusalCode.CAPACITY_TYPE,
            detail=f"becomes a group of {shape.capacity_type} capacity, and has {_listed(others)}",
            remedy="replace these instances first",
        )
    unknown = sorted({name for name in _types(existing) if not _is_known(name)})
    if unknown:
        yield Refusal(
            code=RefusalCode.UNKNOWN_MACHINE_TYPE,
            detail=f"uses machine types that the catalogue lacks: {', '.join(unknown)}",
            remedy="docs/reference/machines.md lists the known types",
        )
    running = sorted({one.machine_type for one in existing.members} - set(shape.machine_types) - set(unknown))
    if running:
        yield Refusal(
            code=RefusalCode.MACHINE_TYPE,
            detail=f"has instances of types that the pool does not use: {', '.join(running)}",
            remedy=f"add them to the machine types of {shape.key}, or replace these instances",
        )
    if existing.desired > shape.limit:
        yield Refusal(
            code=RefusalCode.ABOVE_LIMIT,
            detail=f"has the desired size {existing.desired}, above the maximum {shape.limit} of the pool's group: a"
            " lower maximum would end instances",
            remedy="raise `max` of the pool and of its on_demand capacity",
        )


def _of_place(existing: ExistingGroup, shape: GroupShape, pool: PoolGroups) -> Iterator[Refusal]:
    networks = ", ".join(sorted(existing.networks)) or "no VPC"
    if pool.network is None or existing.networks != frozenset({pool.network}):
        own = "of its own, which the program creates" if pool.network is None else pool.network
        yield Refusal(
            code=RefusalCode.ANOTHER_NETWORK,
            detail=f"is in {networks}, and the environment uses the VPC {own}",
            remedy=f"write `network: {{kind: given, id: {networks}, …}}` with the private subnets of the group"
            if len(existing.networks) == 1 and pool.network is None
            else "choose an environment in the same VPC",
        )
    elif others := sorted(set(existing.subnets) - set(pool.subnets.values())):
        yield Refusal(
            code=RefusalCode.SUBNET,
            detail=f"is in subnets that the environment does not use: {', '.join(others)}",
            remedy="write them as `network.subnets` of the environment",
        )
    outside = sorted(set(existing.zones) - set(shape.zones))
    if outside:
        yield Refusal(
            code=RefusalCode.ZONE,
            detail=f"is in zones that {shape.key} does not use: {', '.join(outside)}; their instances would end",
            remedy=f"add the zones to the environment and to {shape.key}",
        )


def _types(existing: ExistingGroup) -> set[str]:
    return {*existing.machine_types, *(one.machine_type for one in existing.members)}


def _is_known(machine_type: str) -> bool:
    try:
        return catalogue.launch_obstacle(catalogue.machine(Cloud.AWS, machine_type)) is None
    except catalogue.UnknownMachineError:
        return False


def _listed(members: Sequence[GroupMember]) -> str:
    return ", ".join(f"{one.id} ({one.capacity_type})" for one in members)


def _changes(existing: ExistingGroup, shape: GroupShape, pool: PoolGroups) -> Iterator[GroupChange]:
    """Yield each change, in the order of the API's description of a group."""
    wanted_subnets = tuple(sorted(pool.subnets[zone] for zone in shape.zones))
    for field, before, after in (
        ("MinSize", str(existing.min), "0"),
        ("MaxSize", str(existing.max), str(shape.limit)),
        ("VPCZoneIdentifier", ", ".join(existing.subnets), ", ".join(wanted_subnets)),
        ("AvailabilityZones", ", ".join(existing.zones), ", ".join(sorted(shape.zones))),
        *_of_template(existing, shape),
        ("HealthCheckType", existing.health_check, group_shape.HEALTH_CHECK),
        ("CapacityRebalance", str(existing.capacity_rebalance), "False"),
        (
            "SuspendedProcesses",
            ", ".join(existing.suspended) or _NONE,
            ", ".join(sorted(group_shape.SUSPENDED_PROCESSES)),
        ),
    ):
        if before != after:
            yield GroupChange(field=field, before=before, after=after)
    for hook in pool.hooks:
        before = existing.hooks.get(hook.name)
        if before != hook:
            yield GroupChange(field=f"LifecycleHooks.{hook.name}", before=str(before or _NONE), after=str(hook))
    name = f"{pool.pool}-{shape.key}"
    wanted = {
        key: GroupTag(value=value, at_launch=True)
        for key, value in {"Name": name, **pool.tags[shape.capacity_type]}.items()
    }
    for key in sorted({*existing.tags, *wanted}):
        before, after = existing.tags.get(key), wanted.get(key)
        if before != after:
            yield GroupChange(field=f"Tags.{key}", before=str(before or _NONE), after=str(after or _NONE))


def _of_template(existing: ExistingGroup, shape: GroupShape) -> Iterator[tuple[str, str, str]]:
    """The launch template always changes. A group has either a template or a policy with a template."""
    after = f"{_described(_wanted(shape), shape.machine_types)}; a new launch template of the pool, for new instances"
    old = str(existing.template)
    if existing.distribution is None:
        yield "LaunchTemplate", old, _NONE
        yield "MixedInstancesPolicy", _NONE, after
    else:
        yield "MixedInstancesPolicy", f"{_described(existing.distribution, existing.machine_types)}; {old}", after


def _wanted(shape: GroupShape) -> Distribution:
    return Distribution(
        on_demand_base=0,
        on_demand_percentage=shape.on_demand_percentage,
        on_demand_strategy=group_shape.ON_DEMAND_STRATEGY,
        spot_strategy=group_shape.SPOT_STRATEGY,
    )


def _described(mix: Distribution, machine_types: Sequence[str]) -> str:
    strategy = mix.on_demand_strategy if mix.on_demand_percentage else mix.spot_strategy
    return f"{mix.on_demand_percentage} % on-demand, {strategy}, {', '.join(machine_types)}"
