"""The calls of instanceGroupManagers and regionInstanceGroupManagers."""

from typing import Any, Final

from localcloud.documents import items
from localcloud.gcp import groups
from localcloud.gcp.calls import Call, page, patched
from localcloud.gcp.errors import ApiError, in_use, invalid, not_found, required
from localcloud.gcp.groups import ManagedGroup, Member
from localcloud.gcp.locations import ZONES
from localcloud.gcp.operations import OperationFailure
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Key, Row, fingerprint, key_of, last, path_of

COLLECTION: Final = "instanceGroupManagers"
_MAX_INSTANCES: Final = 1000
_PROACTIVE: Final = OperationFailure(
    code="CONDITION_NOT_MET",
    message="CreateInstances cannot be used when UpdatePolicy type is set to PROACTIVE and replacementMethod to"
    " SUBSTITUTE. Set replacementMethod to RECREATE or disable rolling update by setting type to OPPORTUNISTIC.",
    status=412,
    status_message="PRECONDITION FAILED",
)


def insert(state: GoogleState, call: Call) -> Row:
    """Create a group; the loop creates its instances."""
    body = call.body
    key = Key(call.scope, COLLECTION, str(body["name"]))
    _check(state, key, body)
    row = state.store.add(key, _whole(state, key, body), state.now())
    plain = Key(key.scope, "instanceGroups", key.name)
    made = state.store.add(plain, {"network": "", "size": 0, "namedPorts": []}, state.now())
    row["instanceGroup"] = made["selfLink"]
    row["fingerprint"] = fingerprint(body)
    group = ManagedGroup(key=key)
    state.groups[group.ident] = group
    return _operation(state, call, key, "insert")


def _whole(state: GoogleState, key: Key, body: Row) -> Row:
    whole: Row = {
        "baseInstanceName": body["name"],
        "updatePolicy": {},
        "instanceLifecyclePolicy": {},
        **body,
        "targetSize": int(body["targetSize"]),
    }
    _fill(whole, key)
    whole["versions"] = [
        {**version, "instanceTemplate": state.store.url(path_of(version["instanceTemplate"]))}
        for version in groups.versions(body)
    ]
    return whole


def _fill(whole: Row, key: Key) -> None:
    """Google's defaults."""
    regional = key.scope.startswith("regions/")
    spread: Row = whole.get("distributionPolicy", {})
    zones = spread.get("zones") or [{"zone": f"zones/{zone}"} for zone in ZONES[:3]]
    # a regional group replaces instances in all its zones at once
    amount = len(zones) if regional else 1
    whole["updatePolicy"] = {
        "type": "OPPORTUNISTIC",
        "minimalAction": "REPLACE",
        "replacementMethod": "SUBSTITUTE",
        "maxSurge": {"fixed": amount, "calculated": amount},
        "maxUnavailable": {"fixed": amount, "calculated": amount},
        **({"instanceRedistributionType": "PROACTIVE"} if regional else {}),
        **whole["updatePolicy"],
    }
    whole["instanceLifecyclePolicy"] = {
        "defaultActionOnFailure": "REPAIR",
        "forceUpdateOnRepair": "NO",
        "onFailedHealthCheck": "DEFAULT_ACTION",
        **whole["instanceLifecyclePolicy"],
    }
    if regional:
        whole["distributionPolicy"] = {"targetShape": "EVEN", **spread, "zones": zones}


def _check(state: GoogleState, key: Key, body: Row) -> None:
    if not body.get("versions") and not body.get("instanceTemplate"):
        raise required("resource.instanceTemplate")
    for version in groups.versions(body):
        if not version.get("instanceTemplate"):
            raise required("resource.versions[0].instanceTemplate")
        template = key_of(version["instanceTemplate"])
        if template is None or template.collection != "instanceTemplates" or state.store.find(template) is None:
            raise not_found(path_of(version["instanceTemplate"]))
    if int(body.get("targetSize", 0)) < 0:
        raise invalid("resource.targetSize", body["targetSize"], "Must be greater than or equal to 0.")
    zones = [last(zone.get("zone", "")) for zone in body.get("distributionPolicy", {}).get("zones", ())]
    for zone in zones:
        if zone not in ZONES:
            raise invalid("resource.distributionPolicy.zones", zone, f"Zone must be one of {', '.join(ZONES)}.")
    if zones and key.scope.startswith("zones/"):
        raise invalid("resource.distributionPolicy", zones, "Only regional managed instance groups have one.")
    _check_update_policy(key, body)


def _check_update_policy(key: Key, body: Row) -> None:
    policy: Row = body.get("updatePolicy", {})
    surge, unavailable = policy.get("maxSurge", {}), policy.get("maxUnavailable", {})
    if surge.get("fixed") == 0 and unavailable.get("fixed") == 0:
        raise invalid(
            "resource.updatePolicy", "maxSurge=0, maxUnavailable=0", "At least one of them must be greater than 0."
        )
    if policy.get("replacementMethod") == "RECREATE" and surge.get("fixed", 0) != 0:
        raise invalid("resource.updatePolicy.maxSurge", surge["fixed"], "Must be 0 when the method is RECREATE.")
    if key.scope.startswith("regions/"):
        zones = len(body.get("distributionPolicy", {}).get("zones", ())) or 3
        for name, value in (("maxSurge", surge), ("maxUnavailable", unavailable)):
            fixed = value.get("fixed")
            if fixed is not None and 0 < fixed < zones:
                raise invalid(
                    f"resource.updatePolicy.{name}.fixed",
                    fixed,
                    f"Fixed updatePolicy.{name} for regional managed instance group has to be either 0 or at least"
                    " equal to the number of zones.",
                )


def get(state: GoogleState, call: Call) -> Row:
    return groups.shown(state, find(state, call))


def list_all(state: GoogleState, call: Call) -> Row:
    found = [groups.shown(state, g) for g in state.groups.values() if g.key.scope == call.scope]
    return page(call, found, "instanceGroupManagerList")


def find(state: GoogleState, call: Call) -> ManagedGroup:
    """The group of a call. Raises ApiError."""
    key = Key(call.scope, COLLECTION, call.parameters["instanceGroupManager"])
    state.store.get(key)
    return state.groups[key.scope, key.name]


def patch(state: GoogleState, call: Call) -> Row:
    """Apply a patch; under OPPORTUNISTIC, a new template applies to replaced instances only."""
    group = find(state, call)
    row = state.store.get(group.key)
    body = {k: v for k, v in call.body.items() if k not in ("name", "fingerprint")}
    changed = patched(row, body)
    if body.get("versions"):
        changed.pop("instanceTemplate", None)
    elif body.get("instanceTemplate"):
        changed["versions"] = [{"instanceTemplate": body["instanceTemplate"], "name": ""}]
    _check(state, group.key, changed)
    row.clear()
    row.update(changed)
    row["versions"] = [
        {
            **{k: v for k, v in version.items() if k != "targetSize" or "calculated" not in v},
            "instanceTemplate": state.store.url(path_of(version["instanceTemplate"])),
        }
        for version in groups.versions(changed)
    ]
    row["fingerprint"] = fingerprint(body)
    if body.get("targetSize") is not None:
        groups.resize(state, group, int(body["targetSize"]))
    return _operation(state, call, group.key, "patch")


def set_template(state: GoogleState, call: Call) -> Row:
    group = find(state, call)
    call.body["versions"] = [{"instanceTemplate": call.body.get("instanceTemplate", ""), "name": ""}]
    _check(state, group.key, call.body)
    state.store.get(group.key)["versions"] = call.body["versions"]
    return _operation(state, call, group.key, "setInstanceTemplate")


def resize(state: GoogleState, call: Call) -> Row:
    group = find(state, call)
    text = call.query["size"]
    if not text.isdigit():
        raise invalid("size", text, "Must be a whole number of at least 0.")
    groups.resize(state, group, int(text))
    return _operation(state, call, group.key, "resize")


def delete(state: GoogleState, call: Call) -> Row:
    """Delete the group with all its instances."""
    group = find(state, call)
    plain = state.store.get(Key(group.key.scope, "instanceGroups", group.key.name))
    for key, _ in state.store.users(plain["selfLink"], ("backendServices",)):
        raise in_use(group.key.path, key.path)
    group.deleting = True
    for member in group.members:
        groups.end_member(state, group, member)
    return _operation(state, call, group.key, "delete", lambda: group.ident not in state.groups)


def list_managed(state: GoogleState, call: Call) -> Row:
    group = find(state, call)
    return page(call, [groups.shown_member(state, member) for member in group.members], "", "managedInstances")


def list_errors(state: GoogleState, call: Call) -> Row:
    return page(call, list(reversed(find(state, call).errors)), "")


def _chosen(call: Call, group: ManagedGroup) -> list[Member]:
    """The members that the body names. Raises ApiError for unknown names, unless these are to be skipped."""
    asked: list[Any] = call.body.get("instances") or []
    if not asked:
        raise required("resource.instances")
    if len(asked) > _MAX_INSTANCES:
        raise invalid("resource.instances", len(asked), f"At most {_MAX_INSTANCES} instances.")
    known = {(member.zone, member.name): member for member in group.members}
    found: list[Member] = []
    for link in asked:
        key = key_of(str(link))
        member = known.get((key.scope.removeprefix("zones/"), key.name)) if key else None
        if member is not None and member.action != "DELETING":
            found.append(member)
        elif not call.body.get("skipInstancesOnValidationError"):
            raise ApiError(
                400,
                "invalid",
                f"Instance '{path_of(str(link))}' is not a member of the group '{group.key.path}'.",
            )
    return found


def delete_instances(state: GoogleState, call: Call) -> Row:
    """Delete members and reduce the target size."""
    group = find(state, call)
    row = state.store.get(group.key)
    chosen = _chosen(call, group)
    for member in chosen:
        groups.end_member(state, group, member)
    row["targetSize"] = max(0, int(row["targetSize"]) - len(chosen))
    return _operation(state, call, group.key, "deleteInstances")


def recreate_instances(state: GoogleState, call: Call) -> Row:
    """Recreate members from the group's present template; the size stays."""
    group = find(state, call)
    for member in _chosen(call, group):
        groups.replace_member(state, group, member)
    return _operation(state, call, group.key, "recreateInstances")


def apply_updates(state: GoogleState, call: Call) -> Row:
    """Bring members to the group's version, by replacing those that differ."""
    group = find(state, call)
    row = state.store.get(group.key)
    chosen = list(group.members) if call.body.get("allInstances") else _chosen(call, group)
    forced = call.body.get("minimalAction") == "REPLACE"
    for member in chosen:
        if forced or not groups.is_current(row, member):
            groups.replace_member(state, group, member)
    return _operation(state, call, group.key, "applyUpdatesToInstances")


def create_instances(state: GoogleState, call: Call) -> Row:
    """Create members with given names and raise the target size."""
    group = find(state, call)
    row = state.store.get(group.key)
    names = [str(one.get("name", "")) for one in items(call.body, "instances")]
    if not names:
        raise required("resource.instances")
    policy: Row = row.get("updatePolicy", {})
    if policy.get("type") == "PROACTIVE" and policy.get("replacementMethod") == "SUBSTITUTE":
        return _operation(state, call, group.key, "createInstances", lambda: _PROACTIVE)
    for name in names:
        if name in state.machines:
            raise ApiError(409, "alreadyExists", f"The instance '{name}' already exists")
    for name in names:
        groups.add_member(state, group, name)
    row["targetSize"] = int(row["targetSize"]) + len(names)
    return _operation(state, call, group.key, "createInstances")


def abandon_instances(state: GoogleState, call: Call) -> Row:
    """Remove members from the group; their instances keep running."""
    group = find(state, call)
    row = state.store.get(group.key)
    for member in _chosen(call, group):
        group.members.remove(member)
        row["targetSize"] = max(0, int(row["targetSize"]) - 1)
        if member.name in state.machines:
            state.machines[member.name].group = None
    return _operation(state, call, group.key, "abandonInstances")


def _operation(state: GoogleState, call: Call, key: Key, what: str, progress: Any = lambda: True) -> Row:
    row = state.store.get(key)
    kind = f"compute.{COLLECTION}.{what}"
    return state.operations.start(call.scope, kind, key.path, str(row["id"]), progress=progress)


def handlers() -> dict[str, Any]:
    """Handlers by method id, for zonal and regional groups."""
    by_verb = {
        "insert": insert,
        "get": get,
        "list": list_all,
        "patch": patch,
        "setInstanceTemplate": set_template,
        "resize": resize,
        "delete": delete,
        "listManagedInstances": list_managed,
        "listErrors": list_errors,
        "deleteInstances": delete_instances,
        "recreateInstances": recreate_instances,
        "applyUpdatesToInstances": apply_updates,
        "createInstances": create_instances,
        "abandonInstances": abandon_instances,
    }
    return {
        f"{collection}.{verb}": handler
        for collection in ("instanceGroupManagers", "regionInstanceGroupManagers")
        for verb, handler in by_verb.items()
    }
