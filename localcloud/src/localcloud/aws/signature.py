"""Whether a request to AWS's APIs is signed with a key: Signature Version 4, computed again by botocore's signer.

Of the two ways to sign, the header and the query, only the header is taken: nothing here presigns URLs. The time of
the signature is not looked at: who can read requests on loopback, so as to send one again, is root.
"""

import hmac
import re
from dataclasses import dataclass
from typing import Any, Final

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

_AUTHORIZATION: Final = re.compile(
    r"AWS4-HMAC-SHA256 +Credential=(?P<key>[^/,\s]+)/(?P<date>\d{8})/(?P<region>[^/,\s]+)/(?P<service>[^/,\s]+)"
    r"/aws4_request *, *SignedHeaders=(?P<headers>[a-z0-9;-]+) *, *Signature=(?P<signature>[0-9a-f]{64}) *"
)
LARGEST_BODY: Final = 256 * 1024 * 1024
"""Bytes of a request whose body must be read for its signature: all but S3's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The parsed Authorization header."""

    access_key: str
    region: str
    service: str
    headers: tuple[str, ...]
    signature: str

    @staticmethod
    def read(authorization: str) -> "Signature | None":
        """None if the header is not a Version 4 signature."""
        found = _AUTHORIZATION.fullmatch(authorization)
        if found is None:
            return None
        return Signature(
            access_key=found["key"],
            region=found["region"],
            service=found["service"],
            headers=tuple(found["headers"].split(";")),
            signature=found["signature"],
        )

    def needs_body(self, environ: dict[str, Any]) -> bool:
        """Whether the digest of the body must be computed. S3's clients state it in a signed header instead."""
        return self.service != "s3" or "HTTP_X_AMZ_CONTENT_SHA256" not in environ

    def is_of(self, secret_key: str, environ: dict[str, Any], body: bytes) -> bool:
        """Whether the request (WSGI) was signed with this key. Compared in constant time."""
        headers: dict[str, str] = {}
        for name in self.headers:
            if (value := header_of(environ, name)) is None:
                return False
            headers[name] = value
        stamp = headers.get("x-amz-date", "")
        if "host" not in self.headers or not stamp:
            return False
        host, target = headers["host"], environ.get("REQUEST_URI") or environ.get("RAW_URI", "")
        request = AWSRequest(
            method=environ["REQUEST_METHOD"], url=f"http://{host}{target}", headers=headers, data=body
        )
        request.context["timestamp"] = stamp
        kind = S3SigV4Auth if self.service == "s3" else SigV4Auth
        signer = kind(Credentials(self.access_key, secret_key), self.service, self.region)
        computed = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        return hmac.compare_digest(computed, self.signature)


def header_of(environ: dict[str, Any], name: str) -> str | None:
    """The value of a request's header (WSGI), those of a repeated one joined by commas."""
    key = name.upper().replace("-", "_")
    return environ.get(key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}")
