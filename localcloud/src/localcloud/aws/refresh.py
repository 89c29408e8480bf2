"""Instance refresh: a group replaces instances that have an older version of its template."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from moto.core.exceptions import ServiceException
from moto.moto_api._internal import mock_random

from localcloud.aws.groups import EmulatedGroup, Member

ACTIVE: Final = frozenset({"Pending", "InProgress", "Cancelling"})


class InstanceRefreshInProgress(ServiceException):
    """A second refresh was requested."""

    code = "InstanceRefreshInProgress"


class ActiveInstanceRefreshNotFound(ServiceException):
    """A refresh to cancel is not active."""

    code = "ActiveInstanceRefreshNotFound"


@dataclass(slots=True, kw_only=True)
class Refresh:
    """One refresh of one group."""

    refresh_id: str
    started: datetime
    template: tuple[str, int]
    """Id and version of the launch template."""
    preferences: Mapping[str, Any] = field(default_factory=dict[str, Any])
    status: str = "InProgress"
    reason: str = ""
    ended: datetime | None = None
    total: int = 0
    left: int = 0
    surging: bool = False

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE

    @property
    def warm_up(self) -> timedelta:
        """The warm-up time of the request."""
        return timedelta(seconds=int(self.preferences.get("InstanceWarmup") or 0))

    @property
    def launches_first(self) -> bool:
        """Whether a replacement is in service before the old instance ends."""
        return int(self.preferences.get("MaxHealthyPercentage") or 100) > 100

    def least_of(self, desired: int) -> int:
        """Minimum of `desired` instances that stay in service. Auto Scaling rounds up; its default is 90 %."""
        percent = self.preferences.get("MinHealthyPercentage")
        return math.ceil(desired * int(90 if percent is None else percent) / 100)

    def is_outdated(self, member: Member) -> bool:
        if not member.counts:
            return False
        if self.preferences.get("SkipMatching"):
            return (member.template_id, member.version) != self.template
        return member.instance.launched < self.started

    def described(self, group: str) -> dict[str, Any]:
        """As DescribeInstanceRefreshes lists it."""
        done = 100 if not self.total else (self.total - self.left) * 100 // self.total
        return {
            "InstanceRefreshId": self.refresh_id,
            "AutoScalingGroupName": group,
            "Status": self.status,
            "StatusReason": self.reason or None,
            "StartTime": self.started,
            "EndTime": self.ended,
            "PercentageComplete": done,
            "InstancesToUpdate": self.left,
            "Preferences": dict(self.preferences),
        }


def begin(group: EmulatedGroup, preferences: Mapping[str, Any], now: datetime) -> Refresh:
    """Start a refresh. Raises InstanceRefreshInProgress."""
    if active(group) is not None:
        raise InstanceRefreshInProgress("An Instance Refresh is already in progress and blocks the execution.")
    recipe = group.recipe()
    refresh = Refresh(
        refresh_id=str(mock_random.uuid4()),
        started=now,
        template=(recipe.template_id, recipe.version),
        preferences=preferences,
    )
    refresh.total = refresh.left = sum(1 for member in group.members if refresh.is_outdated(member))
    group.refreshes.insert(0, refresh)
    return refresh


def cancel(group: EmulatedGroup, now: datetime) -> Refresh:
    """End the active refresh; what was replaced stays. Raises ActiveInstanceRefreshNotFound."""
    refresh = active(group)
    if refresh is None:
        raise ActiveInstanceRefreshNotFound("No in progress or pending Instance Refresh found.")
    refresh.status, refresh.ended, refresh.surging = "Cancelled", now, False
    return refresh


def active(group: EmulatedGroup) -> Refresh | None:
    """The refresh that runs now."""
    return next((refresh for refresh in group.refreshes if refresh.is_active), None)


def next_victim(group: EmulatedGroup, refresh: Refresh, now: datetime) -> Member | None:
    """The member to replace now: the oldest outdated one, if enough others stay in service; else None."""
    outdated = [member for member in group.members if refresh.is_outdated(member)]
    refresh.left = len(outdated)
    desired = group.desired_capacity or 0
    serving = sum(1 for member in group.members if _serves(member, refresh, now))
    complete = serving == len(group.members) >= desired
    if not outdated:
        if complete:
            refresh.status, refresh.ended, refresh.surging = "Successful", now, False
        return None
    spared = complete if refresh.launches_first else serving > refresh.least_of(desired)
    return min(outdated, key=lambda member: member.instance.launched) if spared else None


def _serves(member: Member, refresh: Refresh, now: datetime) -> bool:
    """Whether it is in service and, if it is a replacement, warmed up."""
    since = member.in_service_since
    if member.lifecycle_state != "InService" or since is None:
        return False
    return refresh.is_outdated(member) or now >= since + member.instance.cloud_state.time_scale.shorten(
        refresh.warm_up
    )
