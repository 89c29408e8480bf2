"""The embedded cloud verifies signatures as AWS clients create them."""

import io
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st
from localcloud.aws.signature import Signature

from gpufleet.clouds.aws.signature import Credentials as OurCredentials
from gpufleet.clouds.aws.signature import Request, sign

SECRET = "the secret"  # noqa: S105 - of a test
NOW = datetime(2026, 11, 25, 7, 0, tzinfo=UTC)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)


def environ(method: str, url: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """A request as the server receives it (WSGI)."""
    parts = urlsplit(url)
    found: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "REQUEST_URI": parts.path + (f"?{parts.query}" if parts.query else ""),
        "HTTP_HOST": parts.netloc,
        "wsgi.input": io.BytesIO(body),
    }
    for name, value in headers.items():
        key = name.upper().replace("-", "_")
        found[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"] = value
    return found


def by_botocore(service: str, url: str, body: bytes) -> dict[str, str]:
    headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8", "X-Amz-Target": " two  words "}
    request = AWSRequest(method="POST", url=url, headers=headers, data=body)
    kind = S3SigV4Auth if service == "s3" else SigV4Auth
    kind(Credentials("key", SECRET, "a session"), service, "us-east-1").add_auth(request)
    return dict(request.headers.items())


def by_us(service: str, url: str, body: bytes) -> dict[str, str]:
    request = Request(method="POST", url=url, headers={"Content-Type": "text/plain"}, body=body)
    return sign(
        request, OurCredentials(access_key="key", secret_key=SECRET), region="us-east-1", service=service, now=NOW
    )


@pytest.mark.parametrize("signer", [by_botocore, by_us], ids=["botocore", "the node agent's"])
@given(
    service=st.sampled_from(["ec2", "s3", "ssm"]),
    path=st.lists(TEXTS.filter(lambda word: word.strip(".")), max_size=3),
    query=st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=3),
    body=st.binary(max_size=40),
)
def test_valid_signature_is_accepted_and_any_change_is_refused(
    signer: Any, service: str, path: list[str], query: dict[str, str], body: bytes
) -> None:
    query_text = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items())
    place = "/".join(quote(word, safe="-_.~") for word in path)
    url = f"http://127.16.0.2:4566/{place}" + (f"?{query_text}" if query_text else "")
    headers = signer(service, url, body)
    asked = environ("POST", url, headers, body)
    found = Signature.read(headers["Authorization"])
    assert found is not None
    assert (found.access_key, found.service) == ("key", service)
    assert found.is_of(SECRET, asked, body)
    assert not found.is_of(f"{SECRET}.", asked, body)
    for change in (
        {"REQUEST_METHOD": "DELETE"},
        {"REQUEST_URI": asked["REQUEST_URI"] + "%41"},
        {"HTTP_HOST": "127.16.0.2:4567"},
        {"HTTP_X_AMZ_DATE": "20260101T000000Z"},
    ):
        assert not found.is_of(SECRET, asked | change, body), change
    assert found.needs_body(asked) is (service != "s3")
    if service != "s3":
        assert not found.is_of(SECRET, asked, body + b"x")


@pytest.mark.parametrize(
    "authorization",
    [
        pytest.param("", id="nothing"),
        pytest.param("Bearer token", id="a bearer token"),
        pytest.param("AWS key:signature", id="Version 2"),
        pytest.param("AWS4-HMAC-SHA256 Credential=key, SignedHeaders=host, Signature=" + "0" * 64, id="no scope"),
        pytest.param(
            "AWS4-HMAC-SHA256 Credential=k/20261125/r/s/aws4_request, SignedHeaders=host, Signature=short", id="short"
        ),
    ],
)
def test_invalid_authorization_header_gives_no_signature(authorization: str) -> None:
    assert Signature.read(authorization) is None
