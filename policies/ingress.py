"""The rule on inbound traffic. It combines the sources of all rules of a plan into one set of addresses."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.addresses import Network, network, public
from policies.context import Context
from policies.plan import PlanIndex
from policies.resource import SECURITY_GROUPS, UNKNOWN, Resource, known
from policies.rule import PropertyProblem, Rule, Violation

FIREWALL: Final = "gcp:compute/firewall:Firewall"
_GROUP_RULE: Final = "aws:ec2/securityGroupRule:SecurityGroupRule"
_INGRESS_RULE: Final = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
_PREFIX_LIST: Final = "aws:ec2/managedPrefixList:ManagedPrefixList"
_PREFIX_LIST_ENTRY: Final = "aws:ec2/managedPrefixListEntry:ManagedPrefixListEntry"

_INWARD: Final = (None, "", "INGRESS", UNKNOWN)
"""Values of a direction that mean inbound. A missing direction also means inbound."""
_NOT_ADMITTING: Final = ("deny", "goto_next", "mirror", "do_not_mirror")
"""Actions of firewall policy rules that allow no traffic by themselves. Every other action allows traffic, including
one that inspects it.
"""
_INSIDE: Final = ("NON_INTERNET", "INTRA_VPC", "VPC_NETWORKS")
"""Source scopes that contain no internet address."""
_OF_OTHERS: Final = {
    "srcRegionCodes": "allows all addresses of these regions; list networks instead",
    "srcThreatIntelligences": "Google can change these lists; list networks instead",
    "srcFqdns": "the owner of the name can change its addresses; list networks instead",
    "srcAddressGroups": "the addresses of the group are unknown; list networks instead",
}
"""Sources of firewall policy rules whose addresses a plan does not show."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The sources that one property allows."""

    path: str
    cidr: Any


def _malformed(resource: Resource, _: Context) -> Iterator[PropertyProblem]:
    """Check one resource alone: sources that are invalid, unknown, or too many."""
    networks: list[Network] = []
    for source in _sources(resource):
        if source.cidr is UNKNOWN:
            yield PropertyProblem(path=source.path, value=UNKNOWN, message="must be known in the preview")
        elif (found := network(source.cidr)) is None:
            yield PropertyProblem(path=source.path, value=source.cidr, message="is not a network")
        else:
            networks.append(found)
            if (alone := public([found])).too_many:
                yield PropertyProblem(path=source.path, value=source.cidr, message=f"allows {alone}")
    if not any(public([one]).too_many for one in networks) and (together := public(networks)).too_many:
        yield PropertyProblem(path="", value=None, message=f"its networks together allow {together}")
    yield from _google(resource)


def _too_many(resources: Sequence[Resource], context: Context) -> Iterator[Violation]:
    """Check the whole plan: prefix lists outside the plan, and sources that are too many in combination.

    The plan has one set of sources, because an interface has several groups and several properties refer to a group.
    """
    judged: list[tuple[Resource, set[Network]]] = []
    excepted: list[tuple[Resource, set[Network]]] = []
    lists = PlanIndex(resource for resource in resources if resource.type == _PREFIX_LIST)
    for resource in resources:
        yield from _prefix_lists(resource, lists)
        sources = {n for source in _sources(resource, known_only=True) if (n := network(source.cidr)) is not None}
        # the check of the single resource reports a set that is too large by itself
        if sources and not public(sources).too_many:
            (excepted if _RULE.excepts(resource, context) else judged).append((resource, sources))
    yield from _together(judged, excepted)


def _together(
    judged: Sequence[tuple[Resource, set[Network]]], excepted: Sequence[tuple[Resource, set[Network]]]
) -> Iterator[Violation]:
    """Check the combined sources, and report an excess at the resource with the most addresses. Resources with an
    exception do not count towards the sources of the others. They are reported if all resources together exceed the
    limit.
    """
    together = public(one for _, sources in judged for one in sources)
    with_all = public(one for _, sources in (*judged, *excepted) for one in sources)
    reported: list[Resource] = []
    if together.too_many:
        reported.append(max(judged, key=lambda one: public(one[1]).share)[0])
    if with_all.too_many:
        reported += [resource for resource, sources in excepted if public(sources).share > 0]
    wrong = PropertyProblem(
        message=f"with other resources of the plan it allows {together if together.too_many else with_all}"
    )
    yield from map(wrong.on, reported)


def _sources(resource: Resource, *, known_only: bool = False) -> Iterator[_Source]:
    """Yield every value that must be a network. `known_only` omits values that a preview does not know."""
    for source in _listed(resource):
        if source.cidr is not None and not (known_only and source.cidr is UNKNOWN):
            yield source


def _listed(resource: Resource) -> Iterator[_Source]:
    judge = _SOURCES_OF.get(resource.type)
    if judge is not None:
        yield from judge(resource)
    for path, match in _policy_matches(resource):
        yield from _elements(match.get("srcIpRanges"), f"{path}.srcIpRanges")


def _of_group(group: Resource) -> Iterator[_Source]:
    if group.at("ingress") is UNKNOWN:
        yield _Source("ingress", UNKNOWN)
    for path, rule in _maps(group.at("ingress"), "ingress"):
        yield from _of_group_rule(rule, f"{path}.")


def _of_rule(rule: Resource) -> Iterator[_Source]:
    if rule.at("type") in ("ingress", UNKNOWN):
        yield from _of_group_rule(rule.props, "")


def _of_ingress_rule(rule: Resource) -> Iterator[_Source]:
    yield from (_Source(key, rule.at(key)) for key in ("cidrIpv4", "cidrIpv6"))


def _of_prefix_list(prefix_list: Resource) -> Iterator[_Source]:
    """Yield the networks of a prefix list that a rule allows."""
    if prefix_list.at("entries") is UNKNOWN:
        yield _Source("entries", UNKNOWN)
    for path, entry in _maps(prefix_list.at("entries"), "entries"):
        yield _Source(f"{path}.cidr", entry.get("cidr"))


def _of_entry(entry: Resource) -> Iterator[_Source]:
    yield _Source("cidr", entry.at("cidr"))


def _of_firewall(firewall: Resource) -> Iterator[_Source]:
    if _lets_in(firewall):
        yield from _elements(firewall.at("sourceRanges"), "sourceRanges")


_SOURCES_OF: Final[Mapping[str, Callable[[Resource], Iterator[_Source]]]] = {
    **dict.fromkeys(SECURITY_GROUPS, _of_group),
    _GROUP_RULE: _of_rule,
    _INGRESS_RULE: _of_ingress_rule,
    _PREFIX_LIST: _of_prefix_list,
    _PREFIX_LIST_ENTRY: _of_entry,
    FIREWALL: _of_firewall,
}


def _of_group_rule(rule: Mapping[str, Any], path: str) -> Iterator[_Source]:
    for key in ("cidrBlocks", "ipv6CidrBlocks"):
        yield from _elements(rule.get(key), f"{path}{key}")


def _elements(value: Any, path: str) -> Iterator[_Source]:
    if is_list(value):
        yield from (_Source(f"{path}[{index}]", one) for index, one in enumerate(value))
    elif value is not None:
        yield _Source(path, value)


def _maps(value: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the maps of a list, with their paths."""
    for index, one in enumerate(value if is_list(value) else ()):
        if is_map(one):
            yield f"{path}[{index}]", one
        elif one is UNKNOWN:
            yield f"{path}[{index}]", _NOTHING_KNOWN


_NOTHING_KNOWN: Final[Mapping[str, Any]] = dict.fromkeys(("cidrBlocks", "cidr", "match"), UNKNOWN)


def _prefix_lists(resource: Resource, lists: PlanIndex) -> Iterator[Violation]:
    """Report prefix lists that a rule allows and the plan does not create, because others can change their
    contents.
    """
    for path, named in _named_lists(resource):
        sources = resource.depends.get(path, ())
        for value in named:
            # properties that the program does not set are unknown, too, because providers compute them
            is_set = value is not UNKNOWN or sources or _is_only_source(resource)
            if is_set and not lists.has(value, sources):
                wrong = "must name a prefix list of this plan; the networks in others are unknown"
                yield PropertyProblem(path=path, value=value, message=wrong).on(resource)


def _is_only_source(rule: Resource) -> bool:
    """Return whether a rule that requires one source has only a prefix list."""
    cidrs = any(known(rule.at(key)) for key in ("cidrIpv4", "cidrIpv6"))
    group = known(rule.at("referencedSecurityGroupId")) or rule.depends.get("referencedSecurityGroupId")
    return rule.type == _INGRESS_RULE and not cidrs and not group


def _named_lists(resource: Resource) -> Iterator[tuple[str, list[Any]]]:
    """Yield the prefix lists that a resource allows, by the property that names them."""
    if resource.type in SECURITY_GROUPS:
        yield "ingress", [i for rule in resource.each("ingress") for i in _all(rule.get("prefixListIds"))]
    elif resource.type == _GROUP_RULE and resource.at("type") in ("ingress", UNKNOWN):
        yield "prefixListIds", _all(resource.at("prefixListIds"))
    elif resource.type == _INGRESS_RULE:
        yield "prefixListId", _all(resource.at("prefixListId"))


def _all(value: Any) -> list[Any]:
    return value if is_list(value) else [] if value in (None, "") else [value]


def _google(resource: Resource) -> Iterator[PropertyProblem]:
    """Check a firewall or a firewall policy rule for public sources and for sources with unknown addresses."""
    # a list of accounts or tags with unknown members has members; an unknown list may be empty
    named = any(is_list(listed := resource.at(key)) and listed for key in _SOURCES)
    if resource.type == FIREWALL and _lets_in(resource) and not named:
        yield PropertyProblem(
            path="sourceRanges",
            value=resource.at("sourceRanges"),
            message="has no source, which allows all addresses",
        )
    for path, match in _policy_matches(resource):
        for key, message in _OF_OTHERS.items():
            if match.get(key) not in (None, []):
                yield PropertyProblem(path=f"{path}.{key}", value=match[key], message=message)
        by_others = any(match.get(key) not in (None, []) for key in _OF_OTHERS)
        named = any(
            is_list(listed := match.get(key)) and listed for key in ("srcIpRanges", "srcSecureTags", "srcNetworks")
        )
        scope = match.get("srcNetworkScope") or match.get("srcNetworkContext")
        if not named and not by_others and scope not in _INSIDE:
            yield PropertyProblem(
                path=path, value=match.get("srcIpRanges"), message="has no source, which allows all addresses"
            )


_SOURCES: Final = ("sourceRanges", "sourceTags", "sourceServiceAccounts")


def _lets_in(firewall: Resource) -> bool:
    """Return whether a Google Cloud firewall allows inbound traffic. A firewall with `denies` alone only refuses
    traffic.
    """
    refuses = is_list(firewall.at("denies")) and firewall.at("denies")
    return firewall.at("direction") in _INWARD and not (refuses and not known(firewall.at("allows")))


def _policy_matches(resource: Resource) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the match parts of firewall policy rules that allow traffic, from a separate rule resource or a whole
    policy.
    """
    if not resource.type.startswith("gcp:compute/") or not any(part in resource.type for part in _POLICIES):
        return
    rules: Iterable[tuple[str, Mapping[str, Any]]] = [
        *([("", resource.props)] if "Rule" in resource.type and "WithRules" not in resource.type else []),
        *((f"{path}.", rule) for path, rule in _maps(resource.at("rules"), "rules")),
    ]
    for path, rule in rules:
        if rule.get("action") in _NOT_ADMITTING or rule.get("direction") not in _INWARD:
            continue
        match = rule.get("match")
        if is_map(match):
            config = match.get("config")
            yield f"{path}match", config if is_map(config) else match
        else:
            yield f"{path}match", {}


_POLICIES: Final = ("FirewallPolicy", "firewallPolicy", "OrganizationSecurityPolicy")

_RULE: Final = Rule(
    id="no-open-ingress",
    reason="Scanners find an open port within minutes, and many narrow networks are as open as one wide network.",
    remedy=(
        "List the client networks in the settings. All sources of a plan together may contain 2^24 public IPv4 "
        "addresses and less than a /32 of IPv6."
    ),
    check_resource=_malformed,
    check_plan=_too_many,
    judges=(
        "sources of security groups and their rules, prefix lists, firewalls and firewall policies, separately and "
        "together; private and reserved networks, and Google's health checks and tunnels, do not count"
    ),
)
RULES: Final = (_RULE,)
