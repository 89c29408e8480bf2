"""Health checks, backend services and forwarding rules."""

from __future__ import annotations

from gpufleet.domain.parsed import is_list
from localcloud.documents import inner
from localcloud.provider.checks import between, one_of
from localcloud.provider.errors import Failure
from localcloud.provider.gcp.rest_resource import ATTRIBUTION, NAME_RULE, RestResource, error_context, fit_labels
from localcloud.provider.resource import Change
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties

_CHECKS = ("httpHealthCheck", "httpsHealthCheck", "tcpHealthCheck")
_KINDS = {"httpHealthCheck": "HTTP", "httpsHealthCheck": "HTTPS", "tcpHealthCheck": "TCP"}


def _timeout_fits(given: Properties) -> list[Failure]:
    timeout, interval = given.get("timeoutSec", 5), given.get("checkIntervalSec", 5)
    if isinstance(timeout, int) and isinstance(interval, int) and timeout > interval:
        return [Failure(path="timeoutSec", reason=f"{timeout} is more than checkIntervalSec, {interval}")]
    return []


class HealthCheck(RestResource):
    token = "gcp:compute/healthCheck:HealthCheck"
    api = ("compute.v1", "HealthCheck")
    place = "global/healthChecks"
    force_new = frozenset({"name"})
    mutable = frozenset(
        {
            "checkIntervalSec", "description", "healthyThreshold", "logConfig", "timeoutSec", "unhealthyThreshold",
            *_CHECKS,
        }
    )  # fmt: skip
    computed = {"selfLink": "selfLink", "creationTimestamp": "creationTimestamp", "type": "type"}
    enums = {
        "httpHealthCheck.proxyHeader": frozenset({"NONE", "PROXY_V1"}),
        "httpHealthCheck.portSpecification": frozenset({"USE_FIXED_PORT", "USE_NAMED_PORT", "USE_SERVING_PORT"}),
    }
    rules = (
        NAME_RULE,
        one_of(*_CHECKS),
        between("checkIntervalSec", 1, 300),
        between("timeoutSec", 1, 300),
        between("httpHealthCheck.port", 1, 65535),
        between("tcpHealthCheck.port", 1, 65535),
        _timeout_fits,
    )

    def body(self, cloud: Cloud, inputs: Properties) -> Properties:
        kind = next(_KINDS[name] for name in _CHECKS if name in inputs)
        return {**super().body(cloud, inputs), "type": kind}


class RegionHealthCheck(HealthCheck):
    token = "gcp:compute/regionHealthCheck:RegionHealthCheck"
    place = "regions/{region}/healthChecks"
    computed = {**HealthCheck.computed, "healthCheckId": "id"}


class RegionBackendService(RestResource):
    token = "gcp:compute/regionBackendService:RegionBackendService"
    api = ("compute.v1", "BackendService")
    place = "regions/{region}/backendServices"
    force_new = frozenset({"loadBalancingScheme", "name", "network"})
    mutable = frozenset(
        {"backends", "connectionDrainingTimeoutSec", "description", "healthChecks", "protocol", "sessionAffinity",
         "timeoutSec"}
    )  # fmt: skip
    renames = {"connectionDrainingTimeoutSec": "connectionDraining"}
    computed = {
        "selfLink": "selfLink",
        "creationTimestamp": "creationTimestamp",
        "fingerprint": "fingerprint",
        "generatedId": "id",
    }
    volatile = frozenset({"fingerprint"})
    enums = {
        "loadBalancingScheme": frozenset({"EXTERNAL", "EXTERNAL_MANAGED", "INTERNAL", "INTERNAL_MANAGED"}),
        "protocol": frozenset({"GRPC", "H2C", "HTTP", "HTTP2", "HTTPS", "SSL", "TCP", "UDP", "UNSPECIFIED"}),
        "backends[*].balancingMode": frozenset({"CONNECTION", "CUSTOM_METRICS", "RATE", "UTILIZATION"}),
    }

    def to_wire(self, cloud: Cloud, inputs: Properties) -> Properties:
        name = "connectionDrainingTimeoutSec"
        if name not in inputs:
            return inputs
        return {**inputs, name: {"drainingTimeoutSec": inputs[name]}}

    def from_wire(self, raw: Properties) -> Properties:
        checks = raw.get("healthChecks") or [None]
        draining = inner(raw, "connectionDraining").get("drainingTimeoutSec")
        # Pulumi flattens the list, which holds at most one
        shown = {**raw, "healthChecks": checks[0], "connectionDraining": draining}
        return {k: v for k, v in shown.items() if v is not None}


def _ports_fit(given: Properties) -> list[Failure]:
    present = [n for n in ("ports", "portRange", "allPorts") if given.get(n)]
    if len(present) > 1:
        first, second = present[:2]
        return [Failure(path=second, reason=f"{second!r} conflicts with {first!r}; give one of them")]
    ports = given.get("ports")
    if is_list(ports) and len(ports) > 5:
        return [Failure(path="ports", reason=f"at most 5 ports may be given, got {len(ports)}; use 'allPorts'")]
    return []


class ForwardingRule(RestResource):
    token = "gcp:compute/forwardingRule:ForwardingRule"
    api = ("compute.v1", "ForwardingRule")
    place = "regions/{region}/forwardingRules"
    labelled = True
    force_new = frozenset(
        {"allPorts", "backendService", "description", "ipAddress", "ipProtocol", "loadBalancingScheme", "name",
         "network", "portRange", "ports", "subnetwork"}
    )  # fmt: skip
    mutable = frozenset({"allowGlobalAccess"})
    renames = {"ipAddress": "IPAddress", "ipProtocol": "IPProtocol"}
    computed = {
        "selfLink": "selfLink",
        "creationTimestamp": "creationTimestamp",
        "forwardingRuleId": "id",
        "ipAddress": "IPAddress",
        "labelFingerprint": "labelFingerprint",
        "serviceName": "serviceName",
    }
    volatile = frozenset({"labelFingerprint"})
    enums = {
        "ipProtocol": frozenset({"AH", "ESP", "ICMP", "L3_DEFAULT", "SCTP", "TCP", "UDP"}),
        "loadBalancingScheme": frozenset({"EXTERNAL", "EXTERNAL_MANAGED", "INTERNAL", "INTERNAL_MANAGED"}),
    }
    rules = (NAME_RULE, fit_labels, _ports_fit)

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        if change.touches("labels"):
            set_labels(self, cloud, ident, change)
        self.patch(cloud, ident, change, change.keys - {"labels"})


def set_labels(resource: RestResource, cloud: Cloud, ident: str, change: Change) -> None:
    """Write changed labels; those that others put there stay."""
    client = resource.client(cloud)
    with error_context(f"Error updating labels of {ident!r}"):
        now = client.call("GET", ident)
        old = inner(change.old, "labels")
        others = {k: v for k, v in inner(now, "labels").items() if k not in old}
        labels = {**others, **inner(change.new, "labels"), **ATTRIBUTION}
        body = {"labels": labels, "labelFingerprint": now.get("labelFingerprint")}
        resource.finish(cloud, client.call("POST", f"{ident}/setLabels", body))
