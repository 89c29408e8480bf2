"""Reads an Auto Scaling group that no fleet manages, before it is adopted. Reads only."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.inventory import MALFORMED, malformed
from gpufleet.clouds.aws.rollouts import OVER
from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError
from gpufleet.domain.existing_group import Distribution, ExistingGroup, GroupMember, GroupTag, LifecycleHook
from gpufleet.domain.model import CapacityType

ACTIONS: Final = (
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeInstanceRefreshes",
    "autoscaling:DescribeLifecycleHooks",
    "autoscaling:DescribePolicies",
    "autoscaling:DescribeScheduledActions",
    "ec2:DescribeInstances",
    "ec2:DescribeLaunchTemplateVersions",
    "ec2:DescribeSubnets",
    "ec2:DescribeVolumes",
)
"""Everything that a preview of `gpufleet import` needs. `sts:GetCallerIdentity` needs no permission."""
_DEFAULT_PERCENTAGE: Final = 100
"""Share of on-demand capacity of a mixed instances policy that states none (API reference)."""


class AwsExistingGroups:
    """The Auto Scaling groups of a region. All methods raise CloudError."""

    def __init__(self, calls: AwsCalls) -> None:
        self._calls = calls

    def account(self) -> str:
        """Return the id of the account that the credentials belong to."""
        return str(self._calls.one("sts", "get_caller_identity")["Account"])

    def read(self, name: str) -> ExistingGroup:
        """Return the group with this name. The error for a wrong name lists similar ones."""
        found = list(self._described(AutoScalingGroupNames=[name])) if name else []
        if not found:
            known = [raw["AutoScalingGroupName"] for raw in self._described()]
            similar = get_close_matches(name, known)
            hint = f"; similar names: {', '.join(similar)}" if similar else ""
            raise CloudError(
                f"group {name!r} does not exist in {self._calls.region}, the region of the settings{hint}"
            )
        try:
            return self._read(found[0])
        except MALFORMED as error:
            raise CloudError(f"{name} cannot be read: {malformed(error)}") from error

    def of_pool(self, environment: str, pool: str) -> Mapping[str, ExistingGroup]:
        """Return the groups with the tags of a pool, by name."""
        filters = [
            {"Name": f"tag:{tags.ENVIRONMENT}", "Values": [environment]},
            {"Name": f"tag:{tags.POOL}", "Values": [pool]},
        ]
        try:
            return {raw["AutoScalingGroupName"]: _alone(raw) for raw in self._described(Filters=filters)}
        except MALFORMED as error:
            raise CloudError(f"the groups of pool {pool} cannot be read: {malformed(error)}") from error

    def _described(self, **arguments: Any) -> Any:
        return self._calls.pages("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", **arguments)

    def _read(self, raw: Mapping[str, Any]) -> ExistingGroup:
        name = raw["AutoScalingGroupName"]
        data = self._template(raw)
        subnets = _subnets(raw)
        states = {one["InstanceId"]: one for one in raw.get("Instances", ())}
        instances = self._instances(sorted(states))
        refreshes = self._calls.one("autoscaling", "describe_instance_refreshes", AutoScalingGroupName=name)
        return _alone(
            raw,
            networks=frozenset(self._networks(subnets)),
            machine_types=_overridden(raw) or ((data["InstanceType"],) if data.get("InstanceType") else ()),
            market=data.get("InstanceMarketOptions", {}).get("MarketType", ""),
            reservation=_reservation(data),
            by_attributes=_has(raw, "InstanceRequirements") or "InstanceRequirements" in data,
            refreshing=any(one["Status"] not in OVER for one in refreshes["InstanceRefreshes"]),
            hooks={hook.name: hook for hook in self._hooks(name)},
            policies=self._names("describe_policies", "ScalingPolicies", "PolicyName", name),
            schedules=self._names(
                "describe_scheduled_actions", "ScheduledUpdateGroupActions", "ScheduledActionName", name
            ),
            members=tuple(_member(one, states[one["InstanceId"]]) for one in instances),
            unencrypted=self._unencrypted(sorted(states)),
        )

    def _template(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """The data of the launch template; empty for a launch configuration."""
        named = _specification(raw)
        if not named:
            return {}
        (found,) = self._calls.one(
            "ec2",
            "describe_launch_template_versions",
            LaunchTemplateId=named["LaunchTemplateId"],
            Versions=[named.get("Version", "$Default")],
        )["LaunchTemplateVersions"]
        return found["LaunchTemplateData"]

    def _networks(self, subnets: Sequence[str]) -> list[str]:
        if not subnets:
            return []
        found = self._calls.one("ec2", "describe_subnets", SubnetIds=list(subnets))["Subnets"]
        return [one["VpcId"] for one in found]

    def _hooks(self, name: str) -> list[LifecycleHook]:
        found = self._calls.one("autoscaling", "describe_lifecycle_hooks", AutoScalingGroupName=name)
        return [
            LifecycleHook(
                name=one["LifecycleHookName"],
                transition=one["LifecycleTransition"],
                timeout_s=int(one["HeartbeatTimeout"]),
                default_result=one["DefaultResult"],
            )
            for one in found["LifecycleHooks"]
        ]

    def _names(self, operation: str, key: str, field: str, name: str) -> tuple[str, ...]:
        found = self._calls.pages("autoscaling", operation, key, AutoScalingGroupName=name)
        return tuple(sorted(one[field] for one in found))

    def _instances(self, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        if not ids:
            return []
        found = self._calls.pages("ec2", "describe_instances", "Reservations", InstanceIds=list(ids))
        return sorted((one for held in found for one in held["Instances"]), key=lambda one: one["InstanceId"])

    def _unencrypted(self, ids: Sequence[str]) -> tuple[str, ...]:
        if not ids:
            return ()
        filters = [{"Name": "attachment.instance-id", "Values": list(ids)}]
        found = self._calls.pages("ec2", "describe_volumes", "Volumes", Filters=filters)
        return tuple(sorted(one["VolumeId"] for one in found if not one["Encrypted"]))


def _alone(raw: Mapping[str, Any], **more: Any) -> ExistingGroup:
    """The group as its own description shows it."""
    policy = raw.get("MixedInstancesPolicy")
    named = _specification(raw)
    known: dict[str, Any] = {
        "name": raw["AutoScalingGroupName"],
        "min": raw["MinSize"],
        "max": raw["MaxSize"],
        "desired": raw["DesiredCapacity"],
        "zones": tuple(sorted(raw["AvailabilityZones"])),
        "subnets": _subnets(raw),
        "networks": frozenset[str](),
        "template": f"{named['LaunchTemplateId']}, version {named.get('Version', '$Default')}" if named else None,
        "distribution": None if policy is None else _distribution(policy.get("InstancesDistribution", {})),
        "machine_types": (),
        "weighted": _has(raw, "WeightedCapacity"),
        "units": raw.get("DesiredCapacityType") or "units",
        "tags": {
            one["Key"]: GroupTag(value=one.get("Value", ""), at_launch=bool(one.get("PropagateAtLaunch")))
            for one in raw.get("Tags", ())
        },
        "suspended": tuple(sorted(one["ProcessName"] for one in raw.get("SuspendedProcesses", ()))),
        "capacity_rebalance": bool(raw.get("CapacityRebalance")),
        "health_check": raw.get("HealthCheckType") or "EC2",
        "max_lifetime_s": int(raw.get("MaxInstanceLifetime") or 0),
        "protects_new": bool(raw.get("NewInstancesProtectedFromScaleIn")),
        "placement_group": raw.get("PlacementGroup") or "",
        "warm_pool": bool(raw.get("WarmPoolConfiguration")),
        "deleting": bool(raw.get("Status")),
    }
    return ExistingGroup(**{**known, **more})


def _specification(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    mixed = raw.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("LaunchTemplateSpecification")
    return mixed or raw.get("LaunchTemplate") or {}


def _distribution(raw: Mapping[str, Any]) -> Distribution:
    percentage = raw.get("OnDemandPercentageAboveBaseCapacity")
    return Distribution(
        on_demand_base=int(raw.get("OnDemandBaseCapacity") or 0),
        on_demand_percentage=_DEFAULT_PERCENTAGE if percentage is None else int(percentage),
        on_demand_strategy=raw.get("OnDemandAllocationStrategy") or "lowest-price",
        spot_strategy=raw.get("SpotAllocationStrategy") or "lowest-price",
        spot_max_price=raw.get("SpotMaxPrice") or "",
    )


def _overrides(raw: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return raw.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("Overrides") or ()


def _overridden(raw: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(one["InstanceType"] for one in _overrides(raw) if one.get("InstanceType"))


def _has(raw: Mapping[str, Any], field: str) -> bool:
    return any(one.get(field) for one in _overrides(raw))


def _reservation(data: Mapping[str, Any]) -> str:
    target = data.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    return target.get("CapacityReservationId") or target.get("CapacityReservationResourceGroupArn") or ""


def _subnets(raw: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(one for one in (raw.get("VPCZoneIdentifier") or "").split(",") if one))


def _member(raw: Mapping[str, Any], state: Mapping[str, Any]) -> GroupMember:
    lifecycle = raw.get("InstanceLifecycle")
    reserved = lifecycle == "capacity-block" or raw.get("CapacityReservationId")
    kind = CapacityType.SPOT if lifecycle == "spot" else CapacityType.ON_DEMAND
    return GroupMember(
        id=raw["InstanceId"],
        machine_type=raw["InstanceType"],
        capacity_type=CapacityType.RESERVED if reserved else kind,
        state=state["LifecycleState"],
        protected=bool(state.get("ProtectedFromScaleIn")),
    )
