"""The rule on public addresses of instances, their subnets, and load balancers or gateways in front of them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.context import Context
from policies.resource import (
    GCP_COPIES,
    GCP_GROUPS,
    GCP_TEMPLATES,
    LAUNCH_TEMPLATE,
    RUNS_INSTANCES,
    UNKNOWN,
    Resource,
    is_false,
    is_true,
    number,
)
from policies.rule import PropertyProblem, Rule

_SUBNETS: Final = frozenset({"aws:ec2/subnet:Subnet", "aws:ec2/defaultSubnet:DefaultSubnet"})
_LOAD_BALANCERS: Final = frozenset(
    f"aws:{module}/loadBalancer:LoadBalancer"
    for module in ("lb", "alb", "elb", "applicationloadbalancing", "elasticloadbalancing", "elasticloadbalancingv2")
)
_ADDRESSES: Final = frozenset({"aws:ec2/eip:Eip", "aws:ec2/eipAssociation:EipAssociation"})
_GCP_FRONTS: Final = frozenset(
    {"gcp:compute/forwardingRule:ForwardingRule", "gcp:compute/globalForwardingRule:GlobalForwardingRule"}
)
_INTERNAL: Final = ("INTERNAL", "INTERNAL_MANAGED", "INTERNAL_SELF_MANAGED")
_GCP_SUBNET: Final = "gcp:compute/subnetwork:Subnetwork"
_IPV6: Final = ("ipv6AddressCount", "ipv6Addresses", "ipv6PrefixCount", "ipv6Prefixes", "primaryIpv6")


def _public_address(resource: Resource, _: Context) -> Iterator[PropertyProblem]:
    kind = resource.type
    if kind in GCP_TEMPLATES:
        yield from _google_interfaces(resource)
    elif kind in GCP_GROUPS:
        yield from _none_of(resource.props, ("statefulExternalIps",))
    elif kind in _GCP_FRONTS:
        scheme = resource.at("loadBalancingScheme")
        if scheme not in _INTERNAL:
            yield PropertyProblem(
                path="loadBalancingScheme", value=scheme, message=f"must be one of {', '.join(_INTERNAL)}"
            )
    elif kind == _GCP_SUBNET:
        yield from _must_be_if_set(resource.props, "ipv6AccessType", "", "INTERNAL")
    elif kind == LAUNCH_TEMPLATE:
        yield from _template(resource)
    elif kind in RUNS_INSTANCES:
        yield from _instance(resource)
    else:
        yield from _before_instances(resource)


def _template(template: Resource) -> Iterator[PropertyProblem]:
    interfaces = template.at("networkInterfaces")
    if not is_list(interfaces) or not interfaces:
        yield PropertyProblem(
            path="networkInterfaces",
            value=interfaces,
            message="must list a network interface; otherwise the subnet assigns addresses",
        )
        return
    for index, interface in enumerate(interfaces):
        path = f"networkInterfaces[{index}]"
        if not is_map(interface):
            yield PropertyProblem(path=path, value=interface, message="must be known")
            continue
        public = interface.get("associatePublicIpAddress")
        if not is_false(public):
            yield PropertyProblem(path=f"{path}.associatePublicIpAddress", value=public, message="must be false")
        yield from _none_of(interface, (*_IPV6, "associateCarrierIpAddress"), f"{path}.")
        yield from _foreign_interface(interface, ("networkInterfaceId",), f"{path}.")


def _instance(instance: Resource) -> Iterator[PropertyProblem]:
    public = instance.at("associatePublicIpAddress")
    if not is_false(public):
        yield PropertyProblem(path="associatePublicIpAddress", value=public, message="must be false")
    yield from _none_of(instance.props, (*_IPV6, "enablePrimaryIpv6"))
    yield from _foreign_interface(instance.props, ("networkInterfaces", "primaryNetworkInterface"))


def _foreign_interface(props: Mapping[str, Any], keys: tuple[str, ...], path: str = "") -> Iterator[PropertyProblem]:
    for key in keys:
        if props.get(key) not in (None, "", []):
            yield PropertyProblem(
                path=f"{path}{key}",
                value=props[key],
                message="a network interface from outside the plan may have a public address",
            )


def _none_of(props: Mapping[str, Any], keys: tuple[str, ...], path: str = "") -> Iterator[PropertyProblem]:
    """Yield properties that assign public addresses if they are set at all."""
    for key in keys:
        value = props.get(key)
        if not (value in (None, "", []) or is_false(value) or number(value) == 0):
            yield PropertyProblem(path=f"{path}{key}", value=value, message="assigns a public address; leave it out")


def _must_be_if_set(props: Mapping[str, Any], key: str, path: str, allowed: str) -> Iterator[PropertyProblem]:
    if (value := props.get(key)) not in (None, "", allowed):
        yield PropertyProblem(path=f"{path}{key}", value=value, message=f"must be {allowed}, or left out")


def _google_interfaces(template: Resource) -> Iterator[PropertyProblem]:
    interfaces = template.at("networkInterfaces")
    if template.type in GCP_COPIES and interfaces is None:
        return  # the source of the copy is checked
    if not is_list(interfaces) or not interfaces:
        yield PropertyProblem(path="networkInterfaces", value=interfaces, message="must list a network interface")
        return
    for index, interface in enumerate(interfaces):
        path = f"networkInterfaces[{index}]"
        if not is_map(interface):
            yield PropertyProblem(path=path, value=interface, message="must be known")
            continue
        for key in ("accessConfigs", "ipv6AccessConfigs"):
            if interface.get(key) not in (None, []):
                yield PropertyProblem(
                    path=f"{path}.{key}", value=interface[key], message="assigns an external address; leave it out"
                )
        yield from _must_be_if_set(interface, "stackType", f"{path}.", "IPV4_ONLY")


def _before_instances(resource: Resource) -> Iterator[PropertyProblem]:
    """Check AWS resources in front of instances."""
    if resource.type in _SUBNETS:
        for key in ("mapPublicIpOnLaunch", "assignIpv6AddressOnCreation", "ipv6Native"):
            value = resource.at(key)
            if value is UNKNOWN or is_true(value):
                yield PropertyProblem(path=key, value=value, message="must be false; a NAT gateway does not need it")
        if resource.type != _OWN_SUBNET and resource.at("mapPublicIpOnLaunch") is None:
            yield PropertyProblem(
                path="mapPublicIpOnLaunch", message="must be false; a default subnet assigns public addresses"
            )
    elif resource.type in _LOAD_BALANCERS:
        if not is_true(internal := resource.at("internal")):
            yield PropertyProblem(
                path="internal",
                value=internal,
                message="must be true; otherwise the load balancer has public addresses",
            )
    elif resource.type in _ADDRESSES:
        for key in ("instance", "instanceId", "networkInterface", "networkInterfaceId"):
            if (value := resource.at(key)) not in (None, ""):
                yield PropertyProblem(path=key, value=value, message="would have a public address")


_OWN_SUBNET: Final = "aws:ec2/subnet:Subnet"

RULES: Final = (
    Rule(
        id="no-public-address",
        reason="The internet cannot reach an engine without a public address.",
        remedy="Remove the public address. Operators connect through SSM or IAP, and clients through the router.",
        check_resource=_public_address,
        judges="interfaces of templates and instances, subnets, elastic addresses, load balancers, forwarding rules",
    ),
)
