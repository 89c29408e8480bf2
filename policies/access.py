"""Rules on who reaches an instance and what it may reach: network, metadata, disks, secrets, permissions."""

import base64
import binascii
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fleet.secrets import find_secrets
from policies.context import Context
from policies.resource import Resource, is_false, is_true, known
from policies.rule import Rule

LAUNCH_TEMPLATE: Final = "aws:ec2/launchTemplate:LaunchTemplate"
AWS_INSTANCE: Final = "aws:ec2/instance:Instance"
GCP_TEMPLATES: Final = frozenset(
    {
        "gcp:compute/instanceTemplate:InstanceTemplate",
        "gcp:compute/regionInstanceTemplate:RegionInstanceTemplate",
        "gcp:compute/instance:Instance",
    }
)


def _public_address(resource: Resource, _: Context) -> Iterator[str]:
    if resource.type == LAUNCH_TEMPLATE:
        yield from _template_addresses(resource)
    elif resource.type == AWS_INSTANCE:
        if not is_false(resource.at("associatePublicIpAddress")):
            yield "associatePublicIpAddress is not false"
    elif resource.type == "aws:ec2/subnet:Subnet":
        if is_true(resource.at("mapPublicIpOnLaunch")) and not _for_gateways(resource):
            yield "mapPublicIpOnLaunch is true"
    elif resource.type in GCP_TEMPLATES:
        for index, interface in enumerate(resource.each("networkInterfaces")):
            if interface.get("accessConfigs") or interface.get("ipv6AccessConfigs"):
                yield f"networkInterfaces[{index}] has an external address (accessConfigs)"


def _template_addresses(template: Resource) -> Iterator[str]:
    if template.at("networkInterfaces") is None:
        yield "networkInterfaces is missing, so the subnet decides about a public address"
    for index, interface in enumerate(template.each("networkInterfaces")):
        if not is_false(interface.get("associatePublicIpAddress")):
            yield f"networkInterfaces[{index}].associatePublicIpAddress is not false"
        if interface.get("ipv6AddressCount") or interface.get("ipv6Addresses"):
            yield f"networkInterfaces[{index}] asks for IPv6 addresses, which are public"


def _for_gateways(resource: Resource) -> bool:
    # a NAT gateway's subnet is public by nature and holds no instance
    return resource.at("tags", "gpu-fleet:holds") == "gateways"


def _open(cidr: Any) -> bool:
    if not isinstance(cidr, str):
        return False
    try:
        return ipaddress.ip_network(cidr, strict=False).prefixlen == 0
    except ValueError:
        return False


def _open_ingress(resource: Resource, _: Context) -> Iterator[str]:
    if resource.type == "aws:ec2/securityGroup:SecurityGroup":
        rules = list(resource.each("ingress"))
    elif resource.type == "aws:ec2/securityGroupRule:SecurityGroupRule" and resource.at("type") == "ingress":
        rules = [resource.props]
    elif resource.type == "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule":
        rules = [{"cidrBlocks": [resource.at("cidrIpv4"), resource.at("cidrIpv6")]}]
    elif resource.type == "gcp:compute/firewall:Firewall" and resource.at("direction") in (None, "INGRESS"):
        rules = [{"cidrBlocks": resource.at("sourceRanges") or []}]
    else:
        return
    for rule in rules:
        for cidr in _cidrs(rule):
            if _open(cidr):
                yield f"lets in {cidr}"


def _cidrs(rule: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("cidrBlocks", "ipv6CidrBlocks"):
        blocks = rule.get(key)
        yield from blocks if isinstance(blocks, list) else ()


def _metadata(resource: Resource, _: Context) -> Iterator[str]:
    if resource.type in (LAUNCH_TEMPLATE, AWS_INSTANCE):
        tokens = resource.at("metadataOptions", "httpTokens")
        if tokens is None or (known(tokens) and tokens != "required"):
            yield f"metadataOptions.httpTokens is {tokens!r}"
        hops = resource.at("metadataOptions", "httpPutResponseHopLimit")
        if known(hops) and hops > 2:
            yield f"metadataOptions.httpPutResponseHopLimit is {int(hops)}, at most 2 is needed"
    elif resource.type in GCP_TEMPLATES:
        for key in ("enableSecureBoot", "enableVtpm", "enableIntegrityMonitoring"):
            if not is_true(resource.at("shieldedInstanceConfig", key)):
                yield f"shieldedInstanceConfig.{key} is not true"


def _disks(resource: Resource, _: Context) -> Iterator[str]:
    if resource.type == LAUNCH_TEMPLATE:
        for index, mapping in enumerate(resource.each("blockDeviceMappings")):
            ebs = mapping.get("ebs")
            if isinstance(ebs, Mapping) and not is_true(ebs.get("encrypted")):
                yield f"blockDeviceMappings[{index}].ebs.encrypted is not true"
        if resource.at("blockDeviceMappings") is None:
            yield "blockDeviceMappings is missing, so the image decides about encryption"
    elif resource.type == AWS_INSTANCE:
        if not is_true(resource.at("rootBlockDevice", "encrypted")):
            yield "rootBlockDevice.encrypted is not true"
    elif resource.type == "aws:ebs/volume:Volume" and not is_true(resource.at("encrypted")):
        yield "encrypted is not true"


def _decode(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return text


def _user_data(resource: Resource, _: Context) -> Iterator[str]:
    texts: dict[str, Any] = {}
    if resource.type in (LAUNCH_TEMPLATE, AWS_INSTANCE):
        texts = {key: resource.at(key) for key in ("userData", "userDataBase64")}
    elif resource.type in GCP_TEMPLATES:
        metadata = resource.at("metadata")
        texts = {"metadataStartupScript": resource.at("metadataStartupScript")}
        if isinstance(metadata, Mapping):
            texts |= {f"metadata.{key}": value for key, value in metadata.items()}
    for key, text in texts.items():
        if isinstance(text, str):
            for kind in find_secrets(_decode(text)):
                yield f"{key} holds what looks like {kind}"


_POLICY_TYPES: Final = frozenset(
    {"aws:iam/rolePolicy:RolePolicy", "aws:iam/policy:Policy", "aws:iam/userPolicy:UserPolicy"}
)
_PUBLIC_ROLES: Final = frozenset({"roles/owner", "roles/editor"})
UNSCOPED: Final = re.compile(
    r"ec2:Describe\w+|autoscaling:Describe\w+|pricing:\w+|servicequotas:Get\w+|ecr:GetAuthorizationToken"
    r"|ssm:(?:UpdateInstanceInformation|ListAssociations|ListInstanceAssociations)|ssmmessages:\w+|ec2messages:\w+"
    r"|tag:Get\w+|sts:GetCallerIdentity|cloudwatch:GetMetric\w+"
)
"""Calls that AWS cannot limit to a resource: for these alone `Resource: *` is no choice of ours."""


def _wildcards(resource: Resource, _: Context) -> Iterator[str]:
    if resource.type in _POLICY_TYPES:
        policy = resource.at("policy")
        if isinstance(policy, str):
            try:
                policy = json.loads(policy)
            except ValueError:
                yield "policy is no JSON"
                return
        if isinstance(policy, Mapping):
            for statement in _listed(policy.get("Statement")):
                yield from _wide_statement(statement)
    elif resource.type.startswith("gcp:") and resource.at("role") in _PUBLIC_ROLES:
        yield f"grants {resource.at('role')}"


def _wide_statement(statement: Any) -> Iterator[str]:
    if not isinstance(statement, Mapping) or statement.get("Effect") != "Allow":
        return
    actions = [a for a in _listed(statement.get("Action")) if isinstance(a, str)]
    for action in actions:
        if action == "*" or action.endswith(":*"):
            yield f"allows the action {action}"
    if "NotAction" in statement:
        yield "allows everything but NotAction"
    if "*" in _listed(statement.get("Resource")) and not statement.get("Condition"):
        for action in actions:
            if not UNSCOPED.fullmatch(action):
                yield f"allows {action} on every resource"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


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
    Rule(
        id="no-secret-in-user-data",
        reason="Whoever may describe an instance reads its user data.",
        remedy="Put it into SSM Parameter Store or Secret Manager and pass its name; then change the secret.",
        of_one=_user_data,
    ),
    Rule(
        id="no-wildcard-iam",
        reason="A role that may do everything turns every bug into a breach.",
        remedy="Name the actions and resources that the code uses.",
        of_one=_wildcards,
    ),
)
