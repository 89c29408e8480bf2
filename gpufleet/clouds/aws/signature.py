"""AWS Signature Version 4 with the standard library, for the API calls of the node agent.

The node agent is shipped as source files without dependencies, so it cannot use botocore. A test compares this signer
with botocore's for generated requests.
"""

import functools
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlsplit

_ALGORITHM: Final = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """AWS credentials. `repr` hides the secrets."""

    access_key: str
    secret_key: str
    session_token: str | None = None
    expires_at: datetime | None = None

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key[:4]}…)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request."""

    method: str
    url: str
    """URL with its query, percent-encoded."""
    headers: Mapping[str, str]
    body: bytes = b""


def sign(request: Request, credentials: Credentials, *, region: str, service: str, now: datetime) -> dict[str, str]:
    """All headers to send: those of the request, plus date, session token, payload digest (S3) and Authorization."""
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    parts = urlsplit(request.url)
    digest = hashlib.sha256(request.body).hexdigest()
    headers = {**request.headers, "Host": parts.netloc, "X-Amz-Date": stamp}
    if service == "s3":
        headers["X-Amz-Content-SHA256"] = digest
    if credentials.session_token:
        headers["X-Amz-Security-Token"] = credentials.session_token
    lowered = sorted((name.lower(), " ".join(value.split())) for name, value in headers.items())
    signed = ";".join(name for name, _ in lowered)
    canonical = "\n".join(
        [
            request.method,
            # S3 signs the path as it is sent; all other services encode it a second time
            parts.path or "/" if service == "s3" else quote(parts.path or "/", safe="/-_.~"),
            _canonical_query(parts.query),
            *(f"{name}:{value}" for name, value in lowered),
            "",
            signed,
            digest,
        ]
    )
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    to_sign = "\n".join([_ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signature = hmac.digest(_key(credentials.secret_key, scope), to_sign.encode(), "sha256").hex()
    headers["Authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={signed}, Signature={signature}"
    )
    return headers


@functools.lru_cache(maxsize=2)
def _key(secret_key: str, scope: str) -> bytes:
    """The signing key for one day, region and service."""
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _canonical_query(query: str) -> str:
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    return "&".join(f"{name}={value}" for name, _, value in sorted((n, s, v) for n, s, v in pairs))
