"""Checks of each kind of resource beyond its schema, and its defaults."""

import ipaddress
from collections.abc import Callable, Mapping
from typing import Final

from localcloud.gcp.catalogue import is_machine_type
from localcloud.gcp.errors import ApiError, invalid, not_found, required, stale
from localcloud.gcp.locations import PROJECT, REGION
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Key, Row, fingerprint, key_of, last, path_of


def existing(state: GoogleState, link: str) -> str:
    """The full link of a resource. Raises ApiError when it does not exist."""
    key = key_of(link)
    if key is None or state.store.find(key) is None:
        raise not_found(path_of(link))
    return state.store.url(key.path)


def _network(state: GoogleState, key: Key, body: Row) -> None:
    if "autoCreateSubnetworks" not in body:
        body["autoCreateSubnetworks"] = True
    body.setdefault("routingConfig", {"routingMode": "REGIONAL"})
    body.setdefault("mtu", 1460)


def _subnetwork(state: GoogleState, key: Key, body: Row) -> None:
    for name in ("network", "ipCidrRange"):
        if name not in body:
            raise required(f"resource.{name}")
    try:
        wanted = ipaddress.ip_network(body["ipCidrRange"])
    except ValueError as error:
        raise invalid("resource.ipCidrRange", body["ipCidrRange"], f"{error}.") from error
    inside = ipaddress.ip_network(state.places.google_cidr)
    if not isinstance(wanted, ipaddress.IPv4Network) or not wanted.subnet_of(ipaddress.IPv4Network(str(inside))):
        raise invalid(
            "resource.ipCidrRange", wanted, f"The embedded cloud has only loopback: choose one inside {inside}."
        )
    for other, row in state.store.all("subnetworks"):
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


def _firewall(state: GoogleState, key: Key, body: Row) -> None:
    if bool(body.get("allowed")) == bool(body.get("denied")):
        raise invalid("resource", key.name, "Exactly one of allowed and denied must be specified.")
    if body.get("targetTags") and body.get("targetServiceAccounts"):
        raise invalid("resource", key.name, "targetTags cannot be used together with targetServiceAccounts.")
    body.setdefault("network", state.store.url(f"projects/{PROJECT}/global/networks/default"))
    body.setdefault("direction", "INGRESS")
    body.setdefault("priority", 1000)
    body.setdefault("disabled", False)
    body.setdefault("logConfig", {"enable": False})


def _template(state: GoogleState, key: Key, body: Row) -> None:
    properties: Row = body.get("properties", {})
    if not properties:
        raise required("resource.properties")
    check_properties(state, properties, "resource.properties")
    if "/" in properties["machineType"]:
        raise invalid("resource.properties.machineType", properties["machineType"], "Must be a name, not a path.")


def check_properties(state: GoogleState, properties: Row, where: str) -> None:
    """Check the properties of an instance. Raises ApiError with Google's message."""
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
                interface[name] = existing(state, str(interface[name]))
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
    notice = scheduling.get("preemptionNoticeDuration")
    if notice and model != "SPOT":
        raise invalid(f"{field}.preemptionNoticeDuration", notice, "Only Spot VMs have a preemption notice.")
    if notice and int(notice.get("seconds", 0)) not in NOTICES_S:
        raise invalid(f"{field}.preemptionNoticeDuration", notice, "Must be 0 or 120 seconds.")
    if model == "FLEX_START":
        _check_flex_start(properties, scheduling, where)
    limited = scheduling.get("maxRunDuration") or scheduling.get("terminationTime")
    action = scheduling.get("instanceTerminationAction")
    if model == "STANDARD" and not spot and action and not limited:
        why = (
            "You cannot specify a termination action for a VM instance that has the standard provisioning model"
            " (default). To use instance termination action, the VM instance must use the Spot provisioning model."
        )
        raise invalid(f"{field}.instanceTerminationAction", action, why)
    _check_affinity(properties, where, spot=bool(spot))


NOTICES_S: Final = (0, 120)
"""The only values in Google's documentation of Spot VMs."""
FLEX_START_SHORTEST_S: Final = 30
FLEX_START_LONGEST_S: Final = 7 * 86400
"""How long a flex-start instance may run (Google's documentation of limits on run time and of flex-start VMs)."""


def _check_flex_start(properties: Row, scheduling: Row, where: str) -> None:
    """Flex-start: the run is limited, ends by itself, and uses no reservation."""
    field, why = f"{where}.scheduling", "for the provisioning model FLEX_START"
    limit = scheduling.get("maxRunDuration")
    if not limit:
        raise invalid(f"{field}.maxRunDuration", "", f"A maximum run duration is required {why}.")
    seconds = int(limit.get("seconds", 0))
    if not FLEX_START_SHORTEST_S <= seconds <= FLEX_START_LONGEST_S:
        between = f"between {FLEX_START_SHORTEST_S} and {FLEX_START_LONGEST_S} seconds"
        raise invalid(f"{field}.maxRunDuration", seconds, f"Must be {between} {why}.")
    if not scheduling.get("instanceTerminationAction"):
        raise invalid(f"{field}.instanceTerminationAction", "", f"A termination action is required {why}.")
    for name, value in (("preemptible", False), ("automaticRestart", True)):
        if bool(scheduling.get(name, value)):
            raise invalid(f"{field}.{name}", "true", f"Must be false {why}.")
    affinity: Row = properties.get("reservationAffinity", {})
    if affinity.get("consumeReservationType") != "NO_RESERVATION":
        raise invalid(
            f"{where}.reservationAffinity",
            affinity.get("consumeReservationType", "ANY_RESERVATION"),
            f"Must be NO_RESERVATION {why}.",
        )


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


def _reservation(state: GoogleState, key: Key, body: Row) -> None:
    specific: Row = body.get("specificReservation", {})
    properties: Row = specific.get("instanceProperties", {})
    if not specific:
        raise required("resource.specificReservation")
    if not specific.get("count") or int(specific["count"]) < 1:
        raise invalid("resource.specificReservation.count", specific.get("count"), "Must be at least 1.")
    if not properties.get("machineType"):
        raise required("resource.specificReservation.instanceProperties.machineType")
    zone = key.scope.rpartition("/")[2]
    if not is_machine_type(state, zone, last(properties["machineType"])):
        raise not_found(f"projects/{PROJECT}/zones/{zone}/machineTypes/{last(properties['machineType'])}")
    body.setdefault("specificReservationRequired", False)


def _disk(state: GoogleState, key: Key, body: Row) -> None:
    zone = key.scope.rpartition("/")[2]
    kind = last(body.get("type", "pd-standard"))
    body["type"] = state.store.url(f"projects/{PROJECT}/zones/{zone}/diskTypes/{kind}")
    body.setdefault("sizeGb", "500" if kind == "pd-standard" else "100")
    body["sizeGb"] = str(body["sizeGb"])
    body["status"] = "READY"
    body["physicalBlockSizeBytes"] = "4096"


def _health_check(state: GoogleState, key: Key, body: Row) -> None:
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


def _backend(state: GoogleState, key: Key, body: Row) -> None:
    for index, backend in enumerate(body.get("backends", ())):
        backend["group"] = existing(state, str(backend.get("group", "")))
        if not backend.get("group"):
            raise required(f"resource.backends[{index}].group")
    body["healthChecks"] = [existing(state, str(link)) for link in body.get("healthChecks", ())]
    body.setdefault("protocol", "HTTP")
    body.setdefault("loadBalancingScheme", "EXTERNAL")
    body.setdefault("sessionAffinity", "NONE")
    body.setdefault("timeoutSec", 30)


def _rule(state: GoogleState, key: Key, body: Row) -> None:
    if body.get("subnetwork") and not body.get("IPAddress"):
        subnetwork = key_of(body["subnetwork"])
        if subnetwork is not None:
            body["IPAddress"] = state.give_address(state.store.get(subnetwork))
    body.setdefault("networkTier", "PREMIUM")


def _address(state: GoogleState, key: Key, body: Row) -> None:
    if body.get("subnetwork") and not body.get("address"):
        body["address"] = state.give_address(state.store.get(key_of(existing(state, body["subnetwork"])) or key))
    body.setdefault("address", "203.0.113.10")
    body["status"] = "RESERVED"


def _instance_group(state: GoogleState, key: Key, body: Row) -> None:
    body["size"] = 0
    body.setdefault("namedPorts", [])
    body["members"] = []


FILL: Final[Mapping[str, Callable[[GoogleState, Key, Row], None]]] = {
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
"""By collection: checks a new resource and completes it. Raises ApiError."""


def relabel(row: Row, body: Row) -> None:
    """Raises ApiError for an outdated fingerprint or an invalid label."""
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
