"""Auto Scaling operations that moto lacks or answers too simply."""

from typing import Any, Final

from moto.autoscaling.exceptions import ValidationError
from moto.autoscaling.models import autoscaling_backends
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult, EmptyResult

from localcloud.aws import refresh
from localcloud.aws.groups import EmulatedAutoScaling, EmulatedGroup, Member
from localcloud.aws.reconcile import complete, heartbeat

_PAGE: Final = 100


class ScalingCalls(AutoScalingResponse):
    """Auto Scaling as the embedded cloud answers it."""

    @property
    def scaling(self) -> EmulatedAutoScaling:
        found = autoscaling_backends[self.current_account][self.region]
        if not isinstance(found, EmulatedAutoScaling):
            raise TypeError("install() was not called before the first request")
        return found

    def create_auto_scaling_group(self) -> ActionResult:
        answer = super().create_auto_scaling_group()
        name = self._get_param("AutoScalingGroupName")
        for hook in self._get_param("LifecycleHookSpecificationList", []):
            self.scaling.create_lifecycle_hook(
                name=hook["LifecycleHookName"],
                as_name=name,
                transition=hook["LifecycleTransition"],
                timeout=hook.get("HeartbeatTimeout"),
                result=hook.get("DefaultResult"),
            )
        self._keep_extra(self.scaling.group(name))
        return answer

    def update_auto_scaling_group(self) -> ActionResult:
        answer = super().update_auto_scaling_group()
        self._keep_extra(self.scaling.group(self._get_param("AutoScalingGroupName")))
        return answer

    def _keep_extra(self, group: EmulatedGroup) -> None:
        """Fields that moto drops, and that a preview would see missing."""
        for parameter, attribute in (
            ("DefaultCooldown", "default_cooldown"),
            ("CapacityRebalance", "capacity_rebalance"),
            ("DefaultInstanceWarmup", "default_instance_warmup"),
            ("MaxInstanceLifetime", "max_instance_lifetime"),
            ("PlacementGroup", "placement_group"),
            ("TerminationPolicies", "termination_policies"),
            ("InstanceMaintenancePolicy", "instance_maintenance_policy"),
            ("AvailabilityZoneDistribution", "availability_zone_distribution"),
        ):
            value = self._get_param(parameter)
            if value is not None:
                setattr(group, attribute, value)

    def delete_auto_scaling_group(self) -> ActionResult:
        force = self._get_bool_param("ForceDelete", False)
        self.scaling.delete_auto_scaling_group(self._get_param("AutoScalingGroupName"), force)
        return EmptyResult()

    def describe_scaling_activities(self) -> ActionResult:
        name = self._get_param("AutoScalingGroupName")
        wanted = set(self._get_param("ActivityIds", []))
        groups = [self.scaling.group(name)] if name else self.scaling.groups()
        found = [activity for group in groups for activity in group.activities]
        found = [activity for activity in found if not wanted or activity.activity_id in wanted]
        # what is still in progress comes first (API reference)
        found.sort(key=lambda activity: (activity.end_time is None, activity.start_time), reverse=True)
        start = int(self._get_param("NextToken") or 0)
        size = self._get_int_param("MaxRecords", _PAGE)
        more = str(start + size) if len(found) > start + size else None
        return ActionResult({"Activities": found[start : start + size], "NextToken": more})

    def complete_lifecycle_action(self) -> ActionResult:
        group, member = self._waiting_member()
        result = self._get_param("LifecycleActionResult")
        if result not in ("CONTINUE", "ABANDON"):
            raise ValidationError(f"LifecycleActionResult must be CONTINUE or ABANDON, not {result}")
        complete(self.scaling, group, member, result)
        return EmptyResult()

    def record_lifecycle_action_heartbeat(self) -> ActionResult:
        group, member = self._waiting_member()
        hooks = self.scaling.describe_lifecycle_hooks(group.name, [self._get_param("LifecycleHookName")])
        member.wait_until = self.scaling.cloud_state.now() + heartbeat(group, hooks[0])
        return EmptyResult()

    def _waiting_member(self) -> tuple[EmulatedGroup, Member]:
        """The member that waits in the named hook. Raises ValidationError as Auto Scaling words it."""
        name, hook = self._get_param("AutoScalingGroupName"), self._get_param("LifecycleHookName")
        group = self.scaling.group(name)
        token, instance = self._get_param("LifecycleActionToken"), self._get_param("InstanceId")
        waiting = (m for m in group.members if m.wait_until is not None)
        found = next((m for m in waiting if m.token == token or (not token and m.instance.id == instance)), None)
        if found is None or not self.scaling.describe_lifecycle_hooks(name, [hook]):
            named = f"token {token}" if token else f"instance ID {instance}"
            raise ValidationError(f"No active Lifecycle Action found with {named}")
        return group, found

    def describe_lifecycle_hook_types(self) -> ActionResult:
        kinds = ["autoscaling:EC2_INSTANCE_LAUNCHING", "autoscaling:EC2_INSTANCE_TERMINATING"]
        return ActionResult({"LifecycleHookTypes": kinds})

    def start_instance_refresh(self) -> ActionResult:
        group = self.scaling.group(self._get_param("AutoScalingGroupName"))
        preferences = self._get_param("Preferences", {})
        started = refresh.begin(group, preferences, self.scaling.cloud_state.now())
        return ActionResult({"InstanceRefreshId": started.refresh_id})

    def cancel_instance_refresh(self) -> ActionResult:
        group = self.scaling.group(self._get_param("AutoScalingGroupName"))
        ended = refresh.cancel(group, self.scaling.cloud_state.now())
        return ActionResult({"InstanceRefreshId": ended.refresh_id})

    def describe_instance_refreshes(self) -> ActionResult:
        group = self.scaling.group(self._get_param("AutoScalingGroupName"))  # raises for a group that is not there
        wanted = set(self._get_param("InstanceRefreshIds", []))
        found = [one for one in group.refreshes if not wanted or one.refresh_id in wanted]
        return ActionResult({"InstanceRefreshes": [one.described(group.name) for one in found]})

    def describe_account_limits(self) -> ActionResult:
        answer: dict[str, Any] = {
            "MaxNumberOfAutoScalingGroups": 500,
            "MaxNumberOfLaunchConfigurations": 200,
            "NumberOfAutoScalingGroups": len(self.scaling.groups()),
            "NumberOfLaunchConfigurations": 0,
        }
        return ActionResult(answer)
