"""Denials that the policy of the environment's bucket must contain. The program writes them, and no plan may omit
them.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.iam.aws import LIST
from policies.iam.documents import Document, PolicyDocumentError, statements
from policies.iam.names import Names, matches
from policies.resource import UNKNOWN, Resource
from policies.rule import PropertyProblem

BUCKET_POLICY: Final = "aws:s3/bucketPolicy:BucketPolicy"
_PUBLIC_PRINCIPALS: Final = ("*", {"AWS": "*"}, {"AWS": ["*"]})
_OF_PUBLISHERS: Final = "{publisher}"
_ELEMENTS: Final = frozenset({"Sid", "Effect", "Principal", "Action", "Resource", "Condition"})


@lru_cache(maxsize=1)
def _needed() -> tuple[Mapping[str, Any], ...]:
    return tuple(json.loads(LIST.read_text("utf-8"))["denied"])


def missing(resource: Resource, names: Names) -> Iterator[PropertyProblem]:
    """Yield the statements of the list that a policy of the environment's bucket lacks."""
    policy, bucket = resource.at("policy"), resource.at("bucket")
    if resource.type != BUCKET_POLICY or policy is UNKNOWN or names.named("bucket") is None:
        return
    if isinstance(bucket, str) and not matches("{bucket}", bucket, names):
        return
    try:
        found = statements(Document(path="policy", kind="", text=policy or "{}"))
    except PolicyDocumentError:
        return  # another rule refuses the policy
    for needed in _needed():
        if _OF_PUBLISHERS in json.dumps(needed) and not names.named("publisher"):
            continue
        if not any(_covers(statement, needed, names) for statement in found):
            yield PropertyProblem(
                path="policy",
                value=policy,
                message=f"does not contain the denial {needed['Sid']} of policies/lists/aws_iam.json",
            )


def _covers(statement: Mapping[str, Any], needed: Mapping[str, Any], names: Names) -> bool:
    """Return whether a statement denies everything that another statement denies."""
    return (
        statement.get("Effect") == "Deny"
        and statement.get("Principal") in _PUBLIC_PRINCIPALS
        and _ELEMENTS.issuperset(statement)
        and _all_in(needed["Action"], statement.get("Action"), names)
        and _all_in(needed["Resource"], statement.get("Resource"), names)
        and _is_condition(statement.get("Condition"), needed["Condition"], names)
    )


def _is_condition(value: Any, needed: Mapping[str, Any], names: Names) -> bool:
    """Return whether a condition is true whenever another is: it has the same tests, and positive tests have at least
    the same values.
    """
    if not is_map(value) or value.keys() != needed.keys():
        return False
    for operator, tests in needed.items():
        its = value[operator]
        if not is_map(its) or its.keys() != tests.keys():
            return False
        for key, values in tests.items():
            excludes = "Not" in operator
            if not (_all_match(its[key], values, names) if excludes else _all_in(values, its[key], names)):
                return False
    return True


def _all_in(patterns: list[str], value: Any, names: Names) -> bool:
    return all(any(matches(pattern, text, names) for text in _texts(value)) for pattern in patterns)


def _all_match(value: Any, patterns: list[str], names: Names) -> bool:
    return bool(texts := _texts(value)) and all(any(matches(p, text, names) for p in patterns) for text in texts)


def _texts(value: Any) -> list[str]:
    """Return the strings of a list, or the single value. A boolean is written as IAM writes it."""
    listed: list[Any] = value if is_list(value) else [value]
    return [str(one).lower() if isinstance(one, bool) else str(one) for one in listed]
