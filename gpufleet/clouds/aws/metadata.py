"""Client of EC2's instance metadata service (IMDSv2). Standard library only: the node agent contains this module."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from typing import Any, Final

from gpufleet.clouds.aws.signature import Credentials
from gpufleet.domain.parsed import is_map

DEFAULT_ENDPOINT: Final = "http://169.254.169.254"
_TOKEN_TTL: Final = timedelta(hours=6)
_TIMEOUT_S: Final = 2.0
_RENEW_BEFORE: Final = timedelta(minutes=5)


class MetadataError(OSError):
    """A request to the metadata service failed, or a required value is missing."""


@dataclass(slots=True, kw_only=True)
class Ec2Metadata:
    """A metadata client. It keeps its session token and renews it."""

    endpoint: str
    now: Callable[[], datetime]
    _token: str | None = field(default=None, init=False)
    _token_until: datetime | None = field(default=None, init=False)

    def get(self, path: str) -> str | None:
        """The value at a path below /latest/; None if it does not exist (404). Raises MetadataError."""
        for attempt in (1, 2):
            try:
                return self._ask(path, self._session())
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code != 401 or attempt == 2:
                    raise MetadataError(f"metadata {path}: HTTP {error.code}") from error
                self._token = None
            except (OSError, HTTPException, ValueError) as error:
                raise MetadataError(f"metadata {path}: {error}") from error
        return None

    def need(self, path: str) -> str:
        """The value at a path that all instances have. Raises MetadataError, also if it does not exist."""
        found = self.get(path)
        if found is None:
            raise MetadataError(f"metadata {path}: does not exist")
        return found

    def document(self, path: str) -> Mapping[str, Any] | None:
        """The JSON object at a path below /latest/; None if it does not exist. Raises MetadataError."""
        text = self.get(path)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except ValueError as error:
            raise MetadataError(f"metadata {path}: is not JSON") from error
        return found if is_map(found) else None

    def role_credentials(self) -> Credentials | None:
        """Credentials of the instance's role; None without a role. Raises MetadataError."""
        base = "meta-data/iam/security-credentials/"
        role = (self.get(base) or "").strip().split("\n")[0]
        found = self.document(f"{base}{role}") if role else None
        if found is None or "AccessKeyId" not in found:
            return None
        try:
            return Credentials(
                access_key=found["AccessKeyId"],
                secret_key=found["SecretAccessKey"],
                session_token=found.get("Token"),
                expires_at=datetime.fromisoformat(found["Expiration"]) if "Expiration" in found else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MetadataError(f"metadata {base}{role}: the credentials are incomplete") from error

    def _session(self) -> str:
        now = self.now()
        if self._token is None or self._token_until is None or now >= self._token_until:
            request = urllib.request.Request(
                f"{self.endpoint}/latest/api/token",
                method="PUT",
                headers={"X-aws-ec2-metadata-token-ttl-seconds": str(int(_TOKEN_TTL.total_seconds()))},
            )
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                self._token = answer.read().decode()
            self._token_until = now + _TOKEN_TTL - _RENEW_BEFORE
        assert self._token is not None
        return self._token

    def _ask(self, path: str, token: str) -> str:
        request = urllib.request.Request(
            f"{self.endpoint}/latest/{path}", headers={"X-aws-ec2-metadata-token": token}
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return answer.read().decode()


def from_environment() -> Ec2Metadata:
    """A client for $AWS_EC2_METADATA_SERVICE_ENDPOINT, or for EC2's default address."""
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or DEFAULT_ENDPOINT
    return Ec2Metadata(endpoint=endpoint.rstrip("/"), now=lambda: datetime.now(UTC))


@dataclass(slots=True, kw_only=True)
class CredentialChain:
    """Credentials from environment variables, else from the instance's role. Renewed before they expire."""

    metadata: Ec2Metadata
    _held: Credentials | None = field(default=None, init=False)

    def __call__(self) -> Credentials:
        """Valid credentials. Raises MetadataError if there are none."""
        if (access := os.environ.get("AWS_ACCESS_KEY_ID")) and (secret := os.environ.get("AWS_SECRET_ACCESS_KEY")):
            return Credentials(
                access_key=access, secret_key=secret, session_token=os.environ.get("AWS_SESSION_TOKEN") or None
            )
        held, now = self._held, self.metadata.now()
        if held is None or (held.expires_at is not None and now >= held.expires_at - _RENEW_BEFORE):
            held = self._held = self.metadata.role_credentials()
        if held is None:
            raise MetadataError("no credentials: the instance has no role")
        return held
