"""Judges bucket policies as S3 does for a request over TLS. Here, plain HTTP on loopback replaces TLS."""

import json
from collections.abc import Mapping
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Any, Final

from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.s3.models import FakeBucket

from gpufleet.domain.parsed import is_list
from localcloud.addresses import ACCOUNT
from localcloud.documents import inner

_SECURE: Final = "aws:SecureTransport"
_PRINCIPAL: Final = "aws:PrincipalArn"
_ARN_TESTS: Final = {"ArnLike": True, "ArnNotLike": False}
"""Condition operators for the caller's ARN -> the result if a pattern matches."""

caller: ContextVar[str] = ContextVar("caller")
"""The ARN of the role or user whose request is being answered."""


def arn_of(principal: str) -> str:
    """The ARN of a principal as it is recorded: a machine's role and id, or the name that a user chose."""
    role, _, instance = principal.partition("/")
    return f"arn:aws:iam::{ACCOUNT}:{f'role/{role}' if instance else f'user/{role}'}"


class EmulatedBucket(FakeBucket):
    """A bucket whose policy may have conditions on the transport and the caller.

    moto takes a Deny with a condition for one without: a TLS-only bucket would refuse everybody, and an environment's
    first upload with it. Clients use the public endpoint, which this one
    emulates, over HTTPS only, so `aws:SecureTransport` is true here. `aws:PrincipalArn` is the caller. moto evaluates
    all other conditions.
    """

    def get_permission(self, action: str, resource: str) -> Any:
        """The effect of the policy on an action: permitted, denied, or none."""
        if self.policy is None:
            return PermissionResult.NEUTRAL
        return IAMPolicy(judged(self.policy, caller.get(""))).is_action_permitted(action, resource)


def judged(policy: bytes | str, asking: str) -> str:
    """The policy with its conditions on transport and caller evaluated. A statement that does not apply to this
    request is removed."""
    read = json.loads(policy)
    found = read["Statement"]
    statements = found if is_list(found) else [found]
    answered = [_answered(statement, asking) for statement in statements]
    return json.dumps({**read, "Statement": [one for one in answered if one is not None]})


def _answered(statement: Mapping[str, Any], asking: str) -> Mapping[str, Any] | None:
    conditions = {name: dict(test) for name, test in inner(statement, "Condition").items()}
    secure = conditions.get("Bool", {}).pop(_SECURE, "true")
    if str(secure).lower() != "true":
        return None
    for test, fits in _ARN_TESTS.items():
        patterns = conditions.get(test, {}).pop(_PRINCIPAL, None)
        if patterns is not None and _is_like(asking, patterns) is not fits:
            return None
    left = {name: test for name, test in conditions.items() if test}
    return {name: value for name, value in statement.items() if name != "Condition"} | (
        {"Condition": left} if left else {}
    )


def _is_like(arn: str, patterns: str | list[str]) -> bool:
    return any(fnmatchcase(arn, pattern) for pattern in ([patterns] if isinstance(patterns, str) else patterns))
