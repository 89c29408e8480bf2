"""Managed instance groups: a target size, members, and a loop that brings the members to that size."""

import random
import string
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from localcloud.gcp import instances
from localcloud.gcp.errors import ApiError
from localcloud.gcp.locations import PROJECT
from localcloud.gcp.machine import Machine
from localcloud.gcp.operations import GROUPS, OperationFailure
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Key, Row, key_of, last, path_of, stamp

_REFUSAL_TAKES: Final = timedelta(seconds=7)
"""From the start of an operation to its error for lack of capacity, as recorded once."""
_RETRY_FIRST: Final = timedelta(seconds=10)
_RETRY_LONGEST: Final = timedelta(seconds=60)
"""The waiting time after a refusal grows. Google does not document it: these values are assumptions."""
_ERRORS_KEPT: Final = 100
ACTIONS: Final[tuple[str, ...]] = (
    "none",
    "creating",
    "creatingWithoutRetries",
    "recreating",
    "deleting",
    "abandoning",
    "restarting",
    "refreshing",
    "verifying",
)


@dataclass(slots=True, kw_only=True)
class Member:
    """One instance that the group manages or has to create."""

    name: str
    zone: str
    version: Row
    """The version of the group from which it is created."""
    action: str = "CREATING"
    errors: list[Row] = field(default_factory=list[Row])
    """The error of the last attempt."""
    once: bool = False
    """CREATING_WITHOUT_RETRIES."""
    machine_type: str | None = None
    """The machine type that the flexibility policy chose."""
    zone_is_free: bool = False
    """Whether another zone may be tried (regional groups with the shape ANY)."""


@dataclass(slots=True, kw_only=True)
class ManagedGroup:
    """The members of a group; its resource is in the store."""

    key: Key
    members: list[Member] = field(default_factory=list[Member])
    errors: list[Row] = field(default_factory=list[Row])
    """The entries of listErrors, newest last."""
    retry_at: datetime | None = None
    failures: int = 0
    deleting: bool = False

    @property
    def ident(self) -> tuple[str, str]:
        return self.key.scope, self.key.name

    def count(self, action: str) -> int:
        return sum(member.action == action for member in self.members)


def versions(row: Row) -> list[Row]:
    """The versions of a group; the older form of the resource has one template."""
    return row.get("versions") or [{"instanceTemplate": row["instanceTemplate"], "name": ""}]


def current_version(row: Row) -> Row:
    """The version for new instances: that without a target size."""
    found = versions(row)
    return next((version for version in found if "targetSize" not in version), found[0])


def zones_of(row: Row, key: Key) -> list[str]:
    """The zones of its instances."""
    if key.scope.startswith("zones/"):
        return [key.scope.removeprefix("zones/")]
    return [last(zone["zone"]) for zone in row["distributionPolicy"]["zones"]]


def new_name(state: GoogleState, row: Row) -> str:
    """An unused name: `<base>-` and four letters."""
    base = row.get("baseInstanceName") or row["name"]
    used = {member.name for group in state.groups.values() for member in group.members} | set(state.machines)
    while True:
        letters = "".join(random.choices(string.ascii_lowercase + string.digits, k=4))
        if (name := f"{base}-{letters}") not in used:
            return name


def add_member(state: GoogleState, group: ManagedGroup, name: str | None = None) -> Member:
    """Add a member, in the zone with the fewest members."""
    row = state.store.get(group.key)
    zones = zones_of(row, group.key)
    have = Counter(member.zone for member in group.members)
    shape = row.get("distributionPolicy", {}).get("targetShape", "EVEN")
    made = Member(
        name=name or new_name(state, row),
        zone=min(zones, key=lambda zone: (have[zone], zones.index(zone))),
        version=current_version(row),
        zone_is_free=shape in ("ANY", "ANY_SINGLE_ZONE", "BALANCED") and len(zones) > 1,
    )
    group.members.append(made)
    return made


def end_member(state: GoogleState, group: ManagedGroup, member: Member, action: str = "DELETING") -> None:
    """Delete the instance of a member; then the member leaves the group, or is recreated."""
    member.action = action
    machine = _machine(state, member)
    if machine is not None:
        why = f"group {group.key.name}: {action.lower()}"
        instances.begin_stop(state, machine, why, delete=True)
        state.operations.start(
            machine.key.scope,
            "delete",
            machine.key.path,
            machine.uid,
            progress=lambda: state.store.find(machine.key) is not machine.row,
            user=GROUPS,
        )


def resize(state: GoogleState, group: ManagedGroup, size: int) -> None:
    """Set the target size; the loop creates or deletes instances."""
    state.store.get(group.key)["targetSize"] = size
    group.retry_at, group.failures = None, 0


def advance(state: GoogleState, group: ManagedGroup, now: datetime) -> None:
    """One round: remove members that ended, create missing ones, delete excess ones."""
    for member in list(group.members):
        _advance_member(state, group, member)
    if group.deleting:
        if not group.members:
            state.store.remove(group.key)
            state.store.remove(_plain_key(group.key))
            del state.groups[group.ident]
        return
    row = state.store.get(group.key)
    staying = [member for member in group.members if member.action != "DELETING"]
    for _ in range(int(row["targetSize"]) - len(staying)):
        add_member(state, group)
    surplus = len(staying) - int(row["targetSize"])
    if surplus > 0:
        for member in sorted(staying, key=lambda one: _leaves_first(state, one))[:surplus]:
            end_member(state, group, member)
    _update(state, group, row)
    if group.retry_at is None or now >= group.retry_at:
        _create_missing(state, group, row, now)


def _plain_key(key: Key) -> Key:
    return Key(key.scope, "instanceGroups", key.name)


def _machine(state: GoogleState, member: Member) -> Machine | None:
    found = state.machines.get(member.name)
    return found if found is not None and found.zone == member.zone else None


def _leaves_first(state: GoogleState, member: Member) -> tuple[int, str]:
    machine = _machine(state, member)
    order = 0 if machine is None else 1 if machine.status != "RUNNING" else 2
    return order, member.name


def _advance_member(state: GoogleState, group: ManagedGroup, member: Member) -> None:  # noqa: C901 - one branch per action
    machine = _machine(state, member)
    if member.action == "DELETING":
        if machine is None:
            group.members.remove(member)
        return
    if member.action == "RECREATING":
        if machine is None:
            member.action = "CREATING"  # under its name
        return
    if member.action == "CREATING":
        if machine is not None and machine.status == "RUNNING":
            member.action, member.errors = "NONE", []
        elif machine is not None and machine.status == "TERMINATED":
            end_member(state, group, member, "RECREATING")
        return
    row = state.store.get(group.key)
    if machine is not None and machine.why == instances.RUN_IS_OVER and machine.deleting:
        # the member leaves and the target size shrinks, as for instances of resize requests
        row["targetSize"] = max(0, int(row["targetSize"]) - 1)
        member.action = "DELETING"
        return
    policy = row.get("instanceLifecyclePolicy", {})
    if policy.get("defaultActionOnFailure", "REPAIR") == "DO_NOTHING" or group.deleting:
        return
    if machine is None or machine.status == "TERMINATED" or (machine.status == "STOPPING" and machine.deleting):
        _repair(state, group, member, machine)


def fail_health_check(state: GoogleState, group: ManagedGroup, member: Member) -> None:
    """Handle a failed health check: recreate the instance, unless the group only reports failures."""
    row = state.store.get(group.key)
    policy: Row = row.get("instanceLifecyclePolicy", {})
    action = policy.get("onFailedHealthCheck", "DEFAULT_ACTION")
    if action == "DEFAULT_ACTION":
        action = policy.get("defaultActionOnFailure", "REPAIR")
    if action == "REPAIR" and row.get("autoHealingPolicies") and (machine := _machine(state, member)) is not None:
        _repair(state, group, member, machine, "Instance eligible for autohealing: instance unhealthy.")


def _repair(state: GoogleState, group: ManagedGroup, member: Member, machine: Machine | None, why: str = "") -> None:
    """Recreate a preempted, deleted, stopped or unhealthy instance in its zone, under its name."""
    status = machine.status if machine else "DELETED"
    why = why or f"instance's intent is RUNNING but instance's status is {status}."
    forced = state.store.get(group.key).get("instanceLifecyclePolicy", {}).get("forceUpdateOnRepair") == "YES"
    if forced:
        member.version = current_version(state.store.get(group.key))
    state.operations.happened(
        f"zones/{member.zone}",
        "compute.instances.repair.recreateInstance",
        f"projects/{PROJECT}/zones/{member.zone}/instances/{member.name}",
        machine.uid if machine else "0",
        f"Instance Group Manager '{state.store.get(group.key)['selfLink']}' initiated recreateInstance on instance"
        f" '{member.name}'. Reason: {why}",
    )
    if machine is None:
        member.action = "CREATING"
        return
    end_member(state, group, member, "RECREATING")


def _update(state: GoogleState, group: ManagedGroup, row: Row) -> None:
    """A proactive group replaces outdated members, one at a time, while it is stable."""
    if row.get("updatePolicy", {}).get("type") != "PROACTIVE" or not is_stable(group):
        return
    for member in group.members:
        if not is_current(row, member):
            replace_member(state, group, member)
            return


def replace_member(state: GoogleState, group: ManagedGroup, member: Member) -> None:
    """Recreate a member under its name, from the group's present template. A repair keeps the member's template."""
    member.version = current_version(state.store.get(group.key))
    end_member(state, group, member, "RECREATING")


def is_current(row: Row, member: Member) -> bool:
    """Whether the member has a version that the group still has."""
    wanted = {path_of(version["instanceTemplate"]) for version in versions(row)}
    return path_of(member.version["instanceTemplate"]) in wanted


def is_stable(group: ManagedGroup) -> bool:
    """Whether no member is being created or deleted."""
    return all(member.action == "NONE" for member in group.members)


def _create_missing(state: GoogleState, group: ManagedGroup, row: Row, now: datetime) -> None:
    failed = False
    for member in group.members:
        if member.action == "CREATING" and _machine(state, member) is None and member.name not in state.machines:
            failed = not _create(state, group, row, member, now) or failed
    if failed:
        group.failures += 1
        wait = _REFUSAL_TAKES + min(_RETRY_FIRST * 2 ** min(group.failures - 1, 6), _RETRY_LONGEST)
        group.retry_at = now + state.time_scale.shorten(wait)
    else:
        group.failures, group.retry_at = 0, None


def _create(state: GoogleState, group: ManagedGroup, row: Row, member: Member, now: datetime) -> bool:
    """Try its zone (or all allowed zones) and machine types in their order."""
    template = state.store.find(key_of(member.version["instanceTemplate"]) or group.key)
    if template is None:
        # its template was deleted: use the group's present one
        member.version = current_version(row)
        template = state.store.find(key_of(member.version["instanceTemplate"]) or group.key)
    if template is None or "properties" not in template:
        _note(
            state,
            group,
            member,
            OperationFailure(code="INVALID_TEMPLATE", message="The instance template is gone."),
            now,
        )
        return False
    zones = [member.zone]
    if member.zone_is_free:
        zones += [zone for zone in zones_of(row, group.key) if zone != member.zone]
    first: OperationFailure | None = None
    for zone in zones:
        for machine_type in _machine_types(row, template["properties"]):
            made = _launch(state, group, member, zone, template, machine_type)
            if isinstance(made, Machine):
                member.zone, member.machine_type = zone, machine_type
                _begin_insert(state, group, member, made)
                return True
            first = first or made
    if first is not None:
        _refuse(state, group, member, first, now)
    if member.once:
        group.members.remove(member)
        row["targetSize"] = max(0, int(row["targetSize"]) - 1)
    return False


def _begin_insert(state: GoogleState, group: ManagedGroup, member: Member, made: Machine) -> None:
    """The operation of a launch: done when the machine runs or has ended."""

    def progress() -> OperationFailure | bool:
        if made.is_preempted and "lastStartTimestamp" not in made.row:
            failed = OperationFailure(code="UNSUPPORTED_OPERATION", message="Instance was preempted during creation.")
            _note(state, group, member, failed, state.now())
            return failed
        return made.status not in ("PROVISIONING", "STAGING")

    state.operations.start(made.key.scope, "insert", made.key.path, made.uid, progress=progress, user=GROUPS)


def _refuse(
    state: GoogleState, group: ManagedGroup, member: Member, failure: OperationFailure, now: datetime
) -> None:
    """The operation of a launch that fails after a delay; the error is then in the group's errors, too."""
    refused_at = now + state.time_scale.shorten(_REFUSAL_TAKES)

    def progress() -> OperationFailure | bool:
        if state.now() < refused_at:
            return False
        _note(state, group, member, failure, state.now())
        return failure

    scope = f"zones/{member.zone}"
    path = f"projects/{PROJECT}/{scope}/instances/{member.name}"
    state.operations.start(scope, "insert", path, state.store.number(), progress=progress, user=GROUPS)


def _launch(  # noqa: PLR0913
    state: GoogleState, group: ManagedGroup, member: Member, zone: str, template: Row, machine_type: str
) -> Machine | OperationFailure:
    properties: Row = {**template["properties"], "machineType": machine_type}
    metadata: Row = properties.get("metadata", {})
    own = [
        {"key": "instance-template", "value": path_of(template["selfLink"])},
        {"key": "created-by", "value": instances.created_by(group.ident)},
    ]
    items = [item for item in metadata.get("items", ()) if item["key"] not in ("instance-template", "created-by")]
    properties["metadata"] = {"items": [*items, *own]}
    try:
        return instances.launch(state, zone, member.name, properties, group.ident)
    except ApiError as error:
        return OperationFailure(code=error.reason.upper(), message=error.message, status=int(error.status))


def _machine_types(row: Row, properties: Row) -> list[str]:
    policy: Row = row.get("instanceFlexibilityPolicy", {})
    selections: dict[str, Any] = policy.get("instanceSelections", {})
    found: list[str] = []
    for _, selection in sorted(selections.items(), key=lambda item: int(item[1].get("rank", 0))):
        found += selection.get("machineTypes", ())
    return found or [last(properties["machineType"])]


def _note(state: GoogleState, group: ManagedGroup, member: Member, failure: OperationFailure, now: datetime) -> None:
    error = {"code": failure.code, "message": failure.message}
    member.errors = [failure.error]
    link = state.store.url(f"projects/{PROJECT}/zones/{member.zone}/instances/{member.name}")
    group.errors.append(
        {
            "error": error,
            "instanceActionDetails": {
                "instance": link,
                "action": "CREATING_WITHOUT_RETRIES" if member.once else "CREATING",
                "version": {k: v for k, v in member.version.items() if k in ("instanceTemplate", "name")},
            },
            "timestamp": stamp(now),
        }
    )
    del group.errors[:-_ERRORS_KEPT]


# Resources as the API returns them.


def shown(state: GoogleState, group: ManagedGroup) -> Row:
    """The group's resource with its present status."""
    row = state.store.get(group.key)
    actions: dict[str, int] = dict.fromkeys(ACTIONS, 0)
    for member in group.members:
        name = "creatingWithoutRetries" if member.once and member.action == "CREATING" else member.action.lower()
        actions[name] += 1
    reached = all(is_current(row, member) for member in group.members)
    found = versions(row)
    return {
        **row,
        "versions": [{**version, "targetSize": {"calculated": _size(group, version)}} for version in found]
        if "targetSize" not in found[0]
        else found,
        "instanceTemplate": found[0]["instanceTemplate"] if len(found) == 1 else "",
        "currentActions": actions,
        "status": {
            "isStable": is_stable(group) and len(group.members) == int(row["targetSize"]),
            "versionTarget": {"isReached": reached},
            "allInstancesConfig": {"effective": True},
            "stateful": {"hasStatefulConfig": False},
        },
    }


def _size(group: ManagedGroup, version: Row) -> int:
    wanted = path_of(version["instanceTemplate"])
    return sum(path_of(member.version["instanceTemplate"]) == wanted for member in group.members)


def shown_member(state: GoogleState, member: Member) -> Row:
    """The member in listManagedInstances; one that is not created yet has a link and no status."""
    path = f"projects/{PROJECT}/zones/{member.zone}/instances/{member.name}"
    machine = _machine(state, member)
    found: Row = {
        "instance": state.store.url(path),
        "name": member.name,
        "currentAction": "CREATING_WITHOUT_RETRIES" if member.once and member.action == "CREATING" else member.action,
        "version": {k: v for k, v in member.version.items() if k in ("instanceTemplate", "name")},
        "targetStatus": "RUNNING",
    }
    if machine is not None:
        found |= {"instanceStatus": machine.status, "id": machine.uid}
    if member.errors:
        found["lastAttempt"] = {"errors": {"errors": member.errors}}
    return found
