"""A pool of identical GPU instances on AWS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pulumi
from pulumi_aws import autoscaling, ec2

from components.aws.fabric import close_together
from components.aws.templates import Template, launch_template
from components.capacity import BLOCK_ENDS_EARLY, Ownership, PoolCapacity, group_entry, reserved_at_creation
from gpufleet.domain import tags
from gpufleet.domain.model import DRAIN_HOOK, READY_HOOK, CapacityType
from gpufleet.settings.document import GroupEntry
from gpufleet.settings.environment import CapacityBlock, Reserved

OWNED_BY_WATCHDOGS: Final = ["desiredCapacity"]
SUSPENDED_PROCESSES: Final = ["AZRebalance"]
"""Processes of an Auto Scaling group that would act against a watchdog. They are suspended."""
BOOT_MAY_TAKE: Final = timedelta(minutes=30)
HOOK_MARGIN: Final = timedelta(seconds=60)


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
        entries = [*self._reserved(), *self._spot(), *self._on_demand()]
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

    def _spot(self) -> list[pulumi.Output[GroupEntry]]:
        capacity = self._args.capacity
        if capacity.ways.spot is None:
            return []
        types = capacity.ways.spot.machine_types
        template = self._template(f"{self._name}-spot", CapacityType.SPOT, types)
        return [
            self._mixed(
                f"{self._name}-spot-{zone}",
                CapacityType.SPOT,
                template=template,
                machine_types=types,
                zones=(zone,),
                limit=capacity.spot_max,
                at_creation=size,
            )
            for zone, size in capacity.spot_at_creation().items()
        ]

    def _on_demand(self) -> list[pulumi.Output[GroupEntry]]:
        on_demand = self._args.capacity.ways.on_demand
        if on_demand is None:
            return []
        name = f"{self._name}-on-demand"
        return [
            self._mixed(
                name,
                CapacityType.ON_DEMAND,
                template=self._template(name, CapacityType.ON_DEMAND, on_demand.machine_types),
                machine_types=on_demand.machine_types,
                zones=on_demand.zones,
                limit=on_demand.max,
                at_creation=self._args.capacity.fallback_at_creation(),
            )
        ]

    def _mixed(  # noqa: PLR0913
        self,
        name: str,
        capacity_type: CapacityType,
        *,
        template: ec2.LaunchTemplate,
        machine_types: tuple[str, ...],
        zones: tuple[str, ...],
        limit: int,
        at_creation: int,
    ) -> pulumi.Output[GroupEntry]:
        group = self._group(
            name,
            capacity_type,
            zones=zones,
            limit=limit,
            at_creation=at_creation,
            mixed_instances_policy=_mixed_instances(capacity_type, template, machine_types),
            near=self._near(name, capacity_type),
        )
        return group.name.apply(
            lambda group_name: group_entry(
                capacity_type=capacity_type,
                name=group_name,
                size_limit=limit,
                machine_types=machine_types,
                zone=zones[0] if capacity_type is CapacityType.SPOT else None,
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
    ) -> autoscaling.Group:
        group = autoscaling.Group(
            name,
            min_size=0,
            max_size=limit,
            desired_capacity=at_creation,
            vpc_zone_identifiers=[self._args.subnet_ids[zone] for zone in zones],
            launch_template=launch_template,
            mixed_instances_policy=mixed_instances_policy,
            placement_group=near.name if near else None,
            capacity_rebalance=False,
            suspended_processes=SUSPENDED_PROCESSES,
            # the GPU may be unavailable today: the spot watchdog handles that, so `pulumi up` must not fail
            wait_for_capacity_timeout="0",
            health_check_type="EC2",
            # An instance is InService only when it serves; an instance refresh waits for that. The hook is declared
            # with the group because a separate hook would be created after the first instances. CONTINUE: an
            # unavailable control host terminates nothing
            initial_lifecycle_hooks=[
                autoscaling.GroupInitialLifecycleHookArgs(
                    name=READY_HOOK,
                    lifecycle_transition="autoscaling:EC2_INSTANCE_LAUNCHING",
                    default_result="CONTINUE",
                    heartbeat_timeout=int(BOOT_MAY_TAKE.total_seconds()),
                )
            ],
            tags=[
                autoscaling.GroupTagArgs(key=key, value=value, propagate_at_launch=True)
                for key, value in sorted(self._tags(name, capacity_type).items())
            ],
            opts=pulumi.ResourceOptions(
                parent=self, ignore_changes=OWNED_BY_WATCHDOGS, depends_on=list(self._args.after)
            ),
        )
        autoscaling.LifecycleHook(
            f"{name}-drain",
            # the control host completes the hook by this name
            name=DRAIN_HOOK,
            autoscaling_group_name=group.name,
            lifecycle_transition="autoscaling:EC2_INSTANCE_TERMINATING",
            # The control host completes the hook in the pass after the last request. CONTINUE: neither a failed agent
            # nor an unavailable control host may block the termination
            default_result="CONTINUE",
            heartbeat_timeout=int((self._args.drain_deadline + HOOK_MARGIN).total_seconds()),
            opts=pulumi.ResourceOptions(parent=self),
        )
        return group

    def _tags(self, name: str, capacity_type: CapacityType) -> dict[str, str]:
        return {"Name": name, **self._args.owned.tags(capacity_type)}


def _usable(block: CapacityBlock | None) -> CapacityBlock | None:
    return block and CapacityBlock(starts=block.starts, ends=block.ends - BLOCK_ENDS_EARLY)


def _version(latest: int) -> str:
    # "$Latest" would hide a template change from the group, and no rollout would start
    return str(int(latest))


def _mixed_instances(
    capacity_type: CapacityType, template: ec2.LaunchTemplate, machine_types: tuple[str, ...]
) -> autoscaling.GroupMixedInstancesPolicyArgs:
    spot = capacity_type is CapacityType.SPOT
    return autoscaling.GroupMixedInstancesPolicyArgs(
        instances_distribution=autoscaling.GroupMixedInstancesPolicyInstancesDistributionArgs(
            on_demand_base_capacity=0,
            on_demand_percentage_above_base_capacity=0 if spot else 100,
            on_demand_allocation_strategy="prioritized",
            spot_allocation_strategy="price-capacity-optimized",
        ),
        launch_template=autoscaling.GroupMixedInstancesPolicyLaunchTemplateArgs(
            launch_template_specification=autoscaling.GroupMixedInstancesPolicyLaunchTemplateLaunchTemplateSpecificationArgs(
                launch_template_id=template.id,
                version=template.latest_version.apply(_version),
            ),
            overrides=[
                autoscaling.GroupMixedInstancesPolicyLaunchTemplateOverrideArgs(instance_type=machine_type)
                for machine_type in machine_types
            ],
        ),
    )
