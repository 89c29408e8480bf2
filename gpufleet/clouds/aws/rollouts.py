"""Instance refreshes: a group replaces instances that have an older version of its launch template."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.versions import GroupVersion
from gpufleet.domain.activity import CloudError

OVER: Final = frozenset({"Successful", "Failed", "Cancelled", "RollbackFailed", "RollbackSuccessful"})
"""Statuses of a finished instance refresh."""
RETAINED: Final = "Terminating:Retained"
"""State of an instance that its group keeps by policy after its terminating hook was abandoned.

A person must terminate it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshState:
    """Progress of an instance refresh."""

    id: str
    status: str
    percent: int
    reason: str

    @property
    def is_over(self) -> bool:
        return self.status in OVER

    @property
    def succeeded(self) -> bool:
        return self.status == "Successful"


class AwsRollouts:
    """Instance refreshes in a region. All methods raise CloudError."""

    def __init__(self, calls: AwsCalls) -> None:
        self._calls = calls

    def version(self, group: str) -> GroupVersion:
        """Template version of a group and of its instances."""
        found = self._described(group)
        template, wanted = _wanted(found)
        made_of = {
            instance["InstanceId"]: _template(instance.get("LaunchTemplate", {}))
            for instance in found.get("Instances", [])
            if counts(instance)
        }
        # an adopted group has instances of its former template, whose version may be the same number
        return GroupVersion(
            group=group,
            wanted=wanted,
            outdated=tuple(sorted(i for i, one in made_of.items() if one != (template, wanted))),
            current=tuple(sorted(i for i, one in made_of.items() if one == (template, wanted))),
        )

    def start(self, group: str, *, launch_first: bool) -> str:
        """Start a refresh that replaces outdated instances one at a time. Returns its id.

        `launch_first`: the replacement serves before the old instance drains. A reservation has no free capacity for
        that, so there the old instance terminates first.
        """
        healthy = healthy_percentages(self._described(group)["DesiredCapacity"], launch_first=launch_first)
        answer = self._calls.one(
            "autoscaling",
            "start_instance_refresh",
            AutoScalingGroupName=group,
            Preferences={"SkipMatching": True, "InstanceWarmup": 0, **healthy},
        )
        return str(answer["InstanceRefreshId"])

    def state(self, group: str) -> RefreshState | None:
        """State of the newest refresh of a group; None if there never was one."""
        answer = self._calls.one("autoscaling", "describe_instance_refreshes", AutoScalingGroupName=group)
        newest = next(iter(answer["InstanceRefreshes"]), None)
        if newest is None:
            return None
        return RefreshState(
            id=newest["InstanceRefreshId"],
            status=newest["Status"],
            percent=int(newest.get("PercentageComplete") or 0),
            reason=newest.get("StatusReason") or "",
        )

    def cancel(self, group: str) -> None:
        """Cancel the current refresh; instances that were replaced stay. No error if no refresh is in progress."""
        try:
            self._calls.one("autoscaling", "cancel_instance_refresh", AutoScalingGroupName=group)
        except CloudError as error:
            if error.code not in ("ActiveInstanceRefreshNotFound", "ActiveInstanceRefreshNotFoundFault"):
                raise

    def _described(self, group: str) -> Mapping[str, Any]:
        found = list(
            self._calls.pages(
                "autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", AutoScalingGroupNames=[group]
            )
        )
        if not found:
            raise CloudError(f"the cloud has no group {group}; was the stack destroyed?")
        return found[0]


def healthy_percentages(desired: int, *, launch_first: bool) -> Mapping[str, int]:
    """Preferences of a refresh that replaces one instance at a time, or one percent of more than a hundred.

    Auto Scaling rounds the number of instances in service up. 0 percent replaces all instances at once (API reference
    of `RefreshPreferences`).
    """
    size = max(1, desired)
    if launch_first:
        return {"MinHealthyPercentage": 100, "MaxHealthyPercentage": min(110, 100 + math.ceil(100 / size))}
    return {"MinHealthyPercentage": (size - 1) * 100 // size, "MaxHealthyPercentage": 100}


def _template(specification: Mapping[str, Any]) -> tuple[str, str]:
    """Id and version of a launch template."""
    return str(specification.get("LaunchTemplateId")), str(specification.get("Version", ""))


def _wanted(group: Mapping[str, Any]) -> tuple[str, str]:
    mixed = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("LaunchTemplateSpecification")
    template: Mapping[str, Any] = mixed or group.get("LaunchTemplate") or {}
    found = _template(template)
    if not (version := found[1]).isdigit():
        raise CloudError(
            f"{group['AutoScalingGroupName']}: uses the launch template version {version or '(none)'}, which is not a"
            " number, so outdated instances cannot be detected; `pulumi up` of this program sets a number"
        )
    return found


def is_leaving(member: Mapping[str, Any]) -> bool:
    """Whether the group is terminating this instance. It may stay at the terminating hook for a long time."""
    state = member["LifecycleState"]
    return state.startswith("Terminat") and state != RETAINED


def counts(member: Mapping[str, Any]) -> bool:
    """Whether the instance counts towards the desired size. A retained one still runs and costs, but is replaced."""
    return not is_leaving(member) and member["LifecycleState"] != RETAINED
