"""Bucket policies as S3 would judge them for a request over TLS, which the plain HTTP on loopback stands for."""

import json
from collections.abc import Mapping
from typing import Any, Final

from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.s3.models import FakeBucket

from gpufleet.domain.parsed import is_list
from localcloud.documents import inner

_SECURE: Final = "aws:SecureTransport"


class LivingBucket(FakeBucket):
    """A bucket whose policy may ask how the request travelled.

    moto takes a Deny with a condition for one without: a TLS-only bucket would refuse everybody, and an environment's
    first upload with it. The public endpoint that this one stands for is spoken to over HTTPS alone (that of a local
    endpoint never leaves the machine), so `aws:SecureTransport` is true here. Other conditions stay moto's.
    """

    def get_permission(self, action: str, resource: str) -> Any:
        """What the policy says of an action: permitted, denied, or nothing."""
        if self.policy is None:
            return PermissionResult.NEUTRAL
        return IAMPolicy(judged_over_tls(self.policy)).is_action_permitted(action, resource)


def judged_over_tls(policy: bytes | str) -> str:
    """The policy with its questions about the transport answered: a statement that needs plain HTTP falls away."""
    read = json.loads(policy)
    found = read["Statement"]
    statements = found if is_list(found) else [found]
    answered = [_answered(statement) for statement in statements]
    return json.dumps({**read, "Statement": [one for one in answered if one is not None]})


def _answered(statement: Mapping[str, Any]) -> Mapping[str, Any] | None:
    conditions = dict(inner(statement, "Condition"))
    wanted = dict(inner(conditions, "Bool"))
    if _SECURE not in wanted:
        return statement
    if str(wanted.pop(_SECURE)).lower() != "true":
        return None
    left = {name: value for name, value in (conditions | {"Bool": wanted}).items() if value}
    return {name: value for name, value in statement.items() if name != "Condition"} | (
        {"Condition": left} if left else {}
    )
