"""A pool of identical GPU instances on Google Cloud."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

import pulumi
from pulumi_gcp import compute

from components.capacity import Ownership, PoolCapacity, group_entry, reserved_at_creation
from components.gcp.firewall import AGENT_PORT
from components.gcp.templates import LOCAL_SSD_GIB, Template, instance_template, local_ssd_count
from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType
from gpufleet.settings.document import GroupEntry
from gpufleet.settings.environment import Reserved

OWNED_BY_WATCHDOGS: Final = ["targetSize"]
BOOT_MAY_TAKE: Final = timedelta(minutes=30)
BASE_NAME_LIMIT: Final = 58
"""Maximum length of a base name. Google's limit is 63; the group appends a dash and four letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPoolArgs:
    owned: Ownership
    capacity: PoolCapacity
    template: Template
    user_data: Callable[[CapacityType], str]
    """Returns the startup script of instances of a capacity type."""
    drain_deadline: timedelta
    after: tuple[pulumi.Resource, ...] = ()
    """Resources that instances need when they boot, such as the agent's file. Groups are created after them."""


class GpuPool(pulumi.ComponentResource):
    """The groups of a pool: one per reservation, one per spot zone, and one on-demand or flex-start group.

    Pulumi manages templates and limits. Watchdogs manage the size; Pulumi sets it only at creation.
    """

    groups: pulumi.Output[list[GroupEntry]]
    """Entries of the groups for the fleet document."""

    def __init__(self, name: str, args: GpuPoolArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:gcp:GpuPool", name, None, opts)
        self._name, self._args = name, args
        self._health = compute.HealthCheck(
            name,
            check_interval_sec=10,
            timeout_sec=5,
            http_health_check=compute.HealthCheckHttpHealthCheckArgs(port=AGENT_PORT, request_path="/healthz"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        entries = [*self._reserved(), *self._spot(), *self._on_demand(), *self._flex_start()]
        self.groups = pulumi.Output.all(*entries).apply(lambda found: list[GroupEntry](found))
        self.register_outputs({"groups": self.groups.apply(lambda found: [entry.name for entry in found])})

    def _reserved(self) -> list[pulumi.Output[GroupEntry]]:
        return [self._reserved_group(reserved) for reserved in self._args.capacity.ways.reserved]

    def _reserved_group(self, reserved: Reserved) -> pulumi.Output[GroupEntry]:
        name = f"{self._name}-reserved-{reserved.zone}-{reserved.machine_type}"
        reservation = self._reservation(name, reserved)
        template = self._template(
            name, CapacityType.RESERVED, reserved.machine_type, reservation, bool(reserved.block)
        )
        group = self._zonal(name, reserved.zone, template, at_creation=reserved_at_creation(reserved))
        return pulumi.Output.all(group.name, reservation).apply(
            lambda found: group_entry(
                capacity_type=CapacityType.RESERVED,
                name=found[0],
                size_limit=reserved.count,
                machine_types=(reserved.machine_type,),
                zone=reserved.zone,
                reservation=found[1],
                block=reserved.block,
            )
        )

    def _reservation(self, name: str, reserved: Reserved) -> pulumi.Input[str]:
        if reserved.existing is not None:
            return reserved.existing
        properties = compute.ReservationSpecificReservationInstancePropertiesArgs(
            machine_type=reserved.machine_type,
            local_ssds=[
                compute.ReservationSpecificReservationInstancePropertiesLocalSsdArgs(
                    disk_size_gb=LOCAL_SSD_GIB, interface="NVME"
                )
                for _ in range(local_ssd_count(reserved.machine_type))
            ],
        )
        return compute.Reservation(
            name,
            zone=reserved.zone,
            # reservations carry no labels: the description matches bills to the pool
            description=self._args.owned.pool,
            specific_reservation=compute.ReservationSpecificReservationArgs(
                count=reserved.count, instance_properties=properties
            ),
            # only this pool's template, which names the reservation, may use the capacity that this pool pays for
            specific_reservation_required=True,
            delete_at_time=f"{reserved.ends}T00:00:00Z" if reserved.ends else None,
            opts=pulumi.ResourceOptions(parent=self),
        ).name

    def _spot(self) -> list[pulumi.Output[GroupEntry]]:
        capacity = self._args.capacity
        if capacity.ways.spot is None:
            return []
        # a zonal group supports one machine type, and the settings name one
        machine_type = capacity.ways.spot.machine_types[0]
        template = self._template(f"{self._name}-spot", CapacityType.SPOT, machine_type)
        return [
            self._spot_group(zone, template, machine_type, at_creation)
            for zone, at_creation in capacity.spot_at_creation().items()
        ]

    def _spot_group(
        self, zone: str, template: compute.InstanceTemplate, machine_type: str, at_creation: int
    ) -> pulumi.Output[GroupEntry]:
        limit = self._args.capacity.spot_max
        group = self._zonal(f"{self._name}-spot-{zone}", zone, template, at_creation=at_creation)
        return group.name.apply(
            lambda name: group_entry(
                capacity_type=CapacityType.SPOT,
                name=name,
                size_limit=limit,
                machine_types=(machine_type,),
                zone=zone,
            )
        )

    def _on_demand(self) -> list[pulumi.Output[GroupEntry]]:
        on_demand = self._args.capacity.ways.on_demand
        if on_demand is None:
            return []
        name = f"{self._name}-on-demand"
        template = self._template(name, CapacityType.ON_DEMAND, on_demand.machine_types[0])
        group = compute.RegionInstanceGroupManager(
            name,
            base_instance_name=instance_base(self._args.owned.environment, name),
            region=self._args.template.region,
            versions=[compute.RegionInstanceGroupManagerVersionArgs(instance_template=template.self_link)],
            distribution_policy_zones=list(on_demand.zones),
            distribution_policy_target_shape="ANY",
            instance_flexibility_policy=_flexibility(on_demand.machine_types),
            target_size=self._args.capacity.fallback_at_creation(),
            update_policy=compute.RegionInstanceGroupManagerUpdatePolicyArgs(
                type="OPPORTUNISTIC",
                minimal_action="REPLACE",
                # the group must not move instances between zones
                instance_redistribution_type="NONE",
                max_unavailable_fixed=len(on_demand.zones),
            ),
            auto_healing_policies=compute.RegionInstanceGroupManagerAutoHealingPoliciesArgs(
                health_check=self._health.id, initial_delay_sec=int(BOOT_MAY_TAKE.total_seconds())
            ),
            instance_lifecycle_policy=compute.RegionInstanceGroupManagerInstanceLifecyclePolicyArgs(
                default_action_on_failure="REPAIR", on_failed_health_check="DO_NOTHING"
            ),
            wait_for_instances=False,
            opts=self._sized_by_watchdogs(),
        )
        return [
            group.name.apply(
                lambda found: group_entry(
                    capacity_type=CapacityType.ON_DEMAND,
                    name=found,
                    size_limit=on_demand.max,
                    machine_types=on_demand.machine_types,
                )
            )
        ]

    def _flex_start(self) -> list[pulumi.Output[GroupEntry]]:
        bought = self._args.capacity.ways.flex_start
        if bought is None:
            return []
        name = f"{self._name}-flex-start"
        template = self._template(name, CapacityType.FLEX_START, bought.machine_type, run=bought.run)
        at_creation = self._args.capacity.fallback_at_creation()
        # the group must not recreate an instance that ended on schedule: the spot watchdog decides what follows
        group = self._zonal(name, bought.zone, template, at_creation=at_creation, on_failure="DO_NOTHING")
        return [
            group.name.apply(
                lambda found: group_entry(
                    capacity_type=CapacityType.FLEX_START,
                    name=found,
                    size_limit=bought.max,
                    machine_types=(bought.machine_type,),
                    zone=bought.zone,
                )
            )
        ]

    def _zonal(
        self,
        name: str,
        zone: str,
        template: compute.InstanceTemplate,
        *,
        at_creation: int,
        on_failure: Literal["REPAIR", "DO_NOTHING"] = "REPAIR",
    ) -> compute.InstanceGroupManager:
        return compute.InstanceGroupManager(
            name,
            base_instance_name=instance_base(self._args.owned.environment, name),
            zone=zone,
            versions=[compute.InstanceGroupManagerVersionArgs(instance_template=template.self_link)],
            target_size=at_creation,
            update_policy=compute.InstanceGroupManagerUpdatePolicyArgs(
                # a new template waits for `gpufleet rollout`, which drains instances first
                type="OPPORTUNISTIC",
                minimal_action="REPLACE",
                max_surge_fixed=0,
                max_unavailable_fixed=1,
            ),
            auto_healing_policies=compute.InstanceGroupManagerAutoHealingPoliciesArgs(
                health_check=self._health.id, initial_delay_sec=int(BOOT_MAY_TAKE.total_seconds())
            ),
            instance_lifecycle_policy=compute.InstanceGroupManagerInstanceLifecyclePolicyArgs(
                # The group recreates a preempted instance in its zone, as on AWS. An unhealthy instance is only
                # reported, because a draining instance looks unhealthy
                default_action_on_failure=on_failure,
                on_failed_health_check="DO_NOTHING",
            ),
            # the GPU may be unavailable today: the spot watchdog handles that, so `pulumi up` must not fail
            wait_for_instances=False,
            opts=self._sized_by_watchdogs(),
        )

    def _template(  # noqa: PLR0913
        self,
        name: str,
        capacity_type: CapacityType,
        machine_type: str,
        reservation: pulumi.Input[str] | None = None,
        block: bool = False,
        run: timedelta | None = None,
    ) -> compute.InstanceTemplate:
        return instance_template(
            name,
            self._args.template,
            machine_type=machine_type,
            capacity_type=capacity_type,
            user_data=self._args.user_data(capacity_type),
            labels=labels(self._args.owned.tags(capacity_type)),
            reservation=reservation,
            block=block,
            run=run,
            opts=pulumi.ResourceOptions(parent=self),
        )

    def _sized_by_watchdogs(self) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(
            parent=self, ignore_changes=OWNED_BY_WATCHDOGS, depends_on=list(self._args.after)
        )


def instance_prefix(environment: str) -> str:
    """Return the prefix of the names of all instances in an environment's pools."""
    return f"{environment}-"


def instance_base(environment: str, group: str) -> str:
    """Return the base name of a group's instances. It contains the environment, because a project may hold several.

    The name is cut at Google Cloud's limit and contains a digest of the whole name, so no two groups share a base
    name.
    """
    whole = f"{instance_prefix(environment)}{group}"
    if len(whole) <= BASE_NAME_LIMIT:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:6]
    return f"{whole[: BASE_NAME_LIMIT - 7].rstrip('-')}-{digest}"


def labels(of_tags: Mapping[str, str]) -> dict[str, str]:
    """Convert tags to labels. Google Cloud allows no colon in labels."""
    return {tags.label(key): value for key, value in of_tags.items()}


def _flexibility(
    machine_types: tuple[str, ...],
) -> compute.RegionInstanceGroupManagerInstanceFlexibilityPolicyArgs | None:
    if len(machine_types) == 1:
        return None
    return compute.RegionInstanceGroupManagerInstanceFlexibilityPolicyArgs(
        instance_selections=[
            compute.RegionInstanceGroupManagerInstanceFlexibilityPolicyInstanceSelectionArgs(
                name=machine_type, machine_types=[machine_type], rank=rank
            )
            for rank, machine_type in enumerate(machine_types, start=1)
        ]
    )
