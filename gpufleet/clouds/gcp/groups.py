"""Managed instance groups: sizes, activities, and termination of instances.

A group with a zone in the fleet document is zonal; one without a zone is regional.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gpufleet.clouds.gcp import group_lists
from gpufleet.clouds.gcp.activities import activities, refusal
from gpufleet.clouds.gcp.calls import GoogleCalls
from gpufleet.clouds.gcp.group_lists import UNBORN, GroupLists, Key
from gpufleet.clouds.gcp.operations import END_OPERATIONS_SPAN, OperationHistory, recent
from gpufleet.clouds.gcp.resizes import Resizes
from gpufleet.domain.activity import Activity, ActivityKind, CloudError, ConflictError
from gpufleet.domain.model import CapacityType, Group, GroupList
from gpufleet.settings.document import FleetDocument, GroupEntry

_BODY: Final = {
    ("instance_group_managers", "delete_instances"): "instance_group_managers_delete_instances_request_resource",
    ("instance_group_managers", "recreate_instances"): "instance_group_managers_recreate_instances_request_resource",
    ("region_instance_group_managers", "delete_instances"): (
        "region_instance_group_managers_delete_instances_request_resource"
    ),
    ("region_instance_group_managers", "recreate_instances"): (
        "region_instance_group_managers_recreate_request_resource"
    ),
}
"""Argument names of request bodies. The client's names are irregular."""
_LEAVING: Final = frozenset({"ABANDONING", "DELETING", "STOPPING", "SUSPENDING"})
"""Actions of a manager on instances that no longer count towards the size."""
_CREATING: Final = frozenset({"CREATING", "CREATING_WITHOUT_RETRIES", "RECREATING"})
_UNDECIDED: Final = frozenset({ActivityKind.IN_PROGRESS, ActivityKind.THROTTLED, ActivityKind.LATER})
_SHARED_FOR_S: Final = 1.0
"""How long one list of a zone's operations is reused for all groups."""
_BEGINS_WITHIN_S: Final = 5.0
"""Time after a resize within which a group starts its launch operations. Until then, none of them is missing."""
_SAME_REFUSAL: Final = timedelta(minutes=2)
"""An operation and its group report the same refusal within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Naming:
    """Base name and zones that identify the instances of a group."""

    base: str
    zones: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """Instances that a group was creating when it was last read."""

    count: int
    names: frozenset[str] | None
    """None: the members were not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operations:
    """Operations of a zone, and when they were read."""

    at: float
    since: datetime
    history: OperationHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedInstance:
    """An instance of a group, as its manager reports it."""

    instance: str
    template: str
    """Name of the template that it was created from."""
    action: str
    """Current action of the manager on it; NONE: no action."""


class GoogleGroups:
    """The managed instance groups of one fleet."""

    def __init__(
        self, calls: GoogleCalls, document: FleetDocument, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._region = document.region
        self._environment = document.environment
        self._namings: dict[str, _Naming] = {}
        self._operations: dict[str, _Operations] = {}
        self._resizes = Resizes(calls, clock)
        self._making: dict[str, _Making] = {}
        """By group, from its last read. A resize removes the entry."""
        self._known: Mapping[str, tuple[str, GroupEntry]] = {
            group.name: (pool.name, group) for pool in document.pools for group in pool.groups
        }

    def groups(self, names: Sequence[str]) -> Sequence[Group]:
        """The groups with these names. Raises CloudError if one is missing."""
        lists = self._lists(names)
        return tuple(self._group(name, lists) for name in names)

    def readable(self, names: Sequence[str]) -> GroupList:
        """Readable groups, and an error for each of the others. Raises CloudError if a list fails."""
        lists = self._lists(names)
        found: dict[str, Group] = {}
        errors: dict[str, str] = {}
        for name in names:
            try:
                found[name] = self._group(name, lists)
            except CloudError as error:
                errors[name] = str(error)
        return GroupList(groups=found, errors=errors)

    def activities(self, names: Sequence[str], since: datetime) -> Sequence[Activity]:
        """Launches, refusals and terminations of the groups since `since`, oldest first. Raises CloudError.

        Reads one list of operations per zone. Reads the errors of a group only if it creates instances without a
        known operation.
        """
        owners = {
            (zone, naming.base): name for name in names for naming in [self._naming(name)] for zone in naming.zones
        }
        found: list[Activity] = []
        for zone in sorted({zone for zone, _ in owners}):
            # start earlier, to read all operations of a termination that began before `since`
            history = self._history(zone, since - END_OPERATIONS_SPAN)
            found += activities(history, lambda instance, zone=zone: owners.get((zone, _base(instance))))
        for name in names:
            if not self._is_explained(name, found):
                found += [error for error in self._errors(name, since) if not _is_listed(error, found)]
        judged = (self._judged(activity) for activity in found if activity.at >= since)
        return tuple(sorted(judged, key=lambda activity: (activity.at, activity.id)))

    def resize(self, group: Group, size: int) -> None:
        """Start to set the target size. Raises ConflictError if the size differs from that of `group`.

        The check uses a size that was read within `resizes.RECENT_S`; older sizes of all groups are read again with
        one list. If Google refuses the resize later, the next read of the group raises the error.
        """
        service, place = self._place(group.name)
        now = self._resizes.recent_size(group.name)
        if now is None:
            now = self._size(group.name)
        if now != group.desired:
            raise ConflictError(f"{group.name}: the size was {group.desired} when it was read, and is {now} now")
        self._making.pop(group.name, None)
        self._operations.clear()
        self._resizes.begin(group.name, service, place, size)

    def end(self, instance_id: str, group: str, *, lower_desired: bool) -> None:
        """Terminate an instance through its group. No error if it already left the group. Raises CloudError."""
        service, place = self._place(group)
        path = self._instance_path(group, instance_id)
        if path is None:
            return
        # deletion lowers the size; recreation keeps it
        operation = "delete_instances" if lower_desired else "recreate_instances"
        body: dict[str, Any] = {"instances": [path]}
        if lower_desired:
            body["skip_instances_on_validation_error"] = True
            self._resizes.forget(group)
        self._calls.finish(service, operation, **place, **{_BODY[service, operation]: body})

    def templates(self, group: str) -> tuple[str, Sequence[ManagedInstance]]:
        """Name of the group's current template, and the group's instances. Raises CloudError."""
        service, place = self._place(group)
        raw = self._calls.one(service, "get", **place)
        members = self._calls.pages(service, "list_managed_instances", **place)
        wanted = next((v.instance_template for v in raw.versions), "") or raw.instance_template
        return _name(wanted), tuple(
            ManagedInstance(
                instance=_name(m.instance), template=_name(m.version.instance_template), action=str(m.current_action)
            )
            for m in members
        )

    def resume_processes(self, name: str, processes: Collection[str]) -> None:
        """Does nothing: managed instance groups have no processes that can be suspended."""
        del name, processes

    def complete_hooks(self, name: str, *, serving: Collection[str], drained: Collection[str]) -> Mapping[str, str]:
        """Does nothing: managed instance groups have no lifecycle hooks. Returns no errors."""
        del name, serving, drained
        return {}

    def in_rollout(self, names: Sequence[str], required: Collection[str] = ()) -> frozenset[str]:
        """Always empty: update policies are opportunistic, so Google starts no rollouts. `gpufleet rollout` replaces
        instances itself and pauses the pool meanwhile.
        """
        del names, required
        return frozenset()

    def _lists(self, names: Sequence[str]) -> GroupLists | None:
        """The lists of all groups if `names` has several; None for one group, which needs fewer calls alone."""
        return group_lists.read(self._calls, self._environment, self._region) if len(names) > 1 else None

    def _size(self, name: str) -> int:
        """Current target size of a group. The same list provides the sizes of the other groups for their resizes."""
        managers = group_lists.managers(self._calls, self._region)
        for other in self._known:
            if (raw := managers.get(self._key(other))) is not None:
                self._resizes.note(other, raw)
        return self._resizes.read(name, self._place(name)[1], self._listed(name, managers))

    def _key(self, name: str) -> Key:
        _, entry = self._known[name]
        return f"zones/{entry.zone}" if entry.zone else f"regions/{self._region}", name

    def _listed(self, name: str, managers: Mapping[Key, Any]) -> Any:
        if (key := self._key(name)) not in managers:
            raise CloudError(f"the cloud has no group {name}; was the stack destroyed?")
        return managers[key]

    def _group(self, name: str, lists: GroupLists | None = None) -> Group:
        service, place = self._place(name)
        pool, entry = self._known[name]
        raw = self._calls.one(service, "get", **place) if lists is None else self._listed(name, lists.managers)
        desired = self._resizes.read(name, place, raw)
        self._namings[name] = self._naming_of(raw, name)
        made = None if lists is None else lists.members(self._key(name), grows=self._resizes.asked(name) is not None)
        self._making[name] = _Making(count=max(0, desired - group_lists.unchanged_count(raw)), names=None)
        leaving: frozenset[str] = frozenset()
        if made is None:
            members = tuple(self._calls.pages(service, "list_managed_instances", **place))
            # an instance that could not be created yet has a name but no status: it does not exist
            there = [member for member in members if member.instance_status]
            leaving = frozenset(_name(member.instance) for member in there if _is_leaving(member))
            made = frozenset(_name(member.instance) for member in there)
            making = [_name(member.instance) for member in members if str(member.current_action) in _CREATING]
            self._making[name] = _Making(count=len(making), names=frozenset(making))
        return Group(
            name=name,
            pool=pool,
            capacity_type=entry.type,
            zone=entry.zone,
            desired=desired,
            min=0,
            max=entry.max,
            instance_ids=tuple(sorted(made - leaving)),
            leaving=leaving,
        )

    def _place(self, name: str) -> tuple[str, dict[str, str]]:
        if name not in self._known:
            raise CloudError(f"the fleet document contains no group {name}")
        _, entry = self._known[name]
        if entry.zone:
            return "instance_group_managers", {"zone": entry.zone, "instance_group_manager": name}
        return "region_instance_group_managers", {"region": self._region, "instance_group_manager": name}

    def _instance_path(self, group: str, instance_id: str) -> str | None:
        service, place = self._place(group)
        for member in self._calls.pages(service, "list_managed_instances", **place):
            if str(member.instance).rsplit("/", 1)[-1] == instance_id:
                return str(member.instance)
        return None

    def _history(self, zone: str, since: datetime) -> OperationHistory:
        """Operations of a zone since `since` or earlier. Consecutive requests for several groups share one list."""
        known = self._operations.get(zone)
        if known is None or known.since > since or self._clock() - known.at >= _SHARED_FOR_S:
            history = recent(self._calls, zone, since)
            # take the time after the read: reading many pages may take longer than the reuse period
            known = _Operations(at=self._clock(), since=since, history=history)
            self._operations[zone] = known
        return known.history

    def _is_explained(self, name: str, found: Sequence[Activity]) -> bool:
        """Whether operations explain all instances that a group creates, or cannot have started yet."""
        making, asked = self._making.get(name), self._resizes.asked(name)
        if making is None:
            return False
        last = {one.instance_id: one for one in sorted(found, key=lambda one: one.at) if one.group == name}
        stated = {key: one for key, one in last.items() if one.kind.refuses or one.kind in _UNDECIDED}
        if asked is not None and self._clock() - asked.at < _BEGINS_WITHIN_S:
            return True
        if making.names is not None:
            return making.names <= stated.keys()
        if asked is None or asked.began is None:
            return making.count == 0
        began = asked.began  # earlier refusals do not belong to this resize
        return sum(one.at >= began for one in stated.values()) >= making.count

    def _errors(self, name: str, since: datetime) -> list[Activity]:
        """Failed creations of a group since `since`, including those for which no operation started."""
        service, place = self._place(name)
        found: list[Activity] = []
        for index, item in enumerate(self._calls.pages(service, "list_errors", **place)):
            try:
                at = datetime.fromisoformat(item.timestamp).astimezone(UTC)
            except ValueError as error:
                raise CloudError(f"an error of {name} has an unreadable time: {error}") from error
            if at >= since:
                instance = _name(item.instance_action_details.instance) or None
                found.append(refusal(name, instance, at, item.error, f"{name}:{item.timestamp}:{index}"))
        return found

    def _judged(self, activity: Activity) -> Activity:
        """Replace PREEMPTED by UNKNOWN for groups other than spot, where the error code has another meaning."""
        spot = self._known[activity.group][1].type is CapacityType.SPOT
        wrong = activity.kind is ActivityKind.PREEMPTED and not spot
        return replace(activity, kind=ActivityKind.UNKNOWN) if wrong else activity

    def _naming(self, group: str) -> _Naming:
        if group not in self._namings:
            service, place = self._place(group)
            self._namings[group] = self._naming_of(self._calls.one(service, "get", **place), group)
        return self._namings[group]

    def _naming_of(self, raw: Any, group: str) -> _Naming:
        """Base name and zones of a group. Its instances have names of the form `<base name>-<four letters>`.

        The components give each environment separate base names, to distinguish the environments of one project.
        """
        _, entry = self._known[group]
        zones = [entry.zone] if entry.zone else [_name(zone.zone) for zone in raw.distribution_policy.zones]
        return _Naming(base=str(raw.base_instance_name), zones=frozenset(zones))


def _name(link: str) -> str:
    return str(link).rsplit("/", 1)[-1]


def _base(instance: str) -> str:
    return instance.rpartition("-")[0]


def _is_leaving(member: Any) -> bool:
    """Whether a member no longer counts. Recreation first terminates a member, then creates it with the same name."""
    action = str(member.current_action)
    return action in _LEAVING or (action == "RECREATING" and str(member.instance_status) not in UNBORN)


def _is_listed(error: Activity, found: Sequence[Activity]) -> bool:
    return any(
        error.kind is other.kind
        and error.instance_id == other.instance_id
        and abs(error.at - other.at) < _SAME_REFUSAL
        for other in found
    )
