"""Compares the roles that a plan grants on Google Cloud with the list of roles that the program grants."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.iam.google_roles import gives_more, known
from policies.iam.names import Names, filled, fits, matches
from policies.resource import UNKNOWN, Resource
from policies.rule import PropertyProblem

LIST: Final = Path(__file__).parents[1] / "lists" / "google_iam.json"
CUSTOM_ROLE: Final = "gcp:projects/iAMCustomRole:IAMCustomRole"
_CUSTOM_ROLES: Final = re.compile(r"gcp:\w+/iAMCustomRole:\w+")
_GIVES: Final = re.compile(r"gcp:(\w+)/(\w*?)[iI](?:AM|am)(Member|Binding|Policy):\w+")
_PUBLIC_PRINCIPALS: Final = ("allusers", "allauthenticatedusers")
_GROUPS: Final = ("projectowner:", "projecteditor:", "projectviewer:")
_PER_RESOURCE: Final = frozenset({"role", "member", "condition"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One role, granted to one member."""

    path: str
    """The property that names the member."""
    role: Any
    member: Any
    condition: Any


@lru_cache(maxsize=1)
def listed() -> Mapping[str, Any]:
    """Return the list: `bindings` by the kind of resource, `custom_roles` by id."""
    return json.loads(LIST.read_text("utf-8"))


@lru_cache(maxsize=1)
def members() -> frozenset[str]:
    """Return patterns of the members to which roles are granted."""
    return frozenset(entry["member"] for entries in listed()["bindings"].values() for entry in entries)


def place(type_: str) -> str | None:
    """Return the kind of resource on which a type grants roles, as in the list: `storage/bucket`, `projects/`. None:
    it grants none.
    """
    found = _GIVES.fullmatch(type_)
    return f"{found[1]}/{found[2]}" if found else None


def judged(resource: Resource, names: Names) -> Iterator[PropertyProblem]:
    """Yield what a Google Cloud resource allows beyond the list."""
    if _CUSTOM_ROLES.fullmatch(resource.type):
        yield from _of_custom_role(resource, names)
    elif (where := place(resource.type)) is not None:
        yield from _of_policy_data(resource)
        for binding in bindings(resource):
            if wrong := _why_unlisted(binding, resource, listed()["bindings"].get(where, ()), names):
                yield PropertyProblem(path=binding.path, value=binding.member, message=wrong)
    else:
        yield from _open_to_all(resource.props, "")


def bindings(resource: Resource) -> Iterator[Binding]:
    """Yield every role that a resource grants, with its member."""
    props = resource.props
    if resource.at("member") is not None:
        yield Binding(path="member", role=props.get("role"), member=props["member"], condition=props.get("condition"))
    yield from _members(props, "")
    data = _policy_data(resource)
    for index, binding in enumerate(_listed(data.get("bindings")) if is_map(data) else ()):
        if is_map(binding):
            yield from _members(binding, f"policyData.bindings[{index}].")


def _members(binding: Mapping[str, Any], path: str) -> Iterator[Binding]:
    members = binding.get("members")
    for index, member in enumerate(_listed(members)):
        at = f"{path}members[{index}]" if is_list(members) else f"{path}members"
        yield Binding(path=at, role=binding.get("role"), member=member, condition=binding.get("condition"))


def _policy_data(resource: Resource) -> Any:
    data = resource.at("policyData")
    if not isinstance(data, str):
        return data
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _of_policy_data(resource: Resource) -> Iterator[PropertyProblem]:
    data = resource.at("policyData")
    if isinstance(data, str) and not is_map(_policy_data(resource)):
        yield PropertyProblem(path="policyData", value=data, message="is not a JSON object")


def _of_custom_role(role: Resource, names: Names) -> Iterator[PropertyProblem]:
    name, permissions = role.at("roleId"), _listed(role.at("permissions"))
    ours = role.type == CUSTOM_ROLE
    roles = [
        frozenset(allowed)
        for pattern, allowed in listed()["custom_roles"].items()
        if ours and (name is UNKNOWN or (isinstance(name, str) and matches(pattern, name, names)))
    ]
    if not roles:
        dangerous = [p for p in permissions if gives_more(p)]
        holds = f"; it contains {', '.join(dangerous)}" if dangerous else ""
        message = f"is not a custom role in policies/lists/google_iam.json{holds}"
        yield PropertyProblem(path="roleId", value=name, message=message)
        return
    project = role.at("project")
    if project not in (None, UNKNOWN) and not matches("{project}", str(project), names):
        yield PropertyProblem(path="project", value=project, message="is not the project of the environment")
    allowed = frozenset[str]().union(*roles)
    for index, permission in enumerate(permissions):
        if permission is not UNKNOWN and permission not in allowed:
            message = "is not a permission of this role in policies/lists/google_iam.json"
            yield PropertyProblem(path=f"permissions[{index}]", value=permission, message=message)


def _why_unlisted(binding: Binding, resource: Resource, entries: list[Mapping[str, str]], names: Names) -> str | None:
    """Return why a binding is not in the list, or None if it is."""
    fitting = [e for e in entries if _is_on(e, resource, names) and _is_for(e, binding, resource, names)]
    of_role = [e for e in fitting if binding.role is UNKNOWN or matches(e["role"], str(binding.role), names)]
    if any(_is_limited(e, binding.condition, names) for e in of_role):
        return None
    if wrong := _foreign_member(binding.member, names):
        return f"{wrong}; it would have {binding.role}{known(binding.role)}"
    if of_role:
        needed = filled(of_role[0].get("condition", ""), names)
        return f"has {binding.role} without the condition {needed}"
    return f"has {binding.role}, which the list does not grant it here{known(binding.role)}"


def _is_on(entry: Mapping[str, str], resource: Resource, names: Names) -> bool:
    """Return whether an entry concerns the same bucket, project or secret."""
    for key in entry.keys() - _PER_RESOURCE:
        value = resource.at(key)
        if value is not UNKNOWN and not (isinstance(value, str) and matches(entry[key], value, names)):
            return False
    return True


def _is_for(entry: Mapping[str, str], binding: Binding, resource: Resource, names: Names) -> bool:
    if binding.member is not UNKNOWN:
        return isinstance(binding.member, str) and matches(entry["member"], binding.member, names)
    # A preview does not know the email address. The program names a binding after the account, and `up` compares the
    # email address
    account = entry["member"].removeprefix("serviceAccount:").partition("@")[0]
    return fits(f"{account}*", resource.name, names)


def _is_limited(entry: Mapping[str, str], condition: Any, names: Names) -> bool:
    """Return whether a binding is at least as restricted as its entry."""
    needed = entry.get("condition")
    if needed is None or condition is UNKNOWN:
        return True  # a condition only restricts
    expression = condition.get("expression") if is_map(condition) else None
    return expression is UNKNOWN or (isinstance(expression, str) and matches(needed, expression, names))


def _foreign_member(member: Any, names: Names) -> str | None:
    """Return why a member is not an account of the environment's project. None: it is one, or it is not known yet."""
    if member is UNKNOWN:
        return None
    text = str(member).lower().removeprefix("deleted:")
    if text in _PUBLIC_PRINCIPALS:
        return "is the public"
    if text.startswith("domain:"):
        return "is every user of a domain"
    if text.startswith("principalset:"):
        return "is a set of identities, or a whole identity pool"
    if text.startswith(_GROUPS):
        return "is every user with a basic role in a project"
    if not text.startswith("serviceaccount:"):
        return "is not a service account"
    if not matches("serviceAccount:{word}@{project}.iam.gserviceaccount.com", str(member), names):
        return "is not a service account of the environment's project"
    return None


def _open_to_all(value: Any, path: str) -> Iterator[PropertyProblem]:
    """Yield public members (all users) in access lists, in any property."""
    if is_map(value):
        for key, item in value.items():
            yield from _open_to_all(item, f"{path}.{key}" if path else str(key))
    elif is_list(value):
        for index, item in enumerate(value):
            yield from _open_to_all(item, f"{path}[{index}]")
    elif isinstance(value, str) and value.lower().rpartition(":")[2] in _PUBLIC_PRINCIPALS:
        yield PropertyProblem(path=path, value=value, message="gives access to the public")


def _listed(value: Any) -> list[Any]:
    return value if is_list(value) else [] if value is None else [value]
