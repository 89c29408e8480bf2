"""Compares AWS policy statements with the list of statements that the program writes. Other statements are
refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.iam import actions
from policies.iam.documents import IDENTITY, TRUST, Document, PolicyDocumentError, attached, documents, statements
from policies.iam.names import Names, filled, fits, matches
from policies.resource import ROLE, UNKNOWN, Resource
from policies.rule import PropertyProblem

LIST: Final = Path(__file__).parents[1] / "lists" / "aws_iam.json"
ENDPOINT: Final = "aws:ec2/vpcEndpoint:VpcEndpoint"
_ELEMENTS: Final = frozenset({"Sid", "Effect", "Principal", "Action", "Resource", "Condition"})
_EXCLUDING: Final = ("NotAction", "NotResource", "NotPrincipal")
_ROLE_POLICY: Final = "aws:iam/rolePolicy:RolePolicy"
_NAMES_OF_KINDS: Final = {IDENTITY: "policies of this role", TRUST: "trust policies"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedAction:
    """One action on one resource that the program allows, with the conditions that the program always sets."""

    action: str
    resource: str = ""
    """A pattern (see `names.fits`). Empty in trust policies."""
    principal: tuple[tuple[str, str], ...] = ()
    """Kind and pattern of each allowed principal. Empty in identity policies. `*` alone has the kind ``."""
    condition: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Operator, key and values of each condition."""
    service: str = ""
    """Pattern of the service of the endpoint to which the policy is attached."""
    role: str = ""
    """Pattern of the name of the role that has the identity policy."""


@lru_cache(maxsize=1)
def listed() -> Mapping[str, tuple[AllowedAction, ...]]:
    """Return the list: kind of document to its entries."""
    found: Mapping[str, Any] = json.loads(LIST.read_text("utf-8"))
    return {kind: tuple(map(_entry, entries)) for kind, entries in found["documents"].items()}


@lru_cache(maxsize=1)
def managed() -> frozenset[str]:
    """Return the ARNs of the managed policies that the program attaches."""
    return frozenset(json.loads(LIST.read_text("utf-8"))["managed"])


@lru_cache(maxsize=1)
def unknown() -> Mapping[str, list[str]]:
    """Return documents that only `up` knows: type and property to patterns of the resources' names."""
    return json.loads(LIST.read_text("utf-8"))["unknown"]


@lru_cache(maxsize=1)
def roles() -> frozenset[str]:
    """Return patterns of the names of the roles that have permissions."""
    return frozenset(entry.role for entry in listed()[IDENTITY])


def _entry(raw: Mapping[str, Any]) -> AllowedAction:
    return AllowedAction(
        action=raw["action"],
        resource=raw.get("resource", ""),
        principal=principals(raw.get("principal")),
        condition=tuple(
            (operator, key, tuple(values))
            for operator, tests in raw.get("condition", {}).items()
            for key, values in tests.items()
        ),
        service=raw.get("service", ""),
        role=raw.get("role", ""),
    )


def principals(value: Any) -> tuple[tuple[str, str], ...]:
    """Return kind and name of each principal of a statement. The kind of `*` alone is empty."""
    if value is None:
        return ()
    if not is_map(value):
        return tuple(("", str(name)) for name in _texts(value))
    return tuple((str(kind), str(name)) for kind, names in value.items() for name in _texts(names))


def judged(resource: Resource, names: Names) -> Iterator[PropertyProblem]:
    """Yield what an AWS resource allows beyond the list."""
    for document in documents(resource):
        yield from _of_document(document, resource, names)
    for path, arn in attached(resource):
        if arn is UNKNOWN or arn not in managed():
            yield PropertyProblem(
                path=path,
                value=arn,
                message="is not a managed policy in policies/lists/aws_iam.json; write its statements inline",
            )
    if resource.type == ENDPOINT:
        yield from _without_policy(resource, names)


def _of_document(document: Document, resource: Resource, names: Names) -> Iterator[PropertyProblem]:
    if document.text is UNKNOWN:
        known_later = unknown().get(f"{resource.type}.{document.path}", ())
        if not any(matches(pattern, resource.name, names) for pattern in known_later):
            wrong = "must be known in the preview; write ARNs as text, and do not take them from resources"
            yield PropertyProblem(path=document.path, value=UNKNOWN, message=wrong)
        return
    try:
        found = statements(document)
    except PolicyDocumentError as error:
        yield PropertyProblem(path=document.path, value=document.text, message=str(error))
        return
    if resource.type == ENDPOINT and _is_default(found):
        return
    entries = [e for e in listed().get(document.kind, ()) if _is_about(e, resource, names)]
    for index, statement in enumerate(found):
        path = f"{document.path}.Statement[{index}]"
        for value, wrong in _of_statement(statement, document.kind, entries, names):
            yield PropertyProblem(path=path, value=value, message=wrong)


def _of_statement(
    statement: Mapping[str, Any], kind: str, entries: Sequence[AllowedAction], names: Names
) -> Iterator[tuple[Any, str]]:
    """Yield values of a statement, each with its error."""
    effect = statement.get("Effect")
    if effect == "Deny":
        return
    if effect != "Allow":
        yield effect, "has an Effect that is neither Allow nor Deny"
        return
    if excluding := [name for name in _EXCLUDING if name in statement]:
        yield statement[excluding[0]], f"allows everything except what {excluding[0]} names; list what is allowed"
        return
    if strange := sorted(set(map(str, statement)) - _ELEMENTS):
        yield strange, "is not an element of a statement"
        return
    try:
        asked = _ParsedStatement.of(statement, kind)
    except PolicyDocumentError as error:
        yield dict(statement), str(error)
        return
    for action in asked.actions:
        if wrong := _why_unlisted(action, asked, kind, entries, names):
            yield action, wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParsedStatement:
    """What a statement allows, with each part as a tuple."""

    actions: tuple[str, ...]
    resources: tuple[str, ...]
    """One empty string in trust policies."""
    principal: tuple[tuple[str, str], ...]
    condition: Mapping[tuple[str, str], tuple[str, ...]]
    """Values by operator and key. Keys are in lower case."""

    @classmethod
    def of(cls, statement: Mapping[str, Any], kind: str) -> "_ParsedStatement":
        """Raises PolicyDocumentError for a statement that lacks a required part or has a part that its kind does not
        allow.
        """
        wanted = {"Action", *(() if kind == TRUST else ("Resource",)), *(() if kind == IDENTITY else ("Principal",))}
        for name in ("Action", "Resource", "Principal"):
            value = statement.get(name)
            if name in wanted and not (principals(value) if name == "Principal" else _texts(value)):
                raise PolicyDocumentError(f"has no {name}")
            if name not in wanted and name in statement:
                raise PolicyDocumentError(f"has a {name}, which does not belong in policies of its kind")
        return cls(
            actions=_texts(statement["Action"]),
            resources=_texts(statement.get("Resource", "")),
            principal=principals(statement.get("Principal")),
            condition=_conditions(statement.get("Condition", {})),
        )


def _texts(value: Any) -> tuple[str, ...]:
    """Return the strings of a list, or the single string. Raises PolicyDocumentError for other values."""
    texts: list[Any] = value if is_list(value) else [] if value is None else [value]
    for one in texts:
        if not isinstance(one, str):
            raise PolicyDocumentError(f"has {one!r} where a string is expected")
    return tuple(texts)


def _conditions(condition: Any) -> dict[tuple[str, str], tuple[str, ...]]:
    if not is_map(condition) or not all(map(is_map, condition.values())):
        raise PolicyDocumentError("has a Condition that is not a map of maps")
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for operator, tests in condition.items():
        for key, values in tests.items():
            many: list[Any] = values if is_list(values) else [values]
            found[str(operator), str(key).lower()] = tuple(
                str(v).lower() if isinstance(v, bool) else str(v) for v in many
            )
    return found


def _why_unlisted(
    action: str, asked: _ParsedStatement, kind: str, entries: Sequence[AllowedAction], names: Names
) -> str | None:
    """Return why the list does not cover an action of a statement, or None if it covers the action on each resource
    for each principal.
    """
    of_action = [e for e in entries if action.isascii() and e.action.lower() == action.lower()]
    whose = _NAMES_OF_KINDS.get(kind, f"policies of {kind}")
    if not of_action:
        return _unlisted(action, entries, whose)
    for principal in asked.principal:
        of_action = [e for e in of_action if _is_named(principal, e, names)]
        if not of_action:
            return f"is for {': '.join(filter(None, principal))}, for which the list allows nothing in {whose}"
    for resource in asked.resources:
        there = [e for e in of_action if not e.resource or fits(e.resource, resource, names)]
        if not there:
            return _why_not_on_resource(action, resource, of_action, names)
        lacks = [lack for e in there if (lack := _missing_condition(e, asked, names)) is not None]
        if len(lacks) == len(there):
            on = f" on {resource}" if resource else ""
            return f"is allowed{on} without the condition {min(lacks, key=len)}"
    return None


def _is_named(principal: tuple[str, str], entry: AllowedAction, names: Names) -> bool:
    kind, name = principal
    return any(kind == k and matches(pattern, name, names) for k, pattern in entry.principal)


def _unlisted(action: str, entries: Sequence[AllowedAction], whose: str) -> str:
    if "*" not in action and "?" not in action:
        return f"is not an action that the list allows in {whose}{_limits(action)}"
    known = {entry.action.lower() for entry in entries}
    matched = actions.expanded(action)
    beyond = [name for name in matched if name.lower() not in known]
    if not matched:
        return f"has a wildcard, which the list does not have in {whose}; list the actions"
    if not beyond:
        # AWS adds actions over time, and the wildcard would allow them without review
        return f"matches {len(matched)} actions, and those that AWS adds later; list the actions"
    return f"matches {len(matched)} actions, of which {len(beyond)} are not in the list: {actions.some(beyond)}"


def _limits(action: str) -> str:
    known = actions.expanded(action)
    formats = actions.resource_formats(known[0]) if len(known) == 1 else ()
    return f"; it can be limited to {actions.some(formats)}" if formats else ""


def _why_not_on_resource(action: str, resource: str, entries: Sequence[AllowedAction], names: Names) -> str:
    allowed = sorted({filled(e.resource, names) for e in entries})
    return f"is allowed on {resource}; the list allows it on {actions.some(allowed)}{_limits(action)}"


def _missing_condition(entry: AllowedAction, asked: _ParsedStatement, names: Names) -> str | None:
    """Return the first condition of an entry that a statement does not set at least as strictly, or None if it sets
    all.
    """
    for operator, key, values in entry.condition:
        if not any(
            its_values and all(any(matches(v, one, names) for v in values) for one in its_values)
            for (its, its_key), its_values in asked.condition.items()
            if its == operator and matches(key, its_key, names, of_any_case=True)
        ):
            return f"{operator} {filled(key, names)}: {', '.join(filled(v, names) for v in values)}"
    return None


def _is_about(entry: AllowedAction, resource: Resource, names: Names) -> bool:
    if entry.service:
        return _is_of(entry.service, resource, names)
    return not entry.role or _is_role(entry.role, resource, names)


def _is_role(pattern: str, resource: Resource, names: Names) -> bool:
    """Return whether a policy belongs to that role. A preview does not know names that Pulumi generates, but the
    program gives role and policy the same resource name. `up` compares the role's name.
    """
    if resource.type not in (ROLE, _ROLE_POLICY):
        return False
    name = resource.at("name" if resource.type == ROLE else "role")
    if isinstance(name, str):
        return matches(pattern, name, names)
    return matches(pattern.removesuffix("-{suffix}"), resource.name, names)


def _is_of(service: str, endpoint: Resource, names: Names) -> bool:
    name = endpoint.at("serviceName")
    return name is UNKNOWN or (isinstance(name, str) and matches(service, name, names))


def _is_default(found: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether this is the policy that AWS sets on an endpoint without a policy: it allows everything."""
    return [dict(one) for one in found] == [{"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}]


def _without_policy(endpoint: Resource, names: Names) -> Iterator[PropertyProblem]:
    """Report an endpoint without a policy, because it allows all access. The program omits the policy where AWS
    accepts none.
    """
    policy = endpoint.at("policy")
    if policy is UNKNOWN or (policy not in (None, "") and not _allows_all(policy)):
        return
    ours = [e for e in listed().get("aws:ec2/vpcEndpoint", ()) if _is_of(e.service, endpoint, names)]
    service = endpoint.at("serviceName")
    if str(service).endswith(".s3") and names.has_internet_route:
        return  # with a NAT gateway to the internet, the policy would isolate nothing
    if ours or not _is_of("com.amazonaws.{region}.{service}", endpoint, names):
        yield PropertyProblem(
            path="policy", value=policy, message=f"allows all principals to use {service}; name those that may"
        )


def _allows_all(policy: Any) -> bool:
    try:
        return _is_default(statements(Document(path="policy", kind="", text=policy)))
    except PolicyDocumentError:
        return False
