"""Bucket policies of the embedded cloud: a TLS-only bucket accepts requests over loopback, a plain Deny denies."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError
from localcloud.addresses import ACCESS_KEY, ACCOUNT
from localcloud.aws.bucket_policy import arn_of

from tests.fixtures.clouds.emulator import RunningCloud

TLS_ONLY = {"Condition": {"Bool": {"aws:SecureTransport": "false"}}}
PLAIN_ONLY = {"Condition": {"Bool": {"aws:SecureTransport": "true"}}}
ME = f"arn:aws:iam::{ACCOUNT}:user/{ACCESS_KEY}"
MACHINES = f"arn:aws:iam::{ACCOUNT}:role/gpu-fleet-*"


@pytest.mark.parametrize(
    ("more", "as_list", "allowed"),
    [
        pytest.param(TLS_ONLY, True, True, id="plain HTTP is denied: this stands for HTTPS"),
        pytest.param(TLS_ONLY, False, True, id="a single statement"),
        pytest.param(PLAIN_ONLY, True, False, id="HTTPS is denied"),
        pytest.param({}, True, False, id="everybody is denied"),
        pytest.param({"Condition": {"ArnLike": {"aws:PrincipalArn": [ME, MACHINES]}}}, True, False, id="I am denied"),
        pytest.param(
            {"Condition": {"ArnLike": {"aws:PrincipalArn": [MACHINES]}}}, True, True, id="others are denied"
        ),
        pytest.param({"Condition": {"ArnNotLike": {"aws:PrincipalArn": ME}}}, True, True, id="all but me are denied"),
        pytest.param({"Condition": {"ArnNotLike": {"aws:PrincipalArn": MACHINES}}}, True, False, id="all but others"),
    ],
)
def test_bucket_policy_decides_on_requests_over_loopback(
    cloud: RunningCloud, more: Mapping[str, Any], as_list: bool, allowed: bool
) -> None:
    s3: Any = cloud.client("s3")
    bucket = f"policy-{uuid4().hex}"
    s3.create_bucket(Bucket=bucket)
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": f"arn:aws:s3:::{bucket}/*", **more}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [deny] if as_list else deny})
    s3.put_bucket_policy(Bucket=bucket, Policy=policy)
    if allowed:
        s3.put_object(Bucket=bucket, Key="k", Body=b"x")
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x"
    else:
        with pytest.raises(ClientError, match="403"):
            s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    assert json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"]) == json.loads(policy), "read back as written"


def test_machine_calls_as_its_role_and_a_person_as_a_user() -> None:
    assert (
        arn_of("gpu-fleet-prod-control-1a2b3c4/i-0123")
        == f"arn:aws:iam::{ACCOUNT}:role/gpu-fleet-prod-control-1a2b3c4"
    )
    assert arn_of("local") == f"arn:aws:iam::{ACCOUNT}:user/local"
