"""Compares the signer with botocore's, for all kinds of requests that an instance sends."""

from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import quote

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.clouds.aws.signature import Credentials, Request, sign

NOW = datetime(2026, 11, 21, 2, 15, 30, tzinfo=UTC)
PLAIN = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
KEYS = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4).map("/".join)


def theirs(request: Request, credentials: Credentials, service: str) -> str:
    """The signature that botocore computes for the same request at the same time."""
    boto_request = AWSRequest(
        method=request.method, url=request.url, headers=dict(request.headers), data=request.body or b""
    )
    boto = BotoCredentials(credentials.access_key, credentials.secret_key, credentials.session_token)
    signer = (auth.S3SigV4Auth if service == "s3" else auth.SigV4Auth)(boto, service, "us-east-1")
    boto_request.context["timestamp"] = NOW.strftime("%Y%m%dT%H%M%SZ")
    if service == "s3":
        # always sign the body, as botocore does for plain HTTP
        boto_request.context["payload_signing_enabled"] = True
    boto_request.headers["X-Amz-Date"] = boto_request.context["timestamp"]
    if credentials.session_token:
        boto_request.headers["X-Amz-Security-Token"] = credentials.session_token
    if service == "s3":
        boto_request.headers["X-Amz-Content-SHA256"] = signer.payload(boto_request)
    canonical = signer.canonical_request(boto_request)
    to_sign = signer.string_to_sign(boto_request, canonical)
    return str(signer.signature(to_sign, boto_request))


@given(
    service=st.sampled_from(["s3", "ec2", "ssm", "autoscaling"]),
    key=KEYS,
    query=st.dictionaries(PLAIN, PLAIN, max_size=4),
    token=st.one_of(st.none(), PLAIN),
    secret=PLAIN,
    body=st.binary(max_size=50),
    range_=st.booleans(),
)
def test_signatures_equal_those_of_botocore(
    service: str, key: str, query: dict[str, str], token: str | None, secret: str, body: bytes, range_: bool
) -> None:
    pairs = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query.items())
    path = f"/bucket/{quote(key, safe='/-_.~')}" if service == "s3" else "/"
    url = f"http://127.0.0.1:4566{path}" + (f"?{pairs}" if pairs else "")
    headers = {"Range": "bytes=0-9", "If-Match": '"etag"'} if range_ else {"Content-Type": "text/plain"}
    request = Request(method="GET" if range_ else "POST", url=url, headers=headers, body=body)
    credentials = Credentials(access_key="AKIDEXAMPLE", secret_key=secret, session_token=token)
    ours = sign(request, credentials, region="us-east-1", service=service, now=NOW)
    assert ours["Authorization"].rpartition("Signature=")[2] == theirs(request, credentials, service)


def test_repr_hides_secrets() -> None:
    shown = repr(Credentials(access_key="AKIDEXAMPLE", secret_key="very secret", session_token="token"))  # noqa: S106
    assert "very secret" not in shown
    assert "token" not in shown


def test_the_signed_time_is_in_utc() -> None:
    request = Request(method="GET", url="http://127.0.0.1/", headers={})
    credentials = Credentials(access_key="a", secret_key="b")  # noqa: S106
    berlin = NOW.astimezone(timezone(timedelta(hours=1)))
    signed = [sign(request, credentials, region="r", service="ec2", now=moment) for moment in (NOW, berlin)]
    assert signed[0] == signed[1]


@pytest.mark.parametrize("service", ["s3", "ec2"])
def test_only_s3_gets_the_digest_header(service: str) -> None:
    request = Request(method="GET", url="http://127.0.0.1/", headers={})
    signed = sign(request, Credentials(access_key="a", secret_key="b"), region="r", service=service, now=NOW)  # noqa: S106
    assert ("X-Amz-Content-SHA256" in signed) == (service == "s3")
