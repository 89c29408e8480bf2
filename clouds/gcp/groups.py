"""Managed instance groups: their sizes, what happened to them, and how an instance leaves one.

A group of the fleet document with a zone is zonal, one without is regional.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from clouds.gcp.calls import GoogleCalls
from clouds.gcp.operations import PREEMPTED, began, instance_of
from gpufleet.domain.activity import Activity, ActivityKind, CloudError, ConflictError
from gpufleet.domain.model import Group
from gpufleet.settings.document import FleetDocument, GroupEntry

_NO_CAPACITY: Final = re.compile(r"ZONE_RESOURCE_POOL_EXHAUSTED|STOCKOUT|does not have enough resources", re.I)
_QUOTA: Final = re.compile(r"QUOTA_EXCEEDED|QUOTA_LIMIT|Quota '.*' exceeded", re.I)
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
"""The client's names of request bodies follow no rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An instance of a group, as its manager sees it."""

    instance: str
    template: str
    """Name of the template that it was made from."""
    action: str
    """What the manager does with it now; NONE: it is left alone."""


class GoogleGroups:
    """The managed instance groups of one fleet."""

    def __init__(self, calls: GoogleCalls, document: FleetDocument) -> None:
        self._calls = calls
        self._region = document.region
        self._bases: dict[str, str] = {}
        self._known: Mapping[str, tuple[str, GroupEntry]] = {
            group.name: (pool.name, group) for pool in document.pools for group in pool.groups
        }

    def groups(self, names: Sequence[str]) -> Sequence[Group]:
        """Each of them. Raises CloudError when one is missing."""
        return tuple(self._group(name) for name in names)

    def activities(self, names: Sequence[str], since: datetime) -> Sequence[Activity]:
        """What happened to them since then, oldest first: failed launches and preemptions."""
        found = [activity for name in names for activity in self._errors(name)]
        zones = {entry.zone for _, entry in self._known.values() if entry.zone}
        for zone in sorted(zones):
            found += self._preemptions(zone, names)
        return tuple(sorted((a for a in found if a.at >= since), key=lambda a: (a.at, a.id)))

    def resize(self, group: Group, size: int) -> None:
        """Set the target size. Raises ConflictError when somebody else has changed it since `group` was read."""
        now = self._group(group.name)
        if now.desired != group.desired:
            raise ConflictError(f"{group.name}: the size was {group.desired} when seen, it is {now.desired}")
        service, place = self._place(group.name)
        self._calls.finish(service, "resize", **place, size=size)

    def end(self, instance_id: str, group: str, *, lower_desired: bool) -> None:
        """End an instance through its group. Ending what has left the group is no error."""
        service, place = self._place(group)
        path = self._instance_path(group, instance_id)
        if path is None:
            return
        # deleting lowers the size by itself; recreating keeps it
        operation = "delete_instances" if lower_desired else "recreate_instances"
        body: dict[str, Any] = {"instances": [path]}
        if lower_desired:
            body["skip_instances_on_validation_error"] = True
        self._calls.finish(service, operation, **place, **{_BODY[service, operation]: body})

    def templates(self, group: str) -> tuple[str, Sequence[Member]]:
        """Name of the template that a group wants, and its instances. Raises CloudError."""
        service, place = self._place(group)
        raw = self._calls.one(service, "get", **place)
        members = self._calls.pages(service, "list_managed_instances", **place)
        wanted = next((v.instance_template for v in raw.versions), "") or raw.instance_template
        return _name(wanted), tuple(
            Member(
                instance=_name(m.instance), template=_name(m.version.instance_template), action=str(m.current_action)
            )
            for m in members
        )

    def in_rollout(self, names: Sequence[str], surely: Collection[str] = ()) -> frozenset[str]:
        """None: updates are opportunistic, so a rollout is our own command, which pauses the pool while it runs."""
        del names, surely
        return frozenset()

    def _group(self, name: str) -> Group:
        service, place = self._place(name)
        pool, entry = self._known[name]
        raw = self._calls.one(service, "get", **place)
        # one that could not be made yet has a name, and no status: it does not exist
        members = {
            _name(m.instance): str(m.current_action)
            for m in self._calls.pages(service, "list_managed_instances", **place)
            if m.instance_status
        }
        leaving = frozenset(key for key, action in members.items() if action == "DELETING")
        return Group(
            name=name,
            pool=pool,
            capacity_type=entry.type,
            zone=entry.zone,
            desired=int(raw.target_size),
            min=0,
            max=entry.max,
            instance_ids=tuple(sorted(members.keys() - leaving)),
            leaving=leaving,
        )

    def _place(self, name: str) -> tuple[str, dict[str, str]]:
        if name not in self._known:
            raise CloudError(f"the fleet document does not know the group {name}")
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

    def _errors(self, name: str) -> list[Activity]:
        service, place = self._place(name)
        found: list[Activity] = []
        for index, item in enumerate(self._calls.pages(service, "list_errors", **place)):
            words = f"{item.error.code}: {item.error.message}"
            at = datetime.fromisoformat(item.timestamp).astimezone(UTC)
            instance = str(item.instance_action_details.instance).rsplit("/", 1)[-1] or None
            found.append(
                Activity(
                    id=f"{name}:{item.timestamp}:{index}",
                    group=name,
                    kind=_kind(words),
                    at=at,
                    instance_id=instance,
                    detail=words,
                )
            )
        return found

    def _preemptions(self, zone: str, names: Sequence[str]) -> list[Activity]:
        found: list[Activity] = []
        listed = self._calls.pages("zone_operations", "list", zone=zone, filter=f"operationType={PREEMPTED}")
        for operation in listed:
            instance = instance_of(operation)
            group = next((name for name in names if instance and self._made(name, instance, zone)), None)
            if group is not None:
                found.append(
                    Activity(
                        id=operation.name,
                        group=group,
                        kind=ActivityKind.PREEMPTED,
                        at=began(operation),
                        instance_id=instance,
                        detail=operation.status_message or "preempted",
                    )
                )
        return found

    def _made(self, group: str, instance: str, zone: str) -> bool:
        """Whether a group made an instance, which it names `<its base name>-<four letters>`.

        The components give each environment base names of its own, so that two of one project are told apart.
        """
        _, entry = self._known[group]
        return entry.zone == zone and instance.rsplit("-", 1)[0] == self._base(group)

    def _base(self, group: str) -> str:
        if group not in self._bases:
            service, place = self._place(group)
            self._bases[group] = str(self._calls.one(service, "get", **place).base_instance_name)
        return self._bases[group]


def _name(link: str) -> str:
    return str(link).rsplit("/", 1)[-1]


def _kind(words: str) -> ActivityKind:
    if _NO_CAPACITY.search(words):
        return ActivityKind.NO_CAPACITY
    return ActivityKind.QUOTA if _QUOTA.search(words) else ActivityKind.UNKNOWN
