"""Resources without a lifecycle: created, read, changed, labelled, deleted."""

from collections.abc import Callable
from typing import Any, Final

from localcloud.gcp import groups
from localcloud.gcp.calls import Call, aggregated, page, patched
from localcloud.gcp.errors import in_use, invalid, required
from localcloud.gcp.locations import REGION, ZONES
from localcloud.gcp.reservations import reserved_row
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Key, Row, fingerprint, key_of
from localcloud.gcp.validation import FILL, existing, relabel

_USERS: Final = {
    "networks": ("subnetworks", "firewalls", "routers", "instances", "instanceTemplates"),
    "subnetworks": ("instances", "instanceTemplates", "forwardingRules"),
    "instanceTemplates": ("instanceGroupManagers",),
    "healthChecks": ("instanceGroupManagers", "backendServices"),
    "backendServices": ("forwardingRules",),
    "instanceGroups": ("backendServices",),
    "disks": ("instances",),
}
"""Collections whose resources may refer to others, which then cannot be deleted."""
_REFERENCES: Final = {
    "subnetworks": ("network",),
    "firewalls": ("network",),
    "routers": ("network",),
    "forwardingRules": ("network", "subnetwork", "backendService"),
}
_CHECKED_AGAIN: Final = ("firewalls", "healthChecks", "backendServices")
COLLECTIONS: Final = (
    "networks",
    "subnetworks",
    "routers",
    "firewalls",
    "instanceTemplates",
    "reservations",
    "resourcePolicies",
    "healthChecks",
    "regionHealthChecks",
    "addresses",
    "globalAddresses",
    "forwardingRules",
    "regionBackendServices",
    "disks",
    "instanceGroups",
)
"""Collections, as in method ids."""


def insert(state: GoogleState, call: Call) -> Row:
    """Create a resource; everything that it refers to must exist."""
    body = dict(call.body)
    if not body.get("name"):
        raise required("resource.name")
    key = Key(call.scope, call.collection, str(body["name"]))
    for name in _REFERENCES.get(call.collection, ()):
        if name in body:
            body[name] = existing(state, str(body[name]))
    if fill := FILL.get(call.collection):
        fill(state, key, body)
    row = state.store.add(key, body, state.now())
    if call.collection in ("disks", "addresses", "forwardingRules"):
        row.setdefault("labels", {})
        row["labelFingerprint"] = fingerprint(row["labels"])
    row["fingerprint"] = fingerprint(body)
    return _operation(state, call, key, "insert", row)


def _key(call: Call) -> Key:
    parts = call.path.split("/")
    return Key(call.scope, call.collection, parts[4] if parts[2] == "global" else parts[5])


def get(state: GoogleState, call: Call) -> Row:
    key = _key(call)
    return _shown(state, key, state.store.get(key))


def _shown(state: GoogleState, key: Key, row: Row) -> Row:
    if key.collection == "reservations":
        return reserved_row(state, key, row)
    if key.collection == "instanceGroupManagers":
        return groups.shown(state, state.groups[key.scope, key.name])
    if key.collection == "networks":
        links = [r["selfLink"] for _, r in state.store.all("subnetworks") if r["network"] == row["selfLink"]]
        return {**row, "subnetworks": links} if links else row
    if key.collection == "instanceGroups":
        shown = {k: v for k, v in row.items() if k != "members"}
        group = state.groups.get((key.scope, key.name))
        return {**shown, "size": len(group.members) if group else len(row.get("members", ()))}
    return row


def list_all(state: GoogleState, call: Call) -> Row:
    found = [_shown(state, key, row) for key, row in state.store.all(call.collection, call.scope)]
    return page(call, found, f"{call.collection.removesuffix('s')}List")


def list_everywhere(state: GoogleState, call: Call) -> Row:
    collection = call.path.rpartition("/")[2]
    scopes = ["global", f"regions/{REGION}", *(f"zones/{zone}" for zone in ZONES)]
    rows = {scope: [_shown(state, key, row) for key, row in state.store.all(collection, scope)] for scope in scopes}
    return aggregated(call, rows, f"{collection.removesuffix('s')}AggregatedList", collection)


def change(state: GoogleState, call: Call) -> Row:
    """PATCH merges, PUT replaces the given fields."""
    key = _key(call)
    row = state.store.get(key)
    body = {k: v for k, v in call.body.items() if k not in ("name", "fingerprint")}
    if call.collection in ("networks", "subnetworks", "reservations") and "network" in body:
        body.pop("network")
    changed = patched(row, body) if call.verb == "patch" else {**row, **body}
    if call.collection in _CHECKED_AGAIN:
        FILL[call.collection](state, key, changed)
    row.update(changed)
    row["fingerprint"] = fingerprint(row)
    return _operation(state, call, key, call.verb, row)


def delete(state: GoogleState, call: Call) -> Row:
    """Delete a resource. Raises ApiError while another one refers to it."""
    key = _key(call)
    row = state.store.get(key)
    for other, _ in state.store.users(row["selfLink"], _USERS.get(key.collection, ())):
        raise in_use(key.path, other.path)
    if key.collection == "instanceGroups" and (key.scope, key.name) in state.groups:
        raise in_use(key.path, Key(key.scope, "instanceGroupManagers", key.name).path)
    state.store.remove(key)
    return _operation(state, call, key, "delete", row)


def set_labels(state: GoogleState, call: Call) -> Row:
    """Replace all labels, if the fingerprint is current."""
    key = _key(call)
    row = state.store.get(key)
    relabel(row, call.body)
    return _operation(state, call, key, "setLabels", row)


def _operation(state: GoogleState, call: Call, key: Key, what: str, row: Row) -> Row:
    kind = what if key.collection == "instances" else f"compute.{key.collection}.{what}"
    return state.operations.start(call.scope, kind, key.path, str(row["id"]))


def _resize(state: GoogleState, call: Call) -> Row:
    """Resize: a disk may only grow; a reservation may not shrink below its instances."""
    key = _key(call)
    row = state.store.get(key)
    if key.collection == "disks":
        size = int(call.body.get("sizeGb", 0))
        if size <= int(row.get("sizeGb", 0)):
            raise invalid("sizeGb", size, f"New disk size must be larger than the old one, {row.get('sizeGb')} GB.")
        row["sizeGb"] = str(size)
    else:
        count = int(call.body.get("specificSkuCount", 0))
        if count < 1:
            raise invalid("specificSkuCount", count, "Must be greater than 0.")
        row["specificReservation"] = {**row["specificReservation"], "count": str(count)}
    return _operation(state, call, key, "resize", row)


def _set_field(field: str) -> Callable[[GoogleState, Call], Row]:
    """A call that sets one field."""

    def handler(state: GoogleState, call: Call) -> Row:
        key = _key(call)
        row = state.store.get(key)
        row[field] = call.body.get(field)
        row["fingerprint"] = fingerprint(row)
        return _operation(state, call, key, call.verb, row)

    return handler


def _members(state: GoogleState, call: Call) -> Row:
    key = _key(call)
    row = state.store.get(key)
    links = [existing(state, str(one.get("instance", ""))) for one in call.body.get("instances", ())]
    if call.verb == "addInstances":
        row["members"] = [*row["members"], *(link for link in links if link not in row["members"])]
    else:
        row["members"] = [link for link in row["members"] if link not in links]
    return _operation(state, call, key, call.verb, row)


def _list_members(state: GoogleState, call: Call) -> Row:
    key = _key(call)
    row = state.store.get(key)
    group = state.groups.get((key.scope, key.name))
    links: list[str] = list(row.get("members", ()))
    if group is not None:
        links = [state.machines[m.name].row["selfLink"] for m in group.members if m.name in state.machines]
    rows = [{"instance": link, "status": state.store.get(key_of(link) or key).get("status")} for link in links]
    return page(call, rows, "instanceGroupsListInstances")


def handlers() -> dict[str, Any]:
    """Handlers by method id."""
    found: dict[str, Any] = {}
    verbs = {"insert": insert, "get": get, "list": list_all, "aggregatedList": list_everywhere, "delete": delete}
    verbs |= {"patch": change, "update": change, "setLabels": set_labels}
    for collection in COLLECTIONS:
        found |= {f"{collection}.{verb}": handler for verb, handler in verbs.items()}
    found["instanceGroupManagers.aggregatedList"] = list_everywhere
    found |= {f"regionInstanceGroups.{verb}": verbs[verb] for verb in ("get", "list")}
    found |= {"instanceGroups.addInstances": _members, "instanceGroups.removeInstances": _members}
    found |= {"disks.resize": _resize, "reservations.resize": _resize}
    found["subnetworks.expandIpCidrRange"] = _set_field("ipCidrRange")
    found["subnetworks.setPrivateIpGoogleAccess"] = _set_field("privateIpGoogleAccess")
    found["instanceGroups.setNamedPorts"] = _set_field("namedPorts")
    found |= {"instanceGroups.listInstances": _list_members, "regionInstanceGroups.listInstances": _list_members}
    return found
