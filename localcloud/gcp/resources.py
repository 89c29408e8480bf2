"""Resources that have no life of their own: made, shown, changed, labelled, deleted."""

import ipaddress
from typing import Any, Final

from localcloud.gcp.calls import Call, aggregated, page, patched
from localcloud.gcp.errors import ApiError, in_use, invalid, not_found, required, stale
from localcloud.gcp.instances import reserved_row
from localcloud.gcp.places import PROJECT, REGION, ZONES
from localcloud.gcp.store import Key, Row, fingerprint, key_of, last, path_of
from localcloud.gcp.world import World

_USERS: Final = {
    "networks": ("subnetworks", "firewalls", "routers", "instances", "instanceTemplates"),
    "subnetworks": ("instances", "instanceTemplates", "forwardingRules"),
    "instanceTemplates": ("instanceGroupManagers",),
    "healthChecks": ("instanceGroupManagers", "backendServices"),
    "backendServices": ("forwardingRules",),
    "instanceGroups": ("backendServices",),
    "disks": ("instances",),
}
"""Who may name a resource, and so keeps it from being deleted."""
_REFERENCES: Final = {
    "subnetworks": ("network",),
    "firewalls": ("network",),
    "routers": ("network",),
    "forwardingRules": ("network", "subnetwork", "backendService"),
}
KEPT_LINKS: Final = ("network", "subnetwork", "backendService", "healthChecks")
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
"""As method ids name them."""


def insert(world: World, call: Call) -> Row:
    """A new one, when what it names is there."""
    body = dict(call.body)
    if not body.get("name"):
        raise required("resource.name")
    key = Key(call.scope, call.collection, str(body["name"]))
    for name in _REFERENCES.get(call.collection, ()):
        if name in body:
            body[name] = _existing(world, str(body[name]))
    _FILL.get(call.collection, lambda _w, _k, _b: None)(world, key, body)
    row = world.store.add(key, body, world.now())
    if call.collection in ("disks", "addresses", "forwardingRules"):
        row.setdefault("labels", {})
        row["labelFingerprint"] = fingerprint(row["labels"])
    row["fingerprint"] = fingerprint(body)
    return _operation(world, call, key, "insert", row)


def _existing(world: World, link: str) -> str:
    key = key_of(link)
    if key is None or world.store.find(key) is None:
        raise not_found(path_of(link))
    return world.store.url(key.path)


def _network(world: World, key: Key, body: Row) -> None:
    if "autoCreateSubnetworks" not in body:
        body["autoCreateSubnetworks"] = True
    body.setdefault("routingConfig", {"routingMode": "REGIONAL"})
    body.setdefault("mtu", 1460)


def _subnetwork(world: World, key: Key, body: Row) -> None:
    for name in ("network", "ipCidrRange"):
        if name not in body:
            raise required(f"resource.{name}")
    try:
        wanted = ipaddress.ip_network(body["ipCidrRange"])
    except ValueError as error:
        raise invalid("resource.ipCidrRange", body["ipCidrRange"], f"{error}.") from error
    inside = ipaddress.ip_network(world.places.google_cidr)
    if not isinstance(wanted, ipaddress.IPv4Network) or not wanted.subnet_of(ipaddress.IPv4Network(str(inside))):
        raise invalid(
            "resource.ipCidrRange", wanted, f"The embedded cloud has only loopback: choose one inside {inside}."
        )
    for other, row in world.store.all("subnetworks"):
        if row["network"] == body["network"] and wanted.overlaps(ipaddress.IPv4Network(row["ipCidrRange"])):
            raise ApiError(
                400,
                "invalid",
                f"Invalid IPCidrRange: {wanted} conflicts with existing subnetwork '{other.name}'"
                f" in region '{REGION}'.",
            )
    body["gatewayAddress"] = str(wanted[1])
    body.setdefault("privateIpGoogleAccess", False)
    body.setdefault("stackType", "IPV4_ONLY")
    body.setdefault("purpose", "PRIVATE")


def _firewall(world: World, key: Key, body: Row) -> None:
    if bool(body.get("allowed")) == bool(body.get("denied")):
        raise invalid("resource", key.name, "Exactly one of allowed and denied must be specified.")
    if body.get("targetTags") and body.get("targetServiceAccounts"):
        raise invalid("resource", key.name, "targetTags cannot be used together with targetServiceAccounts.")
    body.setdefault("network", world.store.url(f"projects/{PROJECT}/global/networks/default"))
    body.setdefault("direction", "INGRESS")
    body.setdefault("priority", 1000)
    body.setdefault("disabled", False)
    body.setdefault("logConfig", {"enable": False})


def _template(world: World, key: Key, body: Row) -> None:
    properties: Row = body.get("properties", {})
    if not properties:
        raise required("resource.properties")
    check_properties(world, properties, "resource.properties")
    if "/" in properties["machineType"]:
        raise invalid("resource.properties.machineType", properties["machineType"], "Must be a name, not a path.")


def check_properties(world: World, properties: Row, where: str) -> None:
    """What an instance must and must not say. Raises ApiError with Google's words."""
    for name in ("machineType", "disks", "networkInterfaces"):
        if not properties.get(name):
            raise required(f"{where}.{name}")
    boot = [disk for disk in properties["disks"] if disk.get("boot")]
    if len(boot) != 1:
        raise invalid(f"{where}.disks", len(boot), "Exactly one boot disk must be specified.")
    for index, disk in enumerate(properties["disks"]):
        scratch = disk.get("type") == "SCRATCH"
        if scratch and not disk.get("autoDelete"):
            raise invalid(f"{where}.disks[{index}].autoDelete", False, "Scratch disks must be auto-deleted.")
    for index, interface in enumerate(properties["networkInterfaces"]):
        for name in ("network", "subnetwork"):
            if interface.get(name):
                interface[name] = _existing(world, str(interface[name]))
        if not interface.get("network") and not interface.get("subnetwork"):
            raise required(f"{where}.networkInterfaces[{index}].network")
    _check_scheduling(properties, where)
    _check_metadata(properties.get("metadata", {}), where)


def _check_scheduling(properties: Row, where: str) -> None:
    scheduling: Row = properties.get("scheduling", {})
    model = scheduling.get("provisioningModel", "STANDARD")
    spot = model == "SPOT" or scheduling.get("preemptible")
    gpu = last(properties["machineType"]).startswith(("a2-", "a3-", "a4-", "g2-", "g4-"))
    field = f"{where}.scheduling"
    if spot and scheduling.get("automaticRestart"):
        raise invalid(
            f"{field}.automaticRestart",
            "true",
            "Scheduling must have automaticRestart be false when it is preemptible.",
        )
    if (gpu or spot) and scheduling.get("onHostMaintenance", "MIGRATE" if not spot else "TERMINATE") == "MIGRATE":
        raise invalid(
            f"{field}.onHostMaintenance",
            "MIGRATE",
            "Instances with guest accelerators do not support live migration.",
        )
    limited = scheduling.get("maxRunDuration") or scheduling.get("terminationTime")
    action = scheduling.get("instanceTerminationAction")
    if model == "STANDARD" and not spot and action and not limited:
        why = (
            "You cannot specify a termination action for a VM instance that has the standard provisioning model"
            " (default). To use instance termination action, the VM instance must use the Spot provisioning model."
        )
        raise invalid(f"{field}.instanceTerminationAction", action, why)
    _check_affinity(properties, where, spot=bool(spot))


def _check_affinity(properties: Row, where: str, *, spot: bool) -> None:
    affinity: Row = properties.get("reservationAffinity", {})
    specific = affinity.get("consumeReservationType") == "SPECIFIC_RESERVATION"
    if specific and not (affinity.get("key") and affinity.get("values")):
        raise invalid(f"{where}.reservationAffinity", "SPECIFIC_RESERVATION", "It needs a key and values.")
    if spot and specific:
        raise invalid(f"{where}.reservationAffinity", "SPECIFIC_RESERVATION", "Spot VMs cannot consume reservations.")


def _check_metadata(metadata: Row, where: str) -> None:
    seen: set[str] = set()
    total = 0
    for item in metadata.get("items", ()):
        value = str(item.get("value", ""))
        if item.get("key") in seen:
            raise invalid(f"{where}.metadata", item.get("key"), f"Metadata has duplicate keys: {item.get('key')}")
        seen.add(str(item.get("key")))
        total += len(value.encode())
        if len(value.encode()) > 256 * 1024:
            raise invalid(f"{where}.metadata.items", item.get("key"), "The value is longer than 262144 bytes.")
    if total > 512 * 1024:
        raise invalid(f"{where}.metadata", f"{total} bytes", "The total size is more than 524288 bytes.")


def _reservation(world: World, key: Key, body: Row) -> None:
    specific: Row = body.get("specificReservation", {})
    properties: Row = specific.get("instanceProperties", {})
    if not specific:
        raise required("resource.specificReservation")
    if not specific.get("count") or int(specific["count"]) < 1:
        raise invalid("resource.specificReservation.count", specific.get("count"), "Must be at least 1.")
    if not properties.get("machineType"):
        raise required("resource.specificReservation.instanceProperties.machineType")
    from localcloud.gcp.catalogue import is_machine_type

    zone = key.scope.rpartition("/")[2]
    if not is_machine_type(world, zone, last(properties["machineType"])):
        raise not_found(f"projects/{PROJECT}/zones/{zone}/machineTypes/{last(properties['machineType'])}")
    body.setdefault("specificReservationRequired", False)


def _disk(world: World, key: Key, body: Row) -> None:
    zone = key.scope.rpartition("/")[2]
    kind = last(body.get("type", "pd-standard"))
    body["type"] = world.store.url(f"projects/{PROJECT}/zones/{zone}/diskTypes/{kind}")
    body.setdefault("sizeGb", "500" if kind == "pd-standard" else "100")
    body["sizeGb"] = str(body["sizeGb"])
    body["status"] = "READY"
    body["physicalBlockSizeBytes"] = "4096"


def _health_check(world: World, key: Key, body: Row) -> None:
    if not body.get("type"):
        raise required("resource.type")
    for name, value in (
        ("checkIntervalSec", 5),
        ("timeoutSec", 5),
        ("healthyThreshold", 2),
        ("unhealthyThreshold", 2),
    ):
        body.setdefault(name, value)
    if int(body["timeoutSec"]) > int(body["checkIntervalSec"]):
        raise invalid("resource.timeoutSec", body["timeoutSec"], "Must not be greater than checkIntervalSec.")
    body.setdefault("logConfig", {"enable": False})


def _backend(world: World, key: Key, body: Row) -> None:
    for index, backend in enumerate(body.get("backends", ())):
        backend["group"] = _existing(world, str(backend.get("group", "")))
        if not backend.get("group"):
            raise required(f"resource.backends[{index}].group")
    body["healthChecks"] = [_existing(world, str(link)) for link in body.get("healthChecks", ())]
    body.setdefault("protocol", "HTTP")
    body.setdefault("loadBalancingScheme", "EXTERNAL")
    body.setdefault("sessionAffinity", "NONE")
    body.setdefault("timeoutSec", 30)


def _rule(world: World, key: Key, body: Row) -> None:
    if body.get("subnetwork") and not body.get("IPAddress"):
        subnetwork = key_of(body["subnetwork"])
        if subnetwork is not None:
            body["IPAddress"] = world.give_address(world.store.get(subnetwork))
    body.setdefault("networkTier", "PREMIUM")


def _address(world: World, key: Key, body: Row) -> None:
    if body.get("subnetwork") and not body.get("address"):
        body["address"] = world.give_address(world.store.get(key_of(_existing(world, body["subnetwork"])) or key))
    body.setdefault("address", "203.0.113.10")
    body["status"] = "RESERVED"


def _instance_group(world: World, key: Key, body: Row) -> None:
    body["size"] = 0
    body.setdefault("namedPorts", [])
    body["members"] = []


_FILL: Final[dict[str, Any]] = {
    "networks": _network,
    "subnetworks": _subnetwork,
    "firewalls": _firewall,
    "instanceTemplates": _template,
    "reservations": _reservation,
    "disks": _disk,
    "healthChecks": _health_check,
    "backendServices": _backend,
    "forwardingRules": _rule,
    "addresses": _address,
    "instanceGroups": _instance_group,
}


def _key(call: Call) -> Key:
    parts = call.path.split("/")
    return Key(call.scope, call.collection, parts[4] if parts[2] == "global" else parts[5])


def get(world: World, call: Call) -> Row:
    key = _key(call)
    return _shown(world, key, world.store.get(key))


def _shown(world: World, key: Key, row: Row) -> Row:
    if key.collection == "reservations":
        return reserved_row(world, key, row)
    if key.collection == "networks":
        links = [r["selfLink"] for _, r in world.store.all("subnetworks") if r["network"] == row["selfLink"]]
        return {**row, "subnetworks": links} if links else row
    if key.collection == "instanceGroups":
        shown = {k: v for k, v in row.items() if k != "members"}
        group = world.groups.get((key.scope, key.name))
        return {**shown, "size": len(group.members) if group else len(row.get("members", ()))}
    return row


def list_all(world: World, call: Call) -> Row:
    found = [_shown(world, key, row) for key, row in world.store.all(call.collection, call.scope)]
    return page(call, found, f"{call.collection.removesuffix('s')}List")


def list_everywhere(world: World, call: Call) -> Row:
    collection = call.path.rpartition("/")[2]
    scopes = ["global", f"regions/{REGION}", *(f"zones/{zone}" for zone in ZONES)]
    rows = {scope: [_shown(world, key, row) for key, row in world.store.all(collection, scope)] for scope in scopes}
    return aggregated(call, rows, f"{collection.removesuffix('s')}AggregatedList", collection)


def change(world: World, call: Call) -> Row:
    """PATCH merges, PUT replaces what is given."""
    key = _key(call)
    row = world.store.get(key)
    body = {k: v for k, v in call.body.items() if k not in ("name", "fingerprint")}
    if call.collection in ("networks", "subnetworks", "reservations") and "network" in body:
        body.pop("network")
    if call.verb == "patch":
        row.update(patched(row, body))
    else:
        row.update(body)
    row["fingerprint"] = fingerprint(row)
    return _operation(world, call, key, call.verb, row)


def delete(world: World, call: Call) -> Row:
    """Raises ApiError while another resource names it."""
    key = _key(call)
    row = world.store.get(key)
    for other, _ in world.store.users(row["selfLink"], _USERS.get(key.collection, ())):
        raise in_use(key.path, other.path)
    if key.collection == "instanceGroups" and (key.scope, key.name) in world.groups:
        raise in_use(key.path, Key(key.scope, "instanceGroupManagers", key.name).path)
    world.store.remove(key)
    return _operation(world, call, key, "delete", row)


def set_labels(world: World, call: Call) -> Row:
    """Replaces all labels, when the fingerprint is the one of now."""
    key = _key(call)
    row = world.store.get(key)
    relabel(row, call.body)
    return _operation(world, call, key, "setLabels", row)


def relabel(row: Row, body: Row) -> None:
    """Raises ApiError for a stale fingerprint or a label that Google does not take."""
    if body.get("labelFingerprint") != row.get("labelFingerprint"):
        raise stale()
    labels = body.get("labels", {})
    check_labels(labels)
    row["labels"] = labels
    row["labelFingerprint"] = fingerprint([labels, row["labelFingerprint"]])


def check_labels(labels: Row) -> None:
    """Label keys and values are lower case, digits, `_` and `-`, at most 63 long, at most 64 of them."""
    if len(labels) > 64:
        raise invalid("resource.labels", len(labels), "At most 64 labels.")
    for key, value in labels.items():
        for text, empty in ((key, False), (str(value), True)):
            fine = all(c.islower() or c.isdigit() or c in "_-" for c in text) and len(text) <= 63
            if not fine or (not text and not empty) or (text is key and not key[:1].islower()):
                raise invalid(
                    "resource.labels",
                    text,
                    "Label keys and values take lower-case letters, digits, _ and -, at most 63.",
                )


def _operation(world: World, call: Call, key: Key, what: str, row: Row) -> Row:
    kind = what if key.collection == "instances" else f"compute.{key.collection}.{what}"
    return world.operations.start(call.scope, kind, key.path, str(row["id"]))


def _members(world: World, call: Call) -> Row:
    key = _key(call)
    row = world.store.get(key)
    links = [_existing(world, str(one.get("instance", ""))) for one in call.body.get("instances", ())]
    if call.verb == "addInstances":
        row["members"] = [*row["members"], *(link for link in links if link not in row["members"])]
    else:
        row["members"] = [link for link in row["members"] if link not in links]
    return _operation(world, call, key, call.verb, row)


def _list_members(world: World, call: Call) -> Row:
    key = _key(call)
    row = world.store.get(key)
    group = world.groups.get((key.scope, key.name))
    links: list[str] = list(row.get("members", ()))
    if group is not None:
        links = [world.machines[m.name].row["selfLink"] for m in group.members if m.name in world.machines]
    rows = [{"instance": link, "status": world.store.get(key_of(link) or key).get("status")} for link in links]
    return page(call, rows, "instanceGroupsListInstances")


def handlers() -> dict[str, Any]:
    """By method id."""
    found: dict[str, Any] = {}
    verbs = {"insert": insert, "get": get, "list": list_all, "aggregatedList": list_everywhere, "delete": delete}
    verbs |= {"patch": change, "update": change, "setLabels": set_labels}
    for collection in COLLECTIONS:
        found |= {f"{collection}.{verb}": handler for verb, handler in verbs.items()}
    found["instanceGroupManagers.aggregatedList"] = list_everywhere
    found |= {f"regionInstanceGroups.{verb}": verbs[verb] for verb in ("get", "list")}
    found |= {"instanceGroups.addInstances": _members, "instanceGroups.removeInstances": _members}
    found |= {"instanceGroups.listInstances": _list_members, "regionInstanceGroups.listInstances": _list_members}
    return found
