"""A pool of identical GPU instances on AWS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import pulumi
from pulumi_aws import autoscaling, ec2

from components.aws import group_shape
from components.aws.fabric import close_together
from components.aws.group_shape import SUSPENDED_PROCESSES, GroupShape
from components.aws.templates import Template, launch_template
from components.capacity import BLOCK_ENDS_EARLY, Ownership, PoolCapacity, group_entry, reserved_at_creation
from gpufleet.domain import tags
from gpufleet.domain.existing_group import LifecycleHook
from gpufleet.domain.model import CapacityType
from gpufleet.settings.document import GroupEntry
from gpufleet.settings.environment import CapacityBlock, Reserved

OWNED_BY_WATCHDOGS: Final = ["desiredCapacity"]
KEPT_OF_ADOPTED: Final = [
    *("context", "defaultInstanceWarmup", "enabledMetrics", "healthCheckGracePeriod", "instanceMaintenancePolicy"),
    *("placementGroup", "terminationPolicies"),
]
"""Properties that an adopted group keeps: groups of a pool do not set them, and the provider would reset them.

The provider itself keeps others, such as target groups.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPoolArgs:
    owned: Ownership
    capacity: PoolCapacity
    template: Template
    user_data: Callable[[CapacityType], str]
    """Returns the user data of instances of a capacity type."""
    subnet_ids: Mapping[str, pulumi.Input[str]]
    """Maps each zone to its private subnet."""
    drain_deadline: timedelta
    fabric_group: pulumi.Input[str] | None = None
    """Security group of the EFA interfaces. If set, instances have EFA and run in a placement group of their zone."""
    adopted: Mapping[str, str] = field(default_factory=dict[str, str])
    """Key of a group -> name of the existing group that takes its place."""
    after: tuple[pulumi.Resource, ...] = ()
    """Resources that instances need when they boot, such as the agent's file. Groups are created after them."""


class GpuPool(pulumi.ComponentResource):
    """The groups of a pool: one per reservation, one per spot zone, and one on-demand group that covers all zones.

    Pulumi manages templates and limits. Watchdogs manage the desired size; Pulumi sets it only at creation.
    """

    groups: pulumi.Output[list[GroupEntry]]
    """Entries of the groups for the fleet document."""

    def __init__(self, name: str, args: GpuPoolArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:GpuPool", name, None, opts)
        self._name, self._args = name, args
        entries = [*self._reserved(), *self._mixed_groups()]
        self.groups = pulumi.Output.all(*entries).apply(lambda found: list[GroupEntry](found))
        self.register_outputs({"groups": self.groups.apply(lambda found: [entry.name for entry in found])})

    def _reserved(self) -> list[pulumi.Output[GroupEntry]]:
        return [self._reserved_group(reserved) for reserved in self._args.capacity.ways.reserved]

    def _reserved_group(self, reserved: Reserved) -> pulumi.Output[GroupEntry]:
        name = f"{self._name}-reserved-{reserved.zone}-{reserved.machine_type.replace('.', '-')}"
        # an existing reservation has a fixed location, and AWS already places the instances of a block close together
        near = None if reserved.existing else self._near(name, CapacityType.RESERVED)
        reservation = self._reservation(name, reserved, near)
        types = (reserved.machine_type,)
        template = self._template(name, CapacityType.RESERVED, types, reserved, reservation)
        group = self._group(
            name,
            CapacityType.RESERVED,
            zones=(reserved.zone,),
            limit=reserved.count,
            at_creation=reserved_at_creation(reserved),
            launch_template=autoscaling.GroupLaunchTemplateArgs(
                id=template.id, version=template.latest_version.apply(_version)
            ),
            near=near,
        )
        return pulumi.Output.all(group.name, reservation).apply(
            lambda found: group_entry(
                capacity_type=CapacityType.RESERVED,
                name=found[0],
                size_limit=reserved.count,
                machine_types=types,
                zone=reserved.zone,
                reservation=found[1],
                block=_usable(reserved.block),
            )
        )

    def _reservation(self, name: str, reserved: Reserved, near: ec2.PlacementGroup | None) -> pulumi.Input[str]:
        if reserved.existing is not None:
            return reserved.existing
        return ec2.CapacityReservation(
            name,
            availability_zone=reserved.zone,
            instance_type=reserved.machine_type,
            instance_count=reserved.count,
            instance_platform="Linux/UNIX",
            # targeted: only this pool's template may use the capacity that this pool pays for
            instance_match_criteria="targeted",
            placement_group_arn=near.arn if near else None,
            end_date_type="limited" if reserved.ends else "unlimited",
            end_date=f"{reserved.ends}T00:00:00Z" if reserved.ends else None,
            tags=self._tags(name, CapacityType.RESERVED)
            | ({tags.REVIEW_BY: reserved.review_by.isoformat()} if reserved.review_by else {}),
            opts=pulumi.ResourceOptions(parent=self),
        ).id

    def _mixed_groups(self) -> list[pulumi.Output[GroupEntry]]:
        """Declare the spot and on-demand groups. All spot groups share a template."""
        templates: dict[CapacityType, ec2.LaunchTemplate] = {}
        entries: list[pulumi.Output[GroupEntry]] = []
        for shape in group_shape.adoptable(self._args.capacity):
            kind = shape.capacity_type
            if kind not in templates:
                templates[kind] = self._template(f"{self._name}-{kind}", kind, shape.machine_types)
            entries.append(self._mixed(shape, templates[kind]))
        return entries

    def _mixed(self, shape: GroupShape, template: ec2.LaunchTemplate) -> pulumi.Output[GroupEntry]:
        name, capacity_type = f"{self._name}-{shape.key}", shape.capacity_type
        group = self._group(
            name,
            capacity_type,
            zones=shape.zones,
            limit=shape.limit,
            at_creation=shape.at_creation,
            mixed_instances_policy=_mixed_instances(shape, template),
            near=self._near(name, capacity_type),
            adopted=self._args.adopted.get(shape.key),
        )
        return group.name.apply(
            lambda group_name: group_entry(
                capacity_type=capacity_type,
                name=group_name,
                size_limit=shape.limit,
                machine_types=shape.machine_types,
                zone=shape.zones[0] if capacity_type is CapacityType.SPOT else None,
            )
        )

    def _template(
        self,
        name: str,
        capacity_type: CapacityType,
        machine_types: tuple[str, ...],
        reserved: Reserved | None = None,
        reservation: pulumi.Input[str] | None = None,
    ) -> ec2.LaunchTemplate:
        return launch_template(
            name,
            self._args.template,
            user_data=self._args.user_data(capacity_type),
            tags=self._tags(name, capacity_type),
            reserved=reserved,
            reservation=reservation,
            machine_types=machine_types,
            fabric_group=self._args.fabric_group,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _near(self, name: str, capacity_type: CapacityType) -> ec2.PlacementGroup | None:
        if self._args.fabric_group is None:
            return None
        return close_together(name, self._args.owned.tags(capacity_type), self)

    def _group(  # noqa: PLR0913
        self,
        name: str,
        capacity_type: CapacityType,
        *,
        zones: tuple[str, ...],
        limit: int,
        at_creation: int,
        launch_template: autoscaling.GroupLaunchTemplateArgs | None = None,
        mixed_instances_policy: autoscaling.GroupMixedInstancesPolicyArgs | None = None,
        near: ec2.PlacementGroup | None = None,
        adopted: str | None = None,
    ) -> autoscaling.Group:
        ready = group_shape.ready_hook()
        group = autoscaling.Group(
            name,
            # the name of an adopted group is stated: another one would replace the group
            name=adopted,
            min_size=0,
            max_size=limit,
            desired_capacity=at_creation,
            vpc_zone_identifiers=[self._args.subnet_ids[zone] for zone in zones],
            launch_template=launch_template,
            mixed_instances_policy=mixed_instances_policy,
            placement_group=near.name if near else None,
            capacity_rebalance=False,
            suspended_processes=list(SUSPENDED_PROCESSES),
            # the GPU may be unavailable today: the spot watchdog handles that, so `pulumi up` must not fail
            wait_for_capacity_timeout="0",
            health_check_type=group_shape.HEALTH_CHECK,
            # An instance is InService only when it serves; an instance refresh waits for that. The hook is declared
            # with the group because a separate hook would be created after the first instances. CONTINUE: an
            # unavailable control host terminates nothing
            initial_lifecycle_hooks=None
            if adopted
            else [
                autoscaling.GroupInitialLifecycleHookArgs(
                    name=ready.name,
                    lifecycle_transition=ready.transition,
                    default_result=ready.default_result,
                    heartbeat_timeout=ready.timeout_s,
                )
            ],
            tags=[
                autoscaling.GroupTagArgs(key=key, value=value, propagate_at_launch=True)
                for key, value in sorted(self._tags(name, capacity_type).items())
            ],
            opts=pulumi.ResourceOptions(
                parent=self,
                ignore_changes=[*OWNED_BY_WATCHDOGS, *(KEPT_OF_ADOPTED if adopted else ())],
                depends_on=list(self._args.after),
            ),
        )
        if adopted:
            self._hook(f"{name}-ready", group, ready)
        # The control host completes the hook, by its name, in the pass after the last request. CONTINUE: neither a
        # failed agent nor an unavailable control host may block the termination
        self._hook(f"{name}-drain", group, group_shape.drain_hook(self._args.drain_deadline))
        return group

    def _hook(self, name: str, group: autoscaling.Group, hook: LifecycleHook) -> None:
        autoscaling.LifecycleHook(
            name,
            name=hook.name,
            autoscaling_group_name=group.name,
            lifecycle_transition=hook.transition,
            default_result=hook.default_result,
            heartbeat_timeout=hook.timeout_s,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _tags(self, name: str, capacity_type: CapacityType) -> dict[str, str]:
        return {"Name": name, **self._args.owned.tags(capacity_type)}


def _usable(block: CapacityBlock | None) -> CapacityBlock | None:
    return block and CapacityBlock(starts=block.starts, ends=block.ends - BLOCK_ENDS_EARLY)


def _version(latest: int) -> str:
    # "$Latest" would hide a template change from the group, and no rollout would start
    return str(int(latest))


def _mixed_instances(shape: GroupShape, template: ec2.LaunchTemplate) -> autoscaling.GroupMixedInstancesPolicyArgs:
    return autoscaling.GroupMixedInstancesPolicyArgs(
        instances_distribution=autoscaling.GroupMixedInstancesPolicyInstancesDistributionArgs(
            on_demand_base_capacity=0,
            on_demand_percentage_above_base_capacity=shape.on_demand_percentage,
            on_demand_allocation_strategy=group_shape.ON_DEMAND_STRATEGY,
            spot_allocation_strategy=group_shape.SPOT_STRATEGY,
        ),
        launch_template=autoscaling.GroupMixedInstancesPolicyLaunchTemplateArgs(
            launch_template_specification=autoscaling.GroupMixedInstancesPolicyLaunchTemplateLaunchTemplateSpecificationArgs(
                launch_template_id=template.id,
                version=template.latest_version.apply(_version),
            ),
            overrides=[
                autoscaling.GroupMixedInstancesPolicyLaunchTemplateOverrideArgs(instance_type=machine_type)
                for machine_type in shape.machine_types
            ],
        ),
    )
