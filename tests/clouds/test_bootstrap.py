from collections.abc import Iterator

import boto3
import pytest

from clouds.aws.bootstrap import Foundation, account_of, foundation, steps
from clouds.aws.calls import AwsCalls
from fleet.activity import CloudError
from tests.moto_account import moto_account


@pytest.fixture
def endpoint() -> Iterator[str]:
    with moto_account() as url:
        yield url


def calls_to(endpoint: str, region: str = "us-east-1") -> AwsCalls:
    session = boto3.Session("local", "local", region_name=region)
    return AwsCalls(region, lambda service: session.client(service, endpoint_url=endpoint))


def make_all(calls: AwsCalls, wanted: Foundation) -> list[bool]:
    were_there: list[bool] = []
    for step in steps(calls, wanted):
        were_there.append(step.present)
        if not step.present:
            step.make()
    return were_there


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1"])
def test_everything_is_made_once(endpoint: str, region: str) -> None:
    calls = calls_to(endpoint, region)
    wanted = foundation(account_of(calls), region, "dev")
    assert make_all(calls, wanted) == [False, False, False]
    token = calls.one("ssm", "get_parameter", Name=wanted.token, WithDecryption=True)["Parameter"]
    assert token["Type"] == "SecureString"
    assert len(token["Value"]) >= 43

    assert make_all(calls, wanted) == [True, True, True]
    again = calls.one("ssm", "get_parameter", Name=wanted.token, WithDecryption=True)["Parameter"]
    assert again["Value"] == token["Value"]


def test_the_state_bucket_is_closed_and_keeps_versions(endpoint: str) -> None:
    calls = calls_to(endpoint)
    wanted = foundation(account_of(calls), "us-east-1", "dev")
    make_all(calls, wanted)
    block = calls.one("s3", "get_public_access_block", Bucket=wanted.bucket)["PublicAccessBlockConfiguration"]
    assert all(block.values())
    assert calls.one("s3", "get_bucket_versioning", Bucket=wanted.bucket)["Status"] == "Enabled"
    assert "aws:SecureTransport" in calls.one("s3", "get_bucket_policy", Bucket=wanted.bucket)["Policy"]


def test_a_second_environment_shares_the_bucket_alone(endpoint: str) -> None:
    calls = calls_to(endpoint)
    account = account_of(calls)
    make_all(calls, foundation(account, "us-east-1", "dev"))
    assert make_all(calls, foundation(account, "us-east-1", "prod")) == [True, False, False]


def test_no_answer_is_not_taken_for_absence() -> None:
    calls = calls_to("http://127.0.0.1:1")
    with pytest.raises(CloudError):
        next(steps(calls, foundation("0", "us-east-1", "dev")))
