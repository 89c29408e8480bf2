"""The identity with which a machine runs: instance profiles on AWS, service accounts on Google Cloud.

Other rules check the permissions of the program's own identities; other identities may have any permissions. Names
that a preview does not know come from the plan, and `up` compares them.
"""

from collections.abc import Iterator
from typing import Any, Final

from gpufleet.domain.parsed import is_list, is_map
from policies.context import Context
from policies.iam import aws, google
from policies.iam.names import Names, matches
from policies.resource import PROFILE, Resource
from policies.resource_types import is_excepted
from policies.rule import PropertyProblem

_PROFILE_ARN: Final = "arn:aws:iam::{account}:instance-profile/"
_ROLES: Final = ("roleArn", "iamRole", "iamRoleArn", "executionRoleArn")
_ACCOUNTS: Final = ("serviceAccount", "serviceAccounts")


def judged(resource: Resource, context: Context, names: Names) -> Iterator[PropertyProblem]:
    """Yield machines that run with an identity that the program does not create. Yield nothing without settings,
    which name the identities.
    """
    # an excepted machine, such as a bastion, has its own permissions, which its owner has reviewed
    if names.named("account") is None or is_excepted(resource, context):
        return
    if resource.type == PROFILE:
        if isinstance(role := resource.at("role"), str) and not _is_role(role, names):
            yield PropertyProblem(path="role", value=role, message="is not a role in policies/lists/aws_iam.json")
    elif resource.type.startswith("aws:"):
        yield from _of_aws(resource.props, "", names)
    elif resource.type.startswith("gcp:compute/"):
        yield from _accounts(resource, names)


def _of_aws(value: Any, path: str, names: Names) -> Iterator[PropertyProblem]:
    """Check profiles and roles in or below a property."""
    if is_list(value):
        for index, item in enumerate(value):
            yield from _of_aws(item, f"{path}[{index}]", names)
    elif is_map(value):
        for key, item in value.items():
            yield from _of_property(str(key), item, f"{path}.{key}" if path else str(key), names)


def _of_property(key: str, value: Any, path: str, names: Names) -> Iterator[PropertyProblem]:
    if key in _ROLES:
        if value not in (None, ""):
            yield PropertyProblem(
                path=path,
                value=value,
                message="gives a service the permissions of a role, which the program never does",
            )
    elif key.startswith("iamInstanceProfile"):
        named = {f"{path}.{part}": value.get(part) for part in ("arn", "name")} if is_map(value) else {path: value}
        for at, name in named.items():
            if isinstance(name, str) and name and not _is_profile(name, names):
                message = "is not the profile of a role in policies/lists/aws_iam.json"
                yield PropertyProblem(path=at, value=name, message=message)
    else:
        yield from _of_aws(value, path, names)


def _accounts(resource: Resource, names: Names) -> Iterator[PropertyProblem]:
    for key in _ACCOUNTS:
        for account in resource.each(key):
            email = account.get("email")
            if isinstance(email, str) and not _is_account(email, names):
                message = "is not a service account in policies/lists/google_iam.json"
                yield PropertyProblem(path=f"{key}.email", value=email, message=message)


def _is_role(name: str, names: Names) -> bool:
    return any(matches(pattern, name, names) for pattern in aws.roles())


def _is_profile(name: str, names: Names) -> bool:
    """Return whether this is a profile of the program. Profiles have the names of their roles."""
    return any(matches(f"{prefix}{pattern}", name, names) for pattern in aws.roles() for prefix in ("", _PROFILE_ARN))


def _is_account(email: str, names: Names) -> bool:
    return any(matches(member, f"serviceAccount:{email}", names) for member in google.members())
