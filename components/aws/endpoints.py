"""Policies of the VPC endpoints of an environment. They allow our identities to reach our resources, and the
downloads that machines need to boot.

A network without internet access is isolated only if its endpoints lead to our accounts alone. Otherwise a URL signed
by an unknown account, or that account's keys, could carry weights and prompts through an endpoint into that account.
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
"""Services whose endpoints accept a policy. AWS refuses a policy on the endpoint of any other service."""
_OF_OTHERS: Final = frozenset({"ec2"})
"""Services whose calls refer to resources of other accounts, such as reservations shared with ours."""
_REGISTRIES: Final = frozenset({"ecr.api", "ecr.dkr"})


def of_s3(*, region: str, account: str, bucket: str) -> str:
    """Return the policy of the S3 gateway endpoint.

    It allows our identities to access buckets of our account and the environment's bucket, which another account may
    own. It also allows reads of container image layers and of Amazon Linux packages.
    """
    ours = {"StringEquals": {"aws:PrincipalAccount": account}}
    in_ours = {"StringEquals": {"aws:PrincipalAccount": account, "aws:ResourceAccount": account}}
    whole = f"arn:aws:s3:::{bucket}"
    return _policy(
        _allowed("OurBuckets", ("s3:*",), ("*",), in_ours),
        _allowed("TheBucket", ("s3:*",), (whole, f"{whole}/*"), ours),
        # these buckets belong to AWS: ECR signs URLs with its own identity, and package downloads are anonymous
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
    """Return the policy of an interface endpoint, or None when AWS accepts no policy for this service.

    `registries` are the accounts whose container images machines run.
    """
    if service not in WITH_POLICY:
        return None
    when: dict[str, Mapping[str, str | list[str]]] = {"StringEquals": {"aws:PrincipalAccount": account}}
    if service not in _OF_OTHERS:
        owners = sorted({account, *(registries if service in _REGISTRIES else ())})
        # the key is absent in calls that name no resource
        when["StringEqualsIfExists"] = {"aws:ResourceAccount": owners}
    return _policy(_allowed("OurIdentities", ("*",), ("*",), when))


def _allowed(sid: str, actions: Sequence[str], resources: Sequence[str], when: Mapping[str, Any]) -> dict[str, Any]:
    statement = {
        "Sid": sid,
        "Effect": "Allow",
        "Principal": "*",
        "Action": list(actions),
        "Resource": list(resources),
    }
    return statement | ({"Condition": when} if when else {})


def _policy(*statements: Mapping[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, sort_keys=True)
