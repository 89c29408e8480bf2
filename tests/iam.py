"""A small reading of IAM: what documents that a program generated say about one call. AWS statements, and Google's
conditions on the names of objects."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Final

from tests.fakes import RecordingMocks

Statement = Mapping[str, Any]
_ON_OBJECTS: Final = {
    "roles/storage.objectViewer": {"get", "list"},
    "roles/storage.objectCreator": {"create"},
    "roles/storage.objectUser": {"get", "list", "create", "update", "delete"},
    "roles/storage.objectAdmin": {"get", "list", "create", "update", "delete", "setIamPolicy"},
}
"""The permissions `storage.objects.…` of Google's roles."""


def statements(*documents: str) -> list[Statement]:
    """The statements of policies, each given as JSON."""
    found: list[Statement] = []
    for document in documents:
        read = json.loads(document)["Statement"]
        found += read if isinstance(read, list) else [read]
    return found


def allowed(
    found: Iterable[Statement], action: str, resource: str, context: Mapping[str, Any] = MappingProxyType({})
) -> bool:
    """Whether a call is allowed: by one statement at least, and denied by none. A principal is not looked at: pass
    what a role says and what a resource's own policy denies.

    `context`: the request's keys, as `aws:PrincipalArn`. Raises AssertionError for a test that this does not know.
    """
    fitting = [one for one in found if _fits(one, action, resource, context)]
    effects = {one["Effect"] for one in fitting}
    return "Allow" in effects and "Deny" not in effects


def denied(found: Iterable[Statement], action: str, resource: str, context: Mapping[str, Any]) -> bool:
    """Whether a statement denies the call."""
    return any(one["Effect"] == "Deny" and _fits(one, action, resource, context) for one in found)


def google_allows(members: Iterable[Mapping[str, Any]], permission: str, bucket: str, name: str) -> bool:
    """Whether bindings on a bucket (`role`, `condition`) allow `storage.objects.<permission>` on an object."""
    full = f"projects/_/buckets/{bucket}/objects/{name}"
    return any(
        permission in _ON_OBJECTS[member["role"]] and _holds(member.get("condition"), full) for member in members
    )


def google_permits(declared: RecordingMocks, account: str, permission: str, name: str) -> bool:
    """Whether bindings of a program give a permission on a resource to a service account, named without its domain.

    `name`: as conditions have it (`projects/…`); of a secret: its id.
    """

    def bound(kind: str) -> list[Mapping[str, Any]]:
        found = [one.inputs for one in declared.of_type(kind)]
        return [one for one in found if str(one["member"]).startswith(f"serviceAccount:{account}@")]

    if permission.startswith("storage.objects."):
        _, _, _, bucket, key = name.split("/", 4)
        objects = bound("gcp:storage/bucketIAMMember:BucketIAMMember")
        return google_allows(objects, permission.removeprefix("storage.objects."), bucket, key.partition("/")[2])
    if permission == "secretmanager.versions.access":
        return name in [one["secretId"] for one in bound("gcp:secretmanager/secretIamMember:SecretIamMember")]
    roles = {
        f"{one.name}-3f2a": one.inputs["permissions"]
        for one in declared.of_type("gcp:projects/iAMCustomRole:IAMCustomRole")
    }
    return any(
        permission in roles[one["role"]] and _holds(one.get("condition"), name)
        for one in bound("gcp:projects/iAMMember:IAMMember")
    )


def _fits(statement: Statement, action: str, resource: str, context: Mapping[str, Any]) -> bool:
    assert not {"NotAction", "NotResource", "NotPrincipal"} & set(statement), statement
    return (
        any(fnmatchcase(action.lower(), one.lower()) for one in _listed(statement["Action"]))
        and any(fnmatchcase(resource, one) for one in _listed(statement["Resource"]))
        and all(
            _passes(operator, values, context.get(key))
            for operator, test in statement.get("Condition", {}).items()
            for key, values in test.items()
        )
    )


def _passes(operator: str, values: Any, given: Any) -> bool:
    wanted = [str(value) for value in _listed(values)]
    of_all, if_exists = operator.startswith("ForAllValues:"), operator.endswith("IfExists")
    name = operator.removeprefix("ForAllValues:").removesuffix("IfExists")
    if given == []:
        given = None
    if name == "Null":
        return (given is None) == (wanted == ["true"])
    if given is None:
        return of_all or if_exists or name in ("ArnNotLike", "StringNotEquals", "StringNotLike")
    each = [_one(name, wanted, str(value)) for value in _listed(given)]
    return all(each) if of_all else any(each)


def _one(name: str, wanted: Sequence[str], given: str) -> bool:
    match name:
        case "StringEquals" | "Bool":
            return given in wanted
        case "StringNotEquals":
            return given not in wanted
        case "StringLike" | "ArnLike" | "ArnEquals":
            return any(fnmatchcase(given, one) for one in wanted)
        case "StringNotLike" | "ArnNotLike":
            return not any(fnmatchcase(given, one) for one in wanted)
        case _:
            raise AssertionError(f"this reading of IAM does not know {name}")


def _holds(condition: Mapping[str, Any] | None, full: str) -> bool:
    return not condition or condition_holds(condition["expression"], full)


def condition_holds(expression: str, name: str, listed: str = "") -> bool:
    """Reads the conditions that we write as Google's CEL does. `name`: the whole name of a resource; `listed`: the
    beginning of the names that a list of objects asks for. Raises AssertionError for another form.
    """
    text = re.sub(
        r'resource\.name\.(startsWith|endsWith)\("([^"]*)"\)',
        lambda found: str(name.startswith(found[2]) if found[1] == "startsWith" else name.endswith(found[2])),
        expression,
    )
    text = re.sub(
        r'resource\.name\.extract\("(/[a-z]+/)\{name\}"\)\.startsWith\("([^"]*)"\)',
        lambda found: str(found[1] in name and name.partition(found[1])[2].startswith(found[2])),
        text,
    )
    text = re.sub(
        r'api\.getAttribute\("storage\.googleapis\.com/objectListPrefix", ""\)\.startsWith\("([^"]+)"\)',
        lambda found: str(listed.startswith(found[1])),
        text,
    )
    text = text.replace("&&", "and").replace("||", "or")
    assert re.fullmatch(r"(True|False|and|or|[() ])+", text), expression
    return bool(eval(text))  # noqa: S307 - of True, False, and, or alone


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
