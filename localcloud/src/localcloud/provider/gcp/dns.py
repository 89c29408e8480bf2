"""Private zones of Cloud DNS and the names in them."""

from __future__ import annotations

from localcloud.provider.checks import between, matches
from localcloud.provider.errors import Failure
from localcloud.provider.gcp.rest_resource import NAMING, RestResource, error_context, fit_labels, is_same_thing
from localcloud.provider.gcp.session import relative, rest_client
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties

_DOMAIN = r"(?:[a-z0-9_](?:[-a-z0-9]{0,61}[a-z0-9])?\.)+"
_NETWORKS = "https://www.googleapis.com/compute/v1/"
_TYPES = frozenset({"A", "AAAA", "CAA", "CNAME", "MX", "NS", "PTR", "SOA", "SPF", "SRV", "TXT"})


def _visibility_fits(given: Properties) -> list[Failure]:
    private = given.get("visibility") == "private"
    if "privateVisibilityConfig" in given and not private:
        return [Failure(path="privateVisibilityConfig", reason="'privateVisibilityConfig' needs visibility private")]
    return []


class ManagedZone(RestResource):
    token = "gcp:dns/managedZone:ManagedZone"
    api = ("dns.v1", "ManagedZone")
    service = "dns"
    place = "managedZones"
    labelled = True
    naming = NAMING
    force_new = frozenset({"dnsName", "name", "visibility"})
    mutable = frozenset({"description", "privateVisibilityConfig"})
    local = frozenset({"forceDestroy"})
    computed = {"creationTime": "creationTime", "managedZoneId": "id", "nameServers": "nameServers"}
    enums = {"visibility": frozenset({"private", "public"})}
    rules = (
        fit_labels,
        matches("name", r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", "a zone's name (1 to 63 of a-z 0-9 -)"),
        matches("dnsName", _DOMAIN, "a domain that ends with a dot, such as fleet.internal."),
        _visibility_fits,
    )

    def to_wire(self, cloud: Cloud, inputs: Properties) -> Properties:
        config = inputs.get("privateVisibilityConfig")
        if not config:
            return inputs
        networks = [{"networkUrl": f"{_NETWORKS}{relative(n['networkUrl'])}"} for n in config.get("networks", [])]
        return {**inputs, "privateVisibilityConfig": {"networks": networks}}


class RecordSet(Resource):
    token = "gcp:dns/recordSet:RecordSet"
    force_new = frozenset({"managedZone", "name", "project", "type"})
    mutable = frozenset({"rrdatas", "ttl"})
    enums = {"type": _TYPES}
    rules = (
        matches("name", _DOMAIN, "a name that ends with a dot, such as control.fleet.internal."),
        between("ttl", 0, 2147483647),
    )

    @property
    def modelled(self) -> frozenset[str]:
        return self.force_new | self.mutable

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        project, zone = inputs.get("project") or cloud.project, str(inputs["managedZone"]).rsplit("/", 1)[-1]
        parent = f"projects/{project}/managedZones/{zone}/rrsets"
        body = {k: inputs[k] for k in ("name", "type", "ttl", "rrdatas") if k in inputs}
        with error_context("Error creating DNS RecordSet"):
            rest_client(cloud, "dns").call("POST", parent, body)
        return f"{parent}/{inputs['name']}/{inputs['type']}"

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        found = rest_client(cloud, "dns").find(ident)
        if found is None:
            return None
        zone = ident.split("/")[3]
        given = str(state.get("managedZone", zone))
        return {
            "managedZone": given if given == zone or is_same_thing(zone, given) else zone,
            "name": found["name"],
            "project": ident.split("/")[1],
            "rrdatas": found.get("rrdatas", []),
            "ttl": found.get("ttl"),
            "type": found["type"],
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        body = {k: change.new[k] for k in ("name", "type", "ttl", "rrdatas") if k in change.new}
        with error_context(f"Error updating DNS RecordSet {ident!r}"):
            rest_client(cloud, "dns").call("PATCH", ident, body)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        dns = rest_client(cloud, "dns")
        if dns.find(ident) is not None:
            with error_context(f"Error deleting DNS RecordSet {ident!r}"):
                dns.call("DELETE", ident)
