"""EC2 security groups and their rules."""

from __future__ import annotations

from typing import Any

from localcloud.documents import inner
from localcloud.provider.aws.calls import delete_when_free, first, or_none, present
from localcloud.provider.aws.network import is_network
from localcloud.provider.aws.tags import ec2_specification, tag_map, update_ec2_tags
from localcloud.provider.checks import between, conflicts, matches, one_of
from localcloud.provider.errors import Failure
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties

_NAMING = Naming(prefix_property="namePrefix", limit=255)
_ANY_PROTOCOL = "-1"
_PORTS = ("fromPort", "toPort")


class SecurityGroup(Resource):
    token = "aws:ec2/securityGroup:SecurityGroup"
    naming = _NAMING
    tagged = True
    force_new = frozenset({"description", "name", "namePrefix", "vpcId"})
    mutable = frozenset({"revokeRulesOnDelete"})
    rules = (
        conflicts("name", "namePrefix"),
        matches(
            "name", r"(?!sg-)[\s\S]{1,255}", "a security group name (1 to 255 characters, not starting with sg-)"
        ),
        matches("description", r"[a-zA-Z0-9. _\-:/()#,@\[\]+=&;{}!$*]{0,255}", "a description that EC2 accepts"),
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        answer = cloud.client("ec2").create_security_group(
            GroupName=_NAMING.from_prefix(inputs),
            Description=inputs.get("description") or "Managed by Pulumi",
            TagSpecifications=ec2_specification("security-group", inputs.get("tags")),
            **present(VpcId=inputs.get("vpcId")),
        )
        return str(answer["GroupId"])

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        # EC2 adds a rule for all outgoing traffic; the real provider removes it, so that all rules are the program's
        group = self._find(cloud, ident)
        if group and group.get("IpPermissionsEgress"):
            permissions = group["IpPermissionsEgress"]
            cloud.client("ec2").revoke_security_group_egress(GroupId=ident, IpPermissions=permissions)

    def _find(self, cloud: Cloud, ident: str) -> dict[str, Any] | None:
        return first(cloud.client("ec2").describe_security_groups, "SecurityGroups", GroupIds=[ident])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        group = self._find(cloud, ident)
        return group and {
            "arn": f"arn:aws:ec2:{cloud.region}:{cloud.account}:security-group/{ident}",
            "name": group["GroupName"],
            "description": group["Description"],
            "ownerId": group.get("OwnerId"),
            "vpcId": group.get("VpcId"),
            "tags": tag_map(cloud, group.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        update_ec2_tags(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        group = self._find(cloud, ident)
        if group and state.get("revokeRulesOnDelete") and group.get("IpPermissions"):
            permissions = group["IpPermissions"]
            cloud.client("ec2").revoke_security_group_ingress(GroupId=ident, IpPermissions=permissions)
        delete_when_free(cloud, ident, cloud.client("ec2").delete_security_group, GroupId=ident)


def _ports_fit_protocol(given: Properties) -> list[Failure]:
    protocol = given.get("ipProtocol")
    present_ports = [p for p in _PORTS if p in given]
    if protocol == _ANY_PROTOCOL and present_ports:
        return [Failure(path=present_ports[0], reason=f"{present_ports[0]!r} must be left out when ipProtocol is -1")]
    if protocol in {"tcp", "udp", "6", "17"} and len(present_ports) < 2:
        missing = next(p for p in _PORTS if p not in given)
        return [Failure(path=missing, reason=f"{missing!r} is required when ipProtocol is {protocol}")]
    low, high = given.get("fromPort"), given.get("toPort")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        return [Failure(path="fromPort", reason=f"fromPort {low} is above toPort {high}")]
    return []


class _Rule(Resource):
    """What ingress and egress rules share."""

    ingress: bool
    tagged = True
    force_new = frozenset({"securityGroupId"})
    mutable = frozenset(
        {
            "cidrIpv4", "cidrIpv6", "description", "fromPort", "ipProtocol", "prefixListId",
            "referencedSecurityGroupId", "toPort",
        }
    )  # fmt: skip
    rules = (
        one_of("cidrIpv4", "cidrIpv6", "prefixListId", "referencedSecurityGroupId"),
        is_network("cidrIpv4", "cidrIpv6"),
        between("fromPort", -1, 65535),
        between("toPort", -1, 65535),
        _ports_fit_protocol,
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        ec2 = cloud.client("ec2")
        call = ec2.authorize_security_group_ingress if self.ingress else ec2.authorize_security_group_egress
        answer = call(
            GroupId=inputs["securityGroupId"],
            IpPermissions=[_permission(inputs)],
            TagSpecifications=ec2_specification("security-group-rule", inputs.get("tags")),
        )
        return str(answer["SecurityGroupRules"][0]["SecurityGroupRuleId"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        call = cloud.client("ec2").describe_security_group_rules
        rule = first(call, "SecurityGroupRules", SecurityGroupRuleIds=[ident])
        if rule is None:
            return None
        any_port = rule["IpProtocol"] == _ANY_PROTOCOL
        # the emulator forgets the description of a rule that names a group; what it does not say is left as it was
        description = {"description": rule["Description"] or None} if "Description" in rule else {}
        return description | {
            "arn": f"arn:aws:ec2:{cloud.region}:{cloud.account}:security-group-rule/{ident}",
            "securityGroupRuleId": ident,
            "securityGroupId": rule["GroupId"],
            "ipProtocol": rule["IpProtocol"],
            "fromPort": None if any_port else rule.get("FromPort"),
            "toPort": None if any_port else rule.get("ToPort"),
            "cidrIpv4": rule.get("CidrIpv4") or None,
            "cidrIpv6": rule.get("CidrIpv6") or None,
            "prefixListId": rule.get("PrefixListId") or None,
            "referencedSecurityGroupId": inner(rule, "ReferencedGroupInfo").get("GroupId") or None,
            "tags": tag_map(cloud, rule.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        if change.keys - {"tags"}:
            rule = present(
                IpProtocol=change.new["ipProtocol"],
                FromPort=change.new.get("fromPort"),
                ToPort=change.new.get("toPort"),
                CidrIpv4=change.new.get("cidrIpv4"),
                CidrIpv6=change.new.get("cidrIpv6"),
                PrefixListId=change.new.get("prefixListId"),
                ReferencedGroupId=change.new.get("referencedSecurityGroupId"),
                Description=change.new.get("description"),
            )
            cloud.client("ec2").modify_security_group_rules(
                GroupId=change.new["securityGroupId"],
                SecurityGroupRules=[{"SecurityGroupRuleId": ident, "SecurityGroupRule": rule}],
            )
        update_ec2_tags(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        ec2 = cloud.client("ec2")
        call = ec2.revoke_security_group_ingress if self.ingress else ec2.revoke_security_group_egress
        or_none(call, GroupId=state["securityGroupId"], SecurityGroupRuleIds=[ident])


def _permission(inputs: Properties) -> Properties:
    description = present(Description=inputs.get("description"))
    permission: Properties = present(
        IpProtocol=inputs["ipProtocol"], FromPort=inputs.get("fromPort"), ToPort=inputs.get("toPort")
    )
    if "cidrIpv4" in inputs:
        permission["IpRanges"] = [{"CidrIp": inputs["cidrIpv4"], **description}]
    if "cidrIpv6" in inputs:
        permission["Ipv6Ranges"] = [{"CidrIpv6": inputs["cidrIpv6"], **description}]
    if "prefixListId" in inputs:
        permission["PrefixListIds"] = [{"PrefixListId": inputs["prefixListId"], **description}]
    if "referencedSecurityGroupId" in inputs:
        permission["UserIdGroupPairs"] = [{"GroupId": inputs["referencedSecurityGroupId"], **description}]
    return permission


class SecurityGroupIngressRule(_Rule):
    token = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
    ingress = True


class SecurityGroupEgressRule(_Rule):
    token = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
    ingress = False
