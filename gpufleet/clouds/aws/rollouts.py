"""Instance refreshes: a group replaces what was started from an older version of its template."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.versions import GroupVersion
from gpufleet.domain.activity import CloudError

OVER: Final = frozenset({"Successful", "Failed", "Cancelled", "RollbackFailed", "RollbackSuccessful"})
"""Statuses of an instance refresh that is over."""
RETAINED: Final = "Terminating:Retained"
"""The state of an instance whose end a policy of its group stopped, since its hook was abandoned. People end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshState:
    """How far a refresh is."""

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
    """Instance refreshes of a region. Every method raises CloudError."""

    def __init__(self, calls: AwsCalls) -> None:
        self._calls = calls

    def version(self, group: str) -> GroupVersion:
        """What a group wants and has."""
        found = self._described(group)
        wanted = _wanted(found)
        versions = {
            instance["InstanceId"]: str(instance.get("LaunchTemplate", {}).get("Version"))
            for instance in found.get("Instances", [])
            if counts(instance)
        }
        return GroupVersion(
            group=group,
            wanted=wanted,
            outdated=tuple(sorted(i for i, version in versions.items() if version != wanted)),
            current=tuple(sorted(i for i, version in versions.items() if version == wanted)),
        )

    def start(self, group: str, *, launch_first: bool) -> str:
        """Begin a refresh of what is outdated, one at a time. Returns its id.

        `launch_first`: the replacement serves before the old instance drains. Prepaid capacity has no room for
        that, so there the old one goes first.
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
        """The newest refresh of a group; None when there never was one."""
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
        """Stop the refresh that runs; what was replaced stays. None running is no error."""
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
            raise CloudError(f"the cloud does not know the group {group}; was the stack destroyed?")
        return found[0]


def healthy_percentages(desired: int, *, launch_first: bool) -> Mapping[str, int]:
    """Preferences of a refresh that replaces one of so many at a time; of more than a hundred, one percent.

    Auto Scaling rounds up how many stay in service, and 0 percent replaces all at the same time (API reference of
    `RefreshPreferences`).
    """
    size = max(1, desired)
    if launch_first:
        return {"MinHealthyPercentage": 100, "MaxHealthyPercentage": min(110, 100 + math.ceil(100 / size))}
    return {"MinHealthyPercentage": (size - 1) * 100 // size, "MaxHealthyPercentage": 100}


def _wanted(group: Mapping[str, Any]) -> str:
    mixed = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("LaunchTemplateSpecification")
    template: Mapping[str, Any] = mixed or group.get("LaunchTemplate") or {}
    version = str(template.get("Version", ""))
    if not version.isdigit():
        raise CloudError(
            f"{group['AutoScalingGroupName']}: follows the template version {version or '(none)'}, so nobody can say"
            " what is outdated; `pulumi up` of this program writes a number there"
        )
    return version


def is_leaving(member: Mapping[str, Any]) -> bool:
    """Whether a group is ending this one of its instances already; at the terminating hook it may live for long."""
    state = member["LifecycleState"]
    return state.startswith("Terminat") and state != RETAINED


def counts(member: Mapping[str, Any]) -> bool:
    """Whether it counts towards the group's desired size. A retained one lives on and is paid for, yet replaced."""
    return not is_leaving(member) and member["LifecycleState"] != RETAINED
