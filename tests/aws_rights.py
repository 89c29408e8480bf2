"""A small reading of IAM's policies: Allow, resources with wildcards, and the condition operators that we write."""

import fnmatch
import json
from collections.abc import Mapping, Sequence
from typing import Any


def statements(document: str) -> list[dict[str, Any]]:
    """Those of a policy document."""
    return json.loads(document)["Statement"]


def may(
    rights: Sequence[Mapping[str, Any]],
    action: str,
    resource: str,
    context: Mapping[str, str | Sequence[str]] | None = None,
) -> bool:
    """Whether a policy allows the call on that resource, with these condition keys in the request."""
    return any(_allows(one, action, resource, context or {}) for one in rights)


def _allows(
    statement: Mapping[str, Any], action: str, resource: str, context: Mapping[str, str | Sequence[str]]
) -> bool:
    assert statement["Effect"] == "Allow"
    return (
        any(fnmatch.fnmatchcase(action, pattern) for pattern in statement["Action"])
        and any(fnmatch.fnmatchcase(resource, pattern) for pattern in statement["Resource"])
        and all(
            _holds(operator, wanted, context.get(key))
            for operator, test in statement.get("Condition", {}).items()
            for key, wanted in test.items()
        )
    )


def _holds(operator: str, wanted: str | Sequence[str], found: str | Sequence[str] | None) -> bool:
    if operator == "Null":
        return (found is None or found == []) is (wanted == "true")
    patterns = [wanted] if isinstance(wanted, str) else wanted
    values = [] if found is None else [found] if isinstance(found, str) else list(found)
    kind = operator.removeprefix("ForAllValues:").removeprefix("ForAnyValue:").removesuffix("IfExists")
    assert kind in ("StringEquals", "StringLike"), operator
    matches = [
        any(value == one if kind == "StringEquals" else fnmatch.fnmatchcase(value, one) for one in patterns)
        for value in values
    ]
    if not values:
        return operator.endswith("IfExists") or operator.startswith("ForAllValues:")
    return all(matches) if operator.startswith("ForAllValues:") else any(matches)
