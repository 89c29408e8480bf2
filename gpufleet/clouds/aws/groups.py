"""Auto Scaling groups: sizes, activities, and termination of instances."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final

from gpufleet.clouds.aws.activities import FINISHED, follows_failed_launch, is_asking, read_activity
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.inventory import MALFORMED, malformed
from gpufleet.clouds.aws.rollouts import OVER, counts, is_leaving
from gpufleet.domain import tags
from gpufleet.domain.activity import Activity, CloudError
from gpufleet.domain.model import DRAIN_HOOK, READY_HOOK, CapacityType, Group, GroupList, SuspendedProcess

PAGE: Final = 100
_AT_ONCE: Final = 8
OURS: Final = frozenset({"AZRebalance"})
"""Processes that the stack suspends in all groups (`components.aws.group_shape.SUSPENDED_PROCESSES`)."""
_NOT_WAITING: Final = "No active Lifecycle Action"
_NOT_A_MEMBER: Final = re.compile(r"not found|does not exist|is not part of|not in .*InService", re.IGNORECASE)


class AwsGroups:
    """The Auto Scaling groups of a region."""

    def __init__(self, calls: AwsCalls) -> None:
        self._calls = calls

    def groups(self, names: Sequence[str]) -> Sequence[Group]:
        """The groups with these names. Raises CloudError if one is missing or unreadable, or if a page fails."""
        found = self.readable(names)
        if found.errors:
            raise CloudError("; ".join(found.errors[name] for name in sorted(found.errors)))
        return tuple(found.groups[name] for name in names)

    def readable(self, names: Sequence[str]) -> GroupList:
        """Readable groups, and an error for each of the others. Raises CloudError if a page fails."""
        found: dict[str, Group] = {}
        errors: dict[str, str] = {}
        for raw in self._described(names):
            name = _name(raw)
            try:
                found[name] = _group(raw)
            except CloudError as error:
                errors[name] = str(error)
            except MALFORMED as error:
                errors[name] = f"{name} cannot be read: {malformed(error)}"
        for name in set(names) - found.keys() - errors.keys():
            errors[name] = f"the cloud has no group {name}; was the stack destroyed?"
        return GroupList(groups=found, errors=errors)

    def _described(self, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        for chunk in _chunks(names):
            yield from self._calls.pages(
                "autoscaling",
                "describe_auto_scaling_groups",
                "AutoScalingGroups",
                AutoScalingGroupNames=chunk,
                PaginationConfig={"PageSize": PAGE},
            )

    def activities(self, names: Sequence[str], since: datetime) -> Sequence[Activity]:
        """Activities of the groups since `since`, oldest first. The API requires one call per group.

        Raises CloudError if a page fails or an activity cannot be read.
        """
        found: dict[str, Activity] = {}
        for name in names:
            try:
                found |= self._activities_by_id(name, since)
            except MALFORMED as error:
                raise CloudError(f"an activity of {name} cannot be read: {malformed(error)}") from error
        return tuple(sorted(found.values(), key=lambda activity: (activity.at, activity.id)))

    def _activities_by_id(self, name: str, since: datetime) -> dict[str, Activity]:
        # by id: a new activity between two requests moves the last item of one page to the next page
        found: dict[str, Activity] = {}
        for raw in self._calls.pages(
            "autoscaling", "describe_scaling_activities", "Activities", AutoScalingGroupName=name
        ):
            if raw["StartTime"].astimezone(UTC) < since:
                if raw["StatusCode"] not in FINISHED:
                    continue  # activities in progress are listed first, regardless of their age
                break  # finished activities are listed newest first, so all others are older
            activity = read_activity(raw)
            if activity is not None and not (is_asking(activity) or follows_failed_launch(activity)):
                found[activity.id] = activity
        return found

    def resize(self, group: Group, size: int) -> None:
        """Set the desired size. The API has no conditional write, so the caller must read the group just before."""
        request = {"AutoScalingGroupName": group.name, "DesiredCapacity": size, "HonorCooldown": False}
        if size < group.desired:
            # terminates instances: no retries, because the decision would be outdated after a minute
            self._calls.once("autoscaling", "set_desired_capacity", **request)
        else:
            self._calls.one("autoscaling", "set_desired_capacity", **request)

    def end(self, instance_id: str, group: str, *, lower_desired: bool) -> None:
        """Terminate an instance through its group. No error if it already left the group. Raises CloudError."""
        try:
            self._calls.once(
                "autoscaling",
                "terminate_instance_in_auto_scaling_group",
                InstanceId=instance_id,
                ShouldDecrementDesiredCapacity=lower_desired,
            )
        except CloudError as error:
            if error.code == "ValidationError" and _NOT_A_MEMBER.search(str(error)):
                return
            raise CloudError(f"{instance_id} of {group}: {error}", error.code) from error

    def resume_processes(self, name: str, processes: Collection[str]) -> None:
        """Resume suspended processes of a group. Raises CloudError."""
        self._calls.one(
            "autoscaling", "resume_processes", AutoScalingGroupName=name, ScalingProcesses=sorted(processes)
        )

    def complete_hooks(self, name: str, *, serving: Collection[str], drained: Collection[str]) -> Mapping[str, str]:
        """Complete our lifecycle hooks for waiting instances. Returns errors by instance id.

        Makes one call per instance. Hooks that users added are left alone.
        """
        held = [(READY_HOOK, key) for key in serving] + [(DRAIN_HOOK, key) for key in drained]
        found = {key: self._complete(name, hook, key) for hook, key in held}
        return {key: error for key, error in found.items() if error is not None}

    def _complete(self, name: str, hook: str, instance_id: str) -> str | None:
        try:
            self._calls.one(
                "autoscaling",
                "complete_lifecycle_action",
                AutoScalingGroupName=name,
                LifecycleHookName=hook,
                InstanceId=instance_id,
                LifecycleActionResult="CONTINUE",
            )
        except CloudError as error:
            # the hook timed out, another run completed it, or an agent of another release completed it itself
            return None if _NOT_WAITING in str(error) else str(error)
        return None

    def in_rollout(self, names: Sequence[str], required: Collection[str] = ()) -> frozenset[str]:
        """Names of the groups with an instance refresh in progress. Raises CloudError.

        The description of a group does not contain its refresh, and the call that lists refreshes takes one group
        only. So this describes the groups, a hundred per call, and lists refreshes only for groups with changing
        members and for those in `required`.
        """
        described = {_name(raw): raw for raw in self._described(sorted(set(names) - set(required)))}
        asked = [name for name in names if name not in described or _may_refresh(described[name])]
        if not asked:
            return frozenset()
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(asked))) as pool:
            return frozenset(
                name for name, busy in zip(asked, pool.map(self._refreshing, asked), strict=True) if busy
            )

    def _refreshing(self, name: str) -> bool:
        answer = self._calls.one("autoscaling", "describe_instance_refreshes", AutoScalingGroupName=name)
        try:
            return any(refresh["Status"] not in OVER for refresh in answer["InstanceRefreshes"])
        except MALFORMED as error:
            raise CloudError(f"the refreshes of {name} cannot be read: {malformed(error)}") from error


def _name(raw: Mapping[str, Any]) -> str:
    return str(raw.get("AutoScalingGroupName"))


def _group(raw: Mapping[str, Any]) -> Group:
    written = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", [])}
    zones = raw.get("AvailabilityZones", [])
    kind = written.get(tags.CAPACITY_TYPE, CapacityType.ON_DEMAND)
    if kind not in list(CapacityType):
        raise CloudError(
            f"{raw['AutoScalingGroupName']}: its tag {tags.CAPACITY_TYPE} is {kind!r}, must be one of"
            f" {', '.join(CapacityType)}; `pulumi up` corrects it"
        )
    members = raw.get("Instances", [])
    return Group(
        name=raw["AutoScalingGroupName"],
        pool=written.get(tags.POOL, ""),
        capacity_type=CapacityType(kind),
        zone=zones[0] if len(zones) == 1 else None,
        desired=raw["DesiredCapacity"],
        min=raw["MinSize"],
        max=raw["MaxSize"],
        instance_ids=tuple(member["InstanceId"] for member in members if counts(member)),
        leaving=frozenset(member["InstanceId"] for member in members if is_leaving(member)),
        waiting_to_serve=_in_state(members, "Pending:Wait"),
        waiting_to_end=_in_state(members, "Terminating:Wait"),
        suspended=tuple(
            _suspended(row) for row in raw.get("SuspendedProcesses", []) if row["ProcessName"] not in OURS
        ),
    )


def _in_state(members: Sequence[Mapping[str, Any]], state: str) -> frozenset[str]:
    return frozenset(member["InstanceId"] for member in members if member["LifecycleState"] == state)


def _suspended(raw: Mapping[str, Any]) -> SuspendedProcess:
    """One suspended process. AWS suspended it if the reason names no user; the exact text was never recorded."""
    reason = (raw.get("SuspensionReason") or "").strip()
    by_cloud = bool(reason) and not reason.lower().startswith("user suspended")
    return SuspendedProcess(process=raw["ProcessName"], reason=reason, by_cloud=by_cloud)


def _may_refresh(raw: Mapping[str, Any]) -> bool:
    """Whether a refresh may be in progress. True also for a group that cannot be read."""
    try:
        return _is_refreshing(raw)
    except MALFORMED:
        return True


def _is_refreshing(raw: Mapping[str, Any]) -> bool:
    """Whether members launch or terminate, or have another template version than the group."""
    spec = raw.get("LaunchTemplate")
    if spec is None:
        mixed = raw.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
        spec = mixed.get("LaunchTemplateSpecification", {})
    version = spec.get("Version", "")
    # `$Latest` and `$Default` are aliases; only the newest members show the version number
    wanted = {(spec.get("LaunchTemplateId"), version)} if version.isdigit() else set[tuple[Any, Any]]()
    members = raw.get("Instances", [])
    made_of = {(m.get("LaunchTemplate", {}).get("LaunchTemplateId"), _version(m)) for m in members}
    return len(made_of | wanted) > 1 or any(m["LifecycleState"] != "InService" for m in members)


def _version(member: Mapping[str, Any]) -> Any:
    return member.get("LaunchTemplate", {}).get("Version")


def _chunks(names: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), PAGE):
        yield list(names[start : start + PAGE])
