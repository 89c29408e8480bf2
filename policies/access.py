"""Rules on who reaches an instance: addresses, ingress, the metadata service, disks."""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies import permissions, user_data
from policies.context import Context
from policies.resource import (
    GCP_TEMPLATES,
    LAUNCH_TEMPLATE,
    RUNS_INSTANCES,
    Resource,
    is_not_false,
    is_not_true,
    is_true,
    known,
    number,
)
from policies.rule import Rule

_WIDEST: Final = 8
"""Prefix of the widest network that somebody may own (10.0.0.0/8): above it is almost everybody."""


def _public_address(resource: Resource, _: Context) -> Iterator[str]:
    if resource.type in GCP_TEMPLATES:
        for index, interface in enumerate(resource.each("networkInterfaces")):
            if interface.get("accessConfigs") or interface.get("ipv6AccessConfigs"):
                yield f"networkInterfaces[{index}] has an external address (accessConfigs)"
    elif resource.type in _GCP_FRONTS:
        if resource.at("loadBalancingScheme") in (None, *_EXTERNAL):
            yield "loadBalancingScheme is external"
    elif resource.type in RUNS_INSTANCES:
        interfaces = _template_addresses if resource.type == LAUNCH_TEMPLATE else _instance_addresses
        yield from interfaces(resource)
    else:
        yield from _aws_addresses(resource)


def _aws_addresses(resource: Resource) -> Iterator[str]:
    """Of what lies before instances."""
    if resource.type == "aws:ec2/subnet:Subnet":
        for key in ("mapPublicIpOnLaunch", "assignIpv6AddressOnCreation"):
            if is_true(resource.at(key)) and not _for_gateways(resource):
                yield f"{key} is true"
    elif resource.type == "aws:lb/loadBalancer:LoadBalancer":
        if is_not_true(resource.at("internal")):
            yield "internal is not true, so it has public addresses"
    elif resource.type in ("aws:ec2/eip:Eip", "aws:ec2/eipAssociation:EipAssociation"):
        for key in ("instance", "instanceId", "networkInterface", "networkInterfaceId"):
            if resource.at(key) not in (None, ""):
                yield f"{key} gets a public address"


def _instance_addresses(instance: Resource) -> Iterator[str]:
    if is_not_false(instance.at("associatePublicIpAddress")):
        yield "associatePublicIpAddress is not false"
    if any(instance.at(key) for key in _IPV6):
        yield "asks for IPv6 addresses, which are public"


_GCP_FRONTS: Final = frozenset(
    {"gcp:compute/forwardingRule:ForwardingRule", "gcp:compute/globalForwardingRule:GlobalForwardingRule"}
)
_EXTERNAL: Final = ("EXTERNAL", "EXTERNAL_MANAGED")


def _template_addresses(template: Resource) -> Iterator[str]:
    if template.at("networkInterfaces") is None:
        yield "networkInterfaces is missing, so the subnet decides about a public address"
    for index, interface in enumerate(template.each("networkInterfaces")):
        if is_not_false(interface.get("associatePublicIpAddress")):
            yield f"networkInterfaces[{index}].associatePublicIpAddress is not false"
        if any(interface.get(key) for key in _IPV6):
            yield f"networkInterfaces[{index}] asks for IPv6 addresses, which are public"


_IPV6: Final = ("ipv6AddressCount", "ipv6Addresses", "ipv6PrefixCount", "ipv6Prefixes")


def _for_gateways(resource: Resource) -> bool:
    # a NAT gateway's subnet is public by nature and holds no instance
    return resource.at("tags", "gpu-fleet:holds") == "gateways"


def _open(cidr: Any) -> bool:
    if not isinstance(cidr, str):
        return False
    try:
        network = ipaddress.ip_network(cidr.strip(), strict=False)
    except ValueError:
        return False
    return network.prefixlen < _WIDEST and not (network.prefixlen and network.is_private)


def _open_ingress(resource: Resource, _: Context) -> Iterator[str]:
    for cidr in _let_in(resource):
        if _open(cidr):
            yield f"lets in {cidr}"
    # an empty list is no source either
    if resource.type == FIREWALL and _lets_in(resource) and all(resource.at(key) in (None, []) for key in _SOURCES):
        yield "names no source, which is everybody"


FIREWALL: Final = "gcp:compute/firewall:Firewall"
_SOURCES: Final = ("sourceRanges", "sourceTags", "sourceServiceAccounts")
_GROUPS: Final = frozenset(
    {"aws:ec2/securityGroup:SecurityGroup", "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"}
)


def _lets_in(firewall: Resource) -> bool:
    """Whether a firewall of Google Cloud allows something that comes in; without `allows` it only refuses."""
    return firewall.at("direction") in _INWARD and not firewall.at("denies")


_INWARD: Final = (None, "", "INGRESS")
"""What a direction says of what comes in; nothing said is that, too."""


def _let_in(resource: Resource) -> Iterator[Any]:
    """Every network that a resource lets in, as far as a preview knows."""
    kind = resource.type
    if kind in _GROUPS:
        yield from (cidr for rule in resource.each("ingress") for cidr in _cidrs(rule))
    elif kind == "aws:ec2/securityGroupRule:SecurityGroupRule" and resource.at("type") == "ingress":
        yield from _cidrs(resource.props)
    elif kind == "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule":
        yield from (resource.at("cidrIpv4"), resource.at("cidrIpv6"))
    elif kind == "aws:ec2/managedPrefixList:ManagedPrefixList":
        # what a rule lets in by the list's name
        yield from (entry.get("cidr") for entry in resource.each("entries"))
    elif kind == "aws:ec2/managedPrefixListEntry:ManagedPrefixListEntry":
        yield resource.at("cidr")
    elif kind == FIREWALL and _lets_in(resource):
        ranges = resource.at("sourceRanges")
        yield from ranges if isinstance(ranges, list) else ()
    elif kind.startswith("gcp:compute/") and "FirewallPolic" in kind:
        # a rule of its own, or a policy that holds its rules
        for rule in (resource.props, *resource.each("rules")):
            yield from _policy_sources(rule)


def _policy_sources(rule: Mapping[str, Any]) -> Iterator[Any]:
    match = rule.get("match")
    if rule.get("action") == "allow" and rule.get("direction") in _INWARD and is_map(match):
        ranges = match.get("srcIpRanges")
        yield from ranges if is_list(ranges) else ()


def _cidrs(rule: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("cidrBlocks", "ipv6CidrBlocks"):
        blocks = rule.get(key)
        yield from blocks if isinstance(blocks, list) else ()


def _metadata(resource: Resource, _: Context) -> Iterator[str]:
    if resource.type in RUNS_INSTANCES:
        if resource.at("metadataOptions", "httpEndpoint") == "disabled":
            return
        tokens = resource.at("metadataOptions", "httpTokens")
        if tokens is None or (known(tokens) and tokens != "required"):
            yield f"metadataOptions.httpTokens is {tokens!r}"
        hops = number(resource.at("metadataOptions", "httpPutResponseHopLimit"))
        if hops is not None and hops > 2:
            yield f"metadataOptions.httpPutResponseHopLimit is {hops:g}, at most 2 is needed"
    elif resource.type in GCP_TEMPLATES:
        for key in ("enableSecureBoot", "enableVtpm", "enableIntegrityMonitoring"):
            if is_not_true(resource.at("shieldedInstanceConfig", key)):
                yield f"shieldedInstanceConfig.{key} is not true"


def _disks(resource: Resource, _: Context) -> Iterator[str]:
    if resource.type == LAUNCH_TEMPLATE:
        if resource.at("blockDeviceMappings") is None:
            yield "blockDeviceMappings is missing, so the image decides about encryption"
        found = [
            (f"blockDeviceMappings[{index}].ebs.encrypted", mapping["ebs"].get("encrypted"))
            for index, mapping in enumerate(resource.each("blockDeviceMappings"))
            if isinstance(mapping.get("ebs"), Mapping)
        ]
    elif resource.type in RUNS_INSTANCES:
        found = [("rootBlockDevice.encrypted", resource.at("rootBlockDevice", "encrypted"))]
        disks = enumerate(resource.each("ebsBlockDevices"))
        found += [(f"ebsBlockDevices[{index}].encrypted", disk.get("encrypted")) for index, disk in disks]
    elif resource.type == "aws:ebs/volume:Volume":
        found = [("encrypted", resource.at("encrypted"))]
    else:
        return
    yield from (f"{name} is not true" for name, value in found if is_not_true(value))


RULES: Final = (
    Rule(
        id="no-public-address",
        reason="An engine without a door to the internet cannot be found from there.",
        remedy="Set it to false; administration goes through SSM or IAP, clients through the router.",
        of_one=_public_address,
    ),
    Rule(
        id="no-open-ingress",
        reason="An open port is found within minutes.",
        remedy="Name the client networks in the settings instead.",
        of_one=_open_ingress,
    ),
    Rule(
        id="metadata-protected",
        reason="A request forged through the engine must not read the instance's credentials or boot another system.",
        remedy="Require IMDSv2 tokens on AWS, a Shielded VM on Google Cloud.",
        of_one=_metadata,
    ),
    Rule(
        id="disks-encrypted",
        reason="Disks outlive instances.",
        remedy="Set encrypted to true.",
        of_one=_disks,
    ),
    *user_data.RULES,
    *permissions.RULES,
)
