"""Tests of the rule on inbound traffic: attacks, and allowed configurations."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from gpufleet.settings.environment import PolicyException
from policies import ingress
from policies.resource import UNKNOWN, Resource
from policies.rule import Violation
from tests.fixtures.policies.resources import DEV, FIREWALL, INGRESS

(RULE,) = ingress.RULES
GROUP, GROUP_RULE = "aws:ec2/securityGroup:SecurityGroup", "aws:ec2/securityGroupRule:SecurityGroupRule"
LIST, ENTRY = "aws:ec2/managedPrefixList:ManagedPrefixList", "aws:ec2/managedPrefixListEntry:ManagedPrefixListEntry"
POLICY_RULE = "gcp:compute/networkFirewallPolicyRule:NetworkFirewallPolicyRule"
WITH_RULES = "gcp:compute/regionNetworkFirewallPolicyWithRules:RegionNetworkFirewallPolicyWithRules"
HIERARCHY = "gcp:compute/firewallPolicyRule:FirewallPolicyRule"
OLD_HIERARCHY = "gcp:compute/organizationSecurityPolicyRule:OrganizationSecurityPolicyRule"
OPEN = ["0.0.0.0/0"]


def a(kind: str, name: str = "it", depends: Mapping[str, tuple[str, ...]] | None = None, **props: Any) -> Resource:
    return Resource(type=kind, name=name, urn=f"urn:{name}", props=props, depends=depends or {})


def found(*resources: Resource, exceptions: tuple[PolicyException, ...] = ()) -> list[Violation]:
    return RULE.check(resources, replace(DEV, exceptions=exceptions))


def policy_rule(kind: str = POLICY_RULE, action: str = "allow", **match: Any) -> Resource:
    return a(kind, action=action, direction="INGRESS", match=match)


@pytest.mark.parametrize(
    ("resource", "path"),
    [
        pytest.param(a(INGRESS, cidrIpv6="2600::/12"), "cidrIpv6", id="an IPv6 /12"),
        pytest.param(a(INGRESS, cidrIpv6="2a00::/8"), "cidrIpv6", id="an IPv6 /8"),
        pytest.param(a(INGRESS, cidrIpv6="2001:4860::/32"), "cidrIpv6", id="an IPv6 /32"),
        pytest.param(a(INGRESS, cidrIpv6="::ffff:0:0/96"), "cidrIpv6", id="IPv4 mapped into IPv6"),
        pytest.param(a(INGRESS, cidrIpv6="64:ff9b::/96"), "cidrIpv6", id="IPv4 translated into IPv6"),
        pytest.param(a(INGRESS, cidrIpv4="8.0.0.0/7"), "cidrIpv4", id="two /8 in one"),
        pytest.param(a(INGRESS, cidrIpv4="128.1.2.3/1"), "cidrIpv4", id="bits of a host"),
        pytest.param(a(INGRESS, cidrIpv4="0.0.0.0/0.0.0.0"), "cidrIpv4", id="netmask"),
        pytest.param(a(INGRESS, cidrIpv4="anywhere"), "cidrIpv4", id="no network"),
        pytest.param(a(INGRESS, cidrIpv4=UNKNOWN), "cidrIpv4", id="unknown network"),
        pytest.param(a(GROUP, ingress=UNKNOWN), "ingress", id="unknown rules"),
        pytest.param(a(GROUP, ingress=[UNKNOWN]), "ingress[0].cidrBlocks", id="an unknown rule"),
        pytest.param(
            a(GROUP, ingress=[{"cidrBlocks": ["10.0.0.0/8"], "ipv6CidrBlocks": ["2000::/3"]}]),
            "ingress[0].ipv6CidrBlocks[0]",
            id="open for IPv6 alone",
        ),
        pytest.param(
            a(GROUP_RULE, type="ingress", cidrBlocks=[f"{n}.0.0.0/8" for n in range(256)]), "", id="256 times /8"
        ),
        pytest.param(a(GROUP_RULE, type="ingress", cidrBlocks=["0.0.0.0/1", "128.0.0.0/1"]), "cidrBlocks[0]",
                     id="two halves"),
        pytest.param(a(GROUP_RULE, type=UNKNOWN, cidrBlocks=OPEN), "cidrBlocks[0]", id="direction unknown"),
        pytest.param(a(INGRESS, prefixListId="pl-0123"), "prefixListId", id="prefix list of another"),
        pytest.param(a(GROUP_RULE, type="ingress", prefixListIds=["pl-1"]), "prefixListIds", id="prefix lists"),
        pytest.param(a(GROUP, ingress=[{"prefixListIds": ["pl-1"]}]), "ingress", id="prefix list, inline"),
        pytest.param(a(INGRESS, prefixListId=UNKNOWN), "prefixListId", id="prefix list from nowhere"),
        pytest.param(
            a(INGRESS, depends={"prefixListId": ("urn:other",)}, prefixListId=UNKNOWN),
            "prefixListId",
            id="prefix list that is none of the plan",
        ),
        pytest.param(a(LIST, entries=UNKNOWN), "entries", id="prefix list of unknown entries"),
        pytest.param(a(ENTRY, cidr="128.0.0.0/2"), "cidr", id="entry of a prefix list"),
        pytest.param(a(FIREWALL, sourceRanges=[f"{n}.0.0.0/8" for n in range(256)]), "", id="256 times /8, Google"),
        pytest.param(a(FIREWALL, sourceRanges=[]), "sourceRanges", id="firewall without sources"),
        pytest.param(a(FIREWALL, sourceServiceAccounts=UNKNOWN), "sourceRanges", id="accounts that may be none"),
        pytest.param(a(FIREWALL, sourceTags=["a"], sourceRanges=["::/0"]), "sourceRanges[0]", id="tags or everybody"),
        pytest.param(a(FIREWALL, direction=UNKNOWN, sourceRanges=OPEN), "sourceRanges[0]", id="firewall somewhere"),
        pytest.param(
            a(FIREWALL, allows=[{"protocol": "tcp"}], denies=[{"protocol": "udp"}], sourceRanges=OPEN),
            "sourceRanges[0]",
            id="firewall that allows and denies",
        ),
        pytest.param(policy_rule(srcRegionCodes=["US"]), "match.srcRegionCodes", id="regions"),
        pytest.param(policy_rule(srcThreatIntelligences=["iplist-public-clouds"]), "match.srcThreatIntelligences",
                     id="threat intelligence"),
        pytest.param(policy_rule(srcFqdns=["example.com"]), "match.srcFqdns", id="names"),
        pytest.param(policy_rule(srcAddressGroups=["projects/p/addressGroups/g"]), "match.srcAddressGroups",
                     id="address group"),
        pytest.param(policy_rule(srcNetworkScope="INTERNET"), "match", id="scope of the internet"),
        pytest.param(policy_rule(srcNetworkContext="INTERNET"), "match", id="context of the internet"),
        pytest.param(policy_rule(), "match", id="no source"),
        pytest.param(policy_rule(srcIpRanges=[]), "match", id="empty ranges"),
        pytest.param(policy_rule(srcIpRanges=UNKNOWN), "match.srcIpRanges", id="unknown ranges"),
        pytest.param(policy_rule(action="apply_security_profile_group", srcIpRanges=OPEN), "match.srcIpRanges[0]",
                     id="inspected, and allowed"),
        pytest.param(policy_rule(HIERARCHY, srcIpRanges=OPEN), "match.srcIpRanges[0]", id="hierarchy"),
        pytest.param(policy_rule(OLD_HIERARCHY, config={"srcIpRanges": OPEN}), "match.srcIpRanges[0]",
                     id="hierarchy, older type"),
        pytest.param(a(POLICY_RULE, action="allow", match=UNKNOWN), "match", id="unknown match"),
        pytest.param(a(WITH_RULES, rules=[{"action": "allow", "match": {"srcNetworkScope": "INTERNET"}}]),
                     "rules[0].match", id="regional policy with its rules"),
        pytest.param(a(WITH_RULES, rules=[UNKNOWN]), "rules[0].match", id="policy of unknown rules"),
    ],
)  # fmt: skip
def test_open_access_is_refused_with_its_property(resource: Resource, path: str) -> None:
    assert path in {violation.path for violation in found(resource)}


@pytest.mark.parametrize(
    "resource",
    [
        pytest.param(a(INGRESS, cidrIpv4="8.0.0.0/8"), id="the largest network of one organisation"),
        pytest.param(a(INGRESS, cidrIpv6="2001:4860::/33"), id="half of a provider"),
        pytest.param(a(INGRESS, cidrIpv4="203.0.113.7"), id="one address"),
        pytest.param(a(INGRESS, referencedSecurityGroupId=UNKNOWN), id="another group"),
        pytest.param(a(GROUP, ingress=[{"self": True}, {"securityGroups": [UNKNOWN]}]), id="its own members"),
        pytest.param(a(GROUP), id="no rule"),
        pytest.param(a(FIREWALL, sourceServiceAccounts=[UNKNOWN], sourceRanges=None), id="an account to be created"),
        pytest.param(a(FIREWALL, denies=[{"protocol": "all"}]), id="denies"),
        pytest.param(a(FIREWALL, direction="EGRESS"), id="outwards"),
        pytest.param(policy_rule(action="deny", srcIpRanges=OPEN), id="denied"),
        pytest.param(policy_rule(action="goto_next", srcIpRanges=OPEN), id="left to the next"),
        pytest.param(policy_rule(srcNetworkScope="INTERNET", srcIpRanges=["8.8.8.0/24"]), id="some of the internet"),
        pytest.param(policy_rule(srcNetworkScope="INTRA_VPC"), id="the network itself"),
        pytest.param(policy_rule(srcSecureTags=[{"name": "tagValues/1"}]), id="secure tags"),
        pytest.param(
            a("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule", prefixListId="pl-63a5400a"),
            id="a prefix list of AWS, outwards",
        ),
    ],
)
def test_rules_with_named_clients_pass(resource: Resource) -> None:
    assert found(resource) == []


def test_a_public_source_is_reported_once_with_its_size() -> None:
    (violation,) = found(a(INGRESS, cidrIpv4="0.0.0.0/0"))
    assert violation.sentence == (
        f"it ({INGRESS}): cidrIpv4 is '0.0.0.0/0': allows 3,702,188,032 public addresses of IPv4"
    )


def test_rules_of_different_groups_and_ports_are_one_set() -> None:
    plan = [
        a(INGRESS, f"to-{n}", securityGroupId=f"sg-{n}", fromPort=n, cidrIpv4=f"{n}.0.0.0/8") for n in range(1, 4)
    ]
    (violation,) = found(*plan)
    assert violation.wrong == ("with other resources of the plan it allows 50,331,648 public addresses of IPv4")
    assert found(plan[0]) == []


def test_lists_firewalls_and_policies_count_together() -> None:
    plan = [
        a(LIST, "list", entries=[{"cidr": "8.0.0.0/9"}]),
        a(FIREWALL, "firewall", sourceRanges=["9.0.0.0/9"]),
        a(WITH_RULES, "policy", rules=[{"action": "allow", "match": {"srcIpRanges": ["11.0.0.0/24"]}}]),
    ]
    assert len(found(*plan)) == 1
    assert found(*plan[:2]) == []


def test_excepted_sources_do_not_count_with_others() -> None:
    plan = [a(INGRESS, name, cidrIpv4=cidr) for name, cidr in (("open", "0.0.0.0/0"), ("client", "9.0.0.0/8"))]
    plan.append(a(INGRESS, "other", cidrIpv4="11.0.0.0/8"))
    waived = tuple(
        PolicyException(rule=RULE.id, resource=name, owner="ann", reason="demo", until=date(2027, 1, 1))
        for name in ("open", "other")
    )
    assert found(*plan, exceptions=waived) == []
    assert {violation.resource for violation in found(*plan, exceptions=waived[:1])} == {"client"}


@pytest.mark.parametrize(
    ("value", "arn"),
    [
        pytest.param(UNKNOWN, UNKNOWN, id="before it is made"),
        pytest.param("pl-1", "arn:aws:ec2:us-east-1:111122223333:prefix-list/pl-1", id="after it was made"),
    ],
)
def test_a_prefix_list_of_the_plan_is_allowed(value: Any, arn: Any) -> None:
    made = a(LIST, "clients", entries=[{"cidr": "198.51.100.0/24"}], arn=arn)
    rule = a(INGRESS, "rule", {"prefixListId": ("urn:clients",)}, prefixListId=value)
    assert found(made, rule) == []
    other = a(INGRESS, "rule", {"prefixListId": ("urn:clients",)}, prefixListId="pl-2")
    assert found(made, other) != []


def test_values_that_a_provider_leaves_unknown_count_as_unset() -> None:
    """In a plan from the engine, every unset property is unknown."""
    unsaid = dict.fromkeys(("cidrIpv4", "cidrIpv6", "prefixListId", "ingress", "sourceRanges", "sourceTags"), UNKNOWN)
    plan = [
        a(
            INGRESS,
            "rule",
            {"referencedSecurityGroupId": ("urn:group",)},
            **unsaid,
            referencedSecurityGroupId=UNKNOWN,
        ),
        a(GROUP, "group", **unsaid),
        a(FIREWALL, "firewall", **unsaid),
    ]
    assert replace(RULE, check_resource=None).check(plan, DEV) == []
