import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3
import pytest

from gpufleet.clouds.aws.bootstrap import Foundation, account_of, foundation, public_key, steps
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.order_key import OrderKey
from gpufleet.domain.activity import CloudError
from serving import engine_container
from tests.fixtures.moto_account import moto_account
from tests.fixtures.networks import served


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
def test_all_resources_are_created_once(endpoint: str, region: str) -> None:
    calls = calls_to(endpoint, region)
    wanted = foundation(account_of(calls), region, "dev")
    assert public_key(calls, wanted) is None
    assert make_all(calls, wanted) == [False] * 4
    made = {name: secret(calls, name) for name in (wanted.engine_key, wanted.order_key)}
    assert {one["Type"] for one in made.values()} == {"SecureString"}
    assert engine_container.is_key(made[wanted.engine_key]["Value"])
    signer = OrderKey(made[wanted.order_key]["Value"])
    assert public_key(calls, wanted) == signer.public
    assert signer.public.modulus.bit_length() == 3072
    assert len(made[wanted.order_key]["Value"]) < 4096, "the largest value of a standard parameter"

    assert make_all(calls, wanted) == [True] * 4
    assert {name: secret(calls, name)["Value"] for name in made} == {name: one["Value"] for name, one in made.items()}


def secret(calls: AwsCalls, name: str) -> Any:
    return calls.one("ssm", "get_parameter", Name=name, WithDecryption=True)["Parameter"]


def test_a_second_order_key_is_created_and_the_first_stays(endpoint: str) -> None:
    calls = calls_to(endpoint)
    wanted = foundation(account_of(calls), "us-east-1", "dev")
    make_all(calls, wanted)
    following = foundation(account_of(calls), "us-east-1", "dev", "/gpu-fleet/dev/order-key-2027")
    assert make_all(calls, following) == [True, True, True, False]
    assert public_key(calls, wanted) != public_key(calls, following)


def test_an_invalid_order_key_is_named_but_its_value_is_hidden(endpoint: str) -> None:
    calls = calls_to(endpoint)
    wanted = foundation(account_of(calls), "us-east-1", "dev")
    calls.one("ssm", "put_parameter", Name=wanted.order_key, Value="correct-horse-battery", Type="SecureString")
    with pytest.raises(CloudError, match="/gpu-fleet/dev/order-key: does not contain a private key") as refused:
        public_key(calls, wanted)
    assert "horse" not in str(refused.value)


@pytest.mark.parametrize("kind", ["String", "StringList"])
def test_an_unencrypted_secret_is_named_but_its_value_is_hidden(endpoint: str, kind: str) -> None:
    calls = calls_to(endpoint)
    wanted = foundation(account_of(calls), "us-east-1", "dev")
    calls.one("ssm", "put_parameter", Name=wanted.engine_key, Value="correct-horse-battery", Type=kind)
    with pytest.raises(CloudError, match=f"its type is {kind}, so its value is not encrypted") as refused:
        list(steps(calls, wanted))
    assert wanted.engine_key in str(refused.value) and "battery" not in str(refused.value)


def test_the_state_bucket_is_private_and_versioned(endpoint: str) -> None:
    calls = calls_to(endpoint)
    wanted = foundation(account_of(calls), "us-east-1", "dev")
    make_all(calls, wanted)
    block = calls.one("s3", "get_public_access_block", Bucket=wanted.bucket)["PublicAccessBlockConfiguration"]
    assert all(block.values())
    assert calls.one("s3", "get_bucket_versioning", Bucket=wanted.bucket)["Status"] == "Enabled"
    assert "aws:SecureTransport" in calls.one("s3", "get_bucket_policy", Bucket=wanted.bucket)["Policy"]


def test_a_second_environment_shares_only_the_bucket(endpoint: str) -> None:
    calls = calls_to(endpoint)
    account = account_of(calls)
    make_all(calls, foundation(account, "us-east-1", "dev"))
    assert make_all(calls, foundation(account, "us-east-1", "prod")) == [True, False, False, False]


LACKED = {
    "a public access block": ("delete_public_access_block", {}),
    "versioning": ("put_bucket_versioning", {"VersioningConfiguration": {"Status": "Suspended"}}),
    "encryption by KMS": ("delete_bucket_encryption", {}),
    "a policy that requires TLS": ("delete_bucket_policy", {}),
}


@pytest.mark.parametrize("lacked", [[], *([word] for word in LACKED), [*LACKED]], ids="+".join)
def test_missing_bucket_settings_are_applied(endpoint: str, lacked: list[str]) -> None:
    calls = calls_to(endpoint)
    wanted = foundation(account_of(calls), "us-east-1", "dev")
    next(steps(calls, wanted)).make()
    for operation, arguments in (LACKED[word] for word in lacked):
        calls.one("s3", operation, Bucket=wanted.bucket, **arguments)
    step = next(steps(calls, wanted))
    assert step.present is (not lacked)
    assert step.what.endswith(f"it exists and lacks {', '.join(lacked)}" if lacked else "TLS only)")
    step.make()
    assert next(steps(calls, wanted)).present


def test_a_bucket_without_any_settings_is_completed(endpoint: str) -> None:
    calls = calls_to(endpoint)
    wanted = foundation(account_of(calls), "us-east-1", "dev")
    calls.one("s3", "create_bucket", Bucket=wanted.bucket)
    assert make_all(calls, wanted) == [False] * 4
    assert make_all(calls, wanted) == [True] * 4


def test_settings_of_users_stay(endpoint: str) -> None:
    calls = calls_to(endpoint)
    wanted = foundation(account_of(calls), "us-east-1", "dev")
    calls.one("s3", "create_bucket", Bucket=wanted.bucket)
    theirs = {"Sid": "Theirs", "Effect": "Deny", "Principal": "*", "Action": "s3:DeleteBucket"}
    theirs["Resource"] = f"arn:aws:s3:::{wanted.bucket}"
    calls.one("s3", "put_bucket_policy", Bucket=wanted.bucket, Policy=json.dumps({"Statement": theirs}))
    own = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "alias/ours"}}
    calls.one("s3", "put_bucket_encryption", Bucket=wanted.bucket, ServerSideEncryptionConfiguration={"Rules": [own]})
    make_all(calls, wanted)
    policy = json.loads(calls.one("s3", "get_bucket_policy", Bucket=wanted.bucket)["Policy"])
    assert [statement["Sid"] for statement in policy["Statement"]] == ["Theirs", "TlsOnly"]
    (rule,) = calls.one("s3", "get_bucket_encryption", Bucket=wanted.bucket)["ServerSideEncryptionConfiguration"][
        "Rules"
    ]
    assert rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] == "alias/ours"


def test_a_bucket_of_another_account_is_refused() -> None:
    """S3 returns 403 if the bucket belongs to another account than expected."""
    owners: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            owners.append(self.headers.get("x-amz-expected-bucket-owner"))
            self.send_response(403 if owners[-1] != "999999999999" else 200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Suppress the log."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        calls = calls_to(f"http://127.0.0.1:{server.server_address[1]}")
        with pytest.raises(CloudError, match="bucket gpu-fleet-state-1.*: is not owned by account 111122223333"):
            next(steps(calls, foundation("111122223333", "us-east-1", "dev")))
    assert owners == ["111122223333"]


def test_every_bucket_call_states_the_expected_owner(endpoint: str) -> None:
    calls = calls_to(endpoint)
    wanted = foundation(account_of(calls), "us-east-1", "dev")
    asked: dict[str, str | None] = {}

    def note(params: dict[str, Any], model: Any, **_: Any) -> None:
        asked[model.name] = params["headers"].get("x-amz-expected-bucket-owner")

    calls._client("s3").meta.events.register("before-call.s3", note)  # pyright: ignore[reportPrivateUsage]
    make_all(calls, wanted)
    assert asked.pop("CreateBucket") is None  # has no owner argument: S3 refuses a name that is taken
    assert len(asked) == 9
    assert set(asked.values()) == {wanted.account}


def test_a_failed_call_does_not_count_as_absence() -> None:
    calls = calls_to("http://127.0.0.1:1")
    with pytest.raises(CloudError):
        next(steps(calls, foundation("0", "us-east-1", "dev")))
