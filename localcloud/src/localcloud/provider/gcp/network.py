"""Networks, subnetworks, routers with their NAT, and firewall rules of Compute Engine."""

from __future__ import annotations

import ipaddress
import threading
from typing import Any

from localcloud.documents import inner
from localcloud.provider.checks import between, matches, values_at
from localcloud.provider.errors import Failure
from localcloud.provider.gcp.rest_resource import NAME_RULE, NAMING, RestResource, error_context, name_of
from localcloud.provider.resource import Change, Resource, Rule
from localcloud.provider.session import Cloud
from localcloud.provider.wire import UNKNOWN, Properties

_routers = threading.Lock()
"""A NAT is a field of its router: reading and writing it back must not cross another one."""


def _cidr(pattern: str) -> Rule:
    """Texts at `pattern` must be networks without host bits."""

    def rule(given: Properties) -> list[Failure]:
        failures: list[Failure] = []
        for path, value in values_at(given, pattern):
            if not isinstance(value, str) or value == UNKNOWN:
                continue
            try:
                ipaddress.ip_network(value)
            except ValueError:
                failures.append(Failure(path=path, reason=f"{value!r} is not a network such as 10.0.0.0/16"))
        return failures

    return rule


class Network(RestResource):
    token = "gcp:compute/network:Network"
    api = ("compute.v1", "Network")
    place = "global/networks"
    force_new = frozenset({"autoCreateSubnetworks", "description", "name"})
    mutable = frozenset({"mtu", "routingMode"})
    local = frozenset({"deleteDefaultRoutesOnCreate"})
    renames = {"routingMode": "routingConfig"}
    computed = {"selfLink": "selfLink", "gatewayIpv4": "gatewayIPv4", "numericId": "id", "networkId": "id"}
    enums = {"routingMode": frozenset({"GLOBAL", "REGIONAL"})}
    rules = (NAME_RULE, between("mtu", 1300, 8896))

    def to_wire(self, cloud: Cloud, inputs: Properties) -> Properties:
        mode = inputs.get("routingMode")
        others = {k: v for k, v in inputs.items() if k != "routingMode"}
        # without it the API makes a legacy network
        others.setdefault("autoCreateSubnetworks", True)
        return {**others, **({"routingMode": {"routingMode": mode}} if mode else {})}

    def from_wire(self, raw: Properties) -> Properties:
        return {**raw, "routingConfig": inner(raw, "routingConfig").get("routingMode")}


class Subnetwork(RestResource):
    token = "gcp:compute/subnetwork:Subnetwork"
    api = ("compute.v1", "Subnetwork")
    place = "regions/{region}/subnetworks"
    force_new = frozenset({"description", "name", "network", "purpose", "role"})
    mutable = frozenset({"ipCidrRange", "logConfig", "privateIpGoogleAccess", "secondaryIpRanges", "stackType"})
    computed = {
        "selfLink": "selfLink",
        "gatewayAddress": "gatewayAddress",
        "fingerprint": "fingerprint",
        "creationTimestamp": "creationTimestamp",
        "subnetworkId": "id",
    }
    volatile = frozenset({"fingerprint"})
    fingerprinted = True
    enums = {"stackType": frozenset({"IPV4_ONLY", "IPV4_IPV6", "IPV6_ONLY"})}
    rules = (NAME_RULE, _cidr("ipCidrRange"), _cidr("secondaryIpRanges[*].ipCidrRange"))

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        compute = self.client(cloud)
        if change.touches("ipCidrRange"):
            with error_context(f"Error updating Subnetwork {ident!r}"):
                body = {"ipCidrRange": change.new["ipCidrRange"]}
                self.finish(cloud, compute.call("POST", f"{ident}/expandIpCidrRange", body))
        if change.touches("privateIpGoogleAccess"):
            with error_context(f"Error updating Subnetwork {ident!r}"):
                body = {"privateIpGoogleAccess": bool(change.new.get("privateIpGoogleAccess"))}
                self.finish(cloud, compute.call("POST", f"{ident}/setPrivateIpGoogleAccess", body))
        self.patch(cloud, ident, change, change.keys - {"ipCidrRange", "privateIpGoogleAccess"})


class Router(RestResource):
    token = "gcp:compute/router:Router"
    api = ("compute.v1", "Router")
    place = "regions/{region}/routers"
    force_new = frozenset({"name", "network"})
    mutable = frozenset({"description"})
    computed = {"selfLink": "selfLink", "creationTimestamp": "creationTimestamp"}


_NAT_FIELDS = frozenset(
    {
        "icmpIdleTimeoutSec", "logConfig", "maxPortsPerVm", "minPortsPerVm", "natIpAllocateOption", "natIps",
        "sourceSubnetworkIpRangesToNat", "tcpEstablishedIdleTimeoutSec", "tcpTransitoryIdleTimeoutSec",
        "udpIdleTimeoutSec",
    }
)  # fmt: skip


class RouterNat(Resource):
    """One entry of its router's list of NATs."""

    token = "gcp:compute/routerNat:RouterNat"
    naming = NAMING
    force_new = frozenset({"name", "project", "region", "router"})
    mutable = _NAT_FIELDS
    enums = {
        "natIpAllocateOption": frozenset({"AUTO_ONLY", "MANUAL_ONLY"}),
        "sourceSubnetworkIpRangesToNat": frozenset(
            {"ALL_SUBNETWORKS_ALL_IP_RANGES", "ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES", "LIST_OF_SUBNETWORKS"}
        ),
        "logConfig.filter": frozenset({"ALL", "ERRORS_ONLY", "TRANSLATIONS_ONLY"}),
    }
    rules = (
        matches("name", r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", "a Compute Engine name (1 to 63 of a-z 0-9 -)"),
        lambda given: _addresses_fit(given),
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        helper = Router()
        project = inputs.get("project") or cloud.project
        region, router = helper.region(cloud, inputs), name_of(inputs["router"])
        ident = f"{project}/{region}/{router}/{inputs['name']}"
        with error_context("Error creating RouterNat"):
            self._write(cloud, ident, {"name": inputs["name"], **_picked(inputs)})
        return ident

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        project, region, router, name = ident.split("/")
        found = Router().client(cloud).find(_path(ident))
        nat = next((n for n in (found or {}).get("nats", []) if n["name"] == name), None)
        if nat is None:
            return None
        kept = {k: nat[k] for k in _NAT_FIELDS & state.keys() & nat.keys()}
        return {**kept, "name": name, "project": project, "region": region, "router": state.get("router", router)}

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        with error_context(f"Error updating RouterNat {ident!r}"):
            self._write(cloud, ident, {"name": change.new["name"], **_picked(change.new)})

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        if Router().client(cloud).find(_path(ident)) is not None:
            with error_context(f"Error deleting RouterNat {ident!r}"):
                self._write(cloud, ident, None)

    def _write(self, cloud: Cloud, ident: str, nat: dict[str, Any] | None) -> None:
        router, name = Router(), ident.rsplit("/", 1)[-1]
        with _routers:
            found = router.client(cloud).call("GET", _path(ident))
            nats = [n for n in found.get("nats", []) if n["name"] != name]
            body = {"nats": [*nats, nat] if nat is not None else nats}
            router.finish(cloud, router.client(cloud).call("PATCH", _path(ident), body))


def _picked(inputs: Properties) -> Properties:
    return {k: v for k, v in inputs.items() if k in _NAT_FIELDS}


def _path(ident: str) -> str:
    project, region, router, _ = ident.split("/")
    return f"projects/{project}/regions/{region}/routers/{router}"


def _addresses_fit(given: Properties) -> list[Failure]:
    manual = given.get("natIpAllocateOption") == "MANUAL_ONLY"
    if manual and "natIps" not in given:
        return [Failure(path="natIps", reason="'natIps' is required when natIpAllocateOption is MANUAL_ONLY")]
    if not manual and "natIps" in given:
        return [Failure(path="natIps", reason="'natIps' needs natIpAllocateOption MANUAL_ONLY")]
    return []


def _sides_fit(given: Properties) -> list[Failure]:
    failures: list[Failure] = []
    allows, denies = "allows" in given, "denies" in given
    if allows == denies:
        reason = "one of 'allows', 'denies' is required" if not allows else "'denies' conflicts with 'allows'"
        failures.append(Failure(path="denies" if allows else "allows", reason=reason))
    accounts = {"sourceServiceAccounts", "targetServiceAccounts"} & given.keys()
    tags = {"sourceTags", "targetTags"} & given.keys()
    if accounts and tags:
        one, other = sorted(tags)[0], sorted(accounts)[0]
        failures.append(Failure(path=one, reason=f"{one!r} conflicts with {other!r}; give one of them"))
    sources = {"sourceRanges", "sourceServiceAccounts", "sourceTags"} & given.keys()
    if given.get("direction", "INGRESS") == "INGRESS" and not sources:
        reason = "one of 'sourceRanges', 'sourceServiceAccounts', 'sourceTags' is required for INGRESS"
        failures.append(Failure(path="sourceRanges", reason=reason))
    return failures


class Firewall(RestResource):
    token = "gcp:compute/firewall:Firewall"
    api = ("compute.v1", "Firewall")
    place = "global/firewalls"
    force_new = frozenset({"direction", "name", "network"})
    mutable = frozenset(
        {
            "allows", "denies", "description", "destinationRanges", "disabled", "logConfig", "priority",
            "sourceRanges", "sourceServiceAccounts", "sourceTags", "targetServiceAccounts", "targetTags",
        }
    )  # fmt: skip
    renames = {
        "allows": "allowed",
        "allows.protocol": "IPProtocol",
        "denies": "denied",
        "denies.protocol": "IPProtocol",
    }
    computed = {"selfLink": "selfLink", "creationTimestamp": "creationTimestamp"}
    sent_always = frozenset({"name"})
    enums = {"direction": frozenset({"INGRESS", "EGRESS"})}
    rules = (
        NAME_RULE,
        between("priority", 0, 65535),
        _cidr("sourceRanges[*]"),
        _cidr("destinationRanges[*]"),
        matches("allows[*].ports[*]", r"\d{1,5}(?:-\d{1,5})?", "a port or a range such as 8000-8002"),
        _sides_fit,
    )
