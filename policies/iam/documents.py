"""Strictly parses the AWS policy documents of a resource, and finds the managed policies that it attaches."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.resource import UNKNOWN, Resource

IDENTITY: Final = "identity"
TRUST: Final = "trust"
_TRUST_PROPERTIES: Final = frozenset({"assumeRolePolicy", "assumeRolePolicyDocument"})
_OF_IDENTITIES: Final = re.compile(r"aws[a-z-]*:(?:iam|ssoadmin|sso)[/:].+")
_ABOUT_POLICIES: Final = re.compile(r"polic(?:y|ies)", re.IGNORECASE)
_ARN_PROPERTY: Final = re.compile(r"(?:managed)?policyarns?", re.IGNORECASE)
_ALWAYS_A_DOCUMENT: Final = frozenset({"policy", "assumeRolePolicy", "policyDocument", "inlinePolicy"})


class PolicyDocumentError(ValueError):
    """A policy is ambiguous. The message is a clause that follows `the policy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One policy document."""

    path: str
    """The property that contains it."""
    kind: str
    """`identity`, `trust`, or the resource to which it is attached, such as `aws:sqs/queue`."""
    text: Any


def documents(resource: Resource) -> Iterator[Document]:
    """Yield every policy document of an AWS resource, in any property. The text is UNKNOWN until `up` knows it."""
    for path, key, value in _about_policies(resource.props, ""):
        if value is UNKNOWN and key in (*_ALWAYS_A_DOCUMENT, "inlinePolicies"):
            yield Document(path=path, kind=_kind(resource.type, key), text=value)
            continue
        # the state has an empty string where a resource has no policy
        text = value.strip("\ufeff \t\r\n") if isinstance(value, str) else ""
        is_text = text != "" and (key in _ALWAYS_A_DOCUMENT or text.startswith("{"))
        if is_text or (is_map(value) and _has_statements(value)):
            yield Document(path=path, kind=_kind(resource.type, key), text=value)


def attached(resource: Resource) -> Iterator[tuple[str, Any]]:
    """Yield property and ARN of every managed policy that an AWS resource attaches. UNKNOWN stands for an unknown
    ARN.
    """
    for path, key, value in _about_policies(resource.props, ""):
        if _ARN_PROPERTY.fullmatch(key) and value is not None:
            yield path, value


def _about_policies(value: Any, path: str, key: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield path, key and value of everything in or below a property whose name mentions policies. Lists themselves
    are omitted.
    """
    if is_map(value) and not _has_statements(value):
        for name, item in value.items():
            below = f"{path}.{name}" if path else str(name)
            yield from _about_policies(item, below, _key(str(name), key))
    elif is_list(value):
        for index, item in enumerate(value):
            yield from _about_policies(item, f"{path}[{index}]", key)
        return
    if _ABOUT_POLICIES.search(key):
        yield path, key, value


def _key(name: str, above: str) -> str:
    """Return a property's own name, or its parent's name if the own name does not mention policies."""
    return name if _ABOUT_POLICIES.search(name) else above


def _kind(type_: str, key: str) -> str:
    if key in _TRUST_PROPERTIES:
        return TRUST
    if _OF_IDENTITIES.fullmatch(type_):
        return IDENTITY
    # a queue's policy has the same kind, whether it is a property of the queue or a separate resource
    return type_.rpartition(":")[0].removesuffix("Policy")


def statements(document: Document) -> list[Mapping[str, Any]]:
    """Return the statements of a document. Raises PolicyDocumentError if any part is ambiguous."""
    found = _parsed(document.text) if isinstance(document.text, str) else document.text
    if not is_map(found):
        raise PolicyDocumentError("is not a JSON object")
    if not _has_statements(found):
        return []  # the document is not a policy, for example lifecycle rules for images, and grants nothing
    if strange := sorted(set(map(str, found)) - {"Version", "Id", "Statement"}):
        raise PolicyDocumentError(f"has {', '.join(strange)}, which is not an element of a policy")
    value = found.get("Statement")
    every: list[Any] = value if is_list(value) else [value]
    listed = [one for one in every if is_map(one)]
    if len(listed) < len(every):
        raise PolicyDocumentError("has a Statement that is not a map or a list of maps")
    return listed


def _has_statements(value: Mapping[str, Any]) -> bool:
    return any(str(key).lower() == "statement" for key in value)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except PolicyDocumentError:
        raise
    except (ValueError, RecursionError) as error:
        raise PolicyDocumentError("is not JSON") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a map whose keys differ in more than case, because parsers disagree on which duplicate applies."""
    found: dict[str, Any] = {}
    seen: set[str] = set()
    for key, value in pairs:
        if key.lower() in seen:
            raise PolicyDocumentError(f"names {key} twice")
        seen.add(key.lower())
        found[key] = value
    return found
