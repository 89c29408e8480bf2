"""What may pass the endpoints of an environment's network: our identities to our things, and what machines boot with.

A network without a way out is one only if its endpoints lead to our accounts alone: a URL that a stranger signed, or
a stranger's keys, would carry weights and prompts through them into the stranger's account.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

WITH_POLICY: Final = frozenset(
    {
        "autoscaling", "ec2", "ec2messages", "ecr.api", "ecr.dkr", "elasticloadbalancing", "events", "kms", "logs",
        "monitoring", "secretsmanager", "servicequotas", "sqs", "ssm", "ssmmessages", "sts",
    }
)  # fmt: skip
"""Services whose endpoints take a policy. AWS refuses one on an endpoint of any other."""
_OF_OTHERS: Final = frozenset({"ec2"})
"""Services whose calls name things of other accounts: reservations that are shared with ours."""
_REGISTRIES: Final = frozenset({"ecr.api", "ecr.dkr"})


def of_s3(*, region: str, account: str, bucket: str) -> str:
    """The policy of the gateway to S3: our identities, to buckets of our account and the environment's bucket, which
    somebody else may own; besides, layers of container images and packages of Amazon Linux are read."""
    ours = {"StringEquals": {"aws:PrincipalAccount": account}}
    in_ours = {"StringEquals": {"aws:PrincipalAccount": account, "aws:ResourceAccount": account}}
    whole = f"arn:aws:s3:::{bucket}"
    return _policy(
        _allowed("OurBuckets", ("s3:*",), ("*",), in_ours),
        _allowed("TheBucket", ("s3:*",), (whole, f"{whole}/*"), ours),
        # these are AWS's own buckets: ECR signs URLs with an identity of its own, and packages are read without one
        _allowed(
            "ImageLayersAndPackages",
            ("s3:GetObject",),
            (
                f"arn:aws:s3:::prod-{region}-starport-layer-bucket/*",
                f"arn:aws:s3:::al2023-repos-{region}-de612dc2/*",
            ),
            {},
        ),
    )


def of_service(service: str, *, account: str, registries: Sequence[str] = ()) -> str | None:
    """The policy of an interface endpoint; None: AWS takes none there.

    `registries`: accounts whose container images machines run.
    """
    if service not in WITH_POLICY:
        return None
    when: dict[str, Mapping[str, str | list[str]]] = {"StringEquals": {"aws:PrincipalAccount": account}}
    if service not in _OF_OTHERS:
        owners = sorted({account, *(registries if service in _REGISTRIES else ())})
        # calls that name nothing have no such key
        when["StringEqualsIfExists"] = {"aws:ResourceAccount": owners}
    return _policy(_allowed("OurIdentities", ("*",), ("*",), when))


def _allowed(sid: str, actions: Sequence[str], resources: Sequence[str], when: Mapping[str, Any]) -> dict[str, Any]:
    said = {"Sid": sid, "Effect": "Allow", "Principal": "*", "Action": list(actions), "Resource": list(resources)}
    return said | ({"Condition": when} if when else {})


def _policy(*statements: Mapping[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, sort_keys=True)
