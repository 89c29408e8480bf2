"""The instance metadata service (IMDSv2) as an instance sees it. Standard library only: the node agent carries it."""

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
    """The service could not be asked."""


@dataclass(slots=True, kw_only=True)
class Ec2Metadata:
    """A client with its session token."""

    endpoint: str
    now: Callable[[], datetime]
    _token: str | None = field(default=None, init=False)
    _token_until: datetime | None = field(default=None, init=False)

    def get(self, path: str) -> str | None:
        """A value below /latest/; None where there is none (404). Raises MetadataError."""
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
        """A value that every instance has. Raises MetadataError."""
        found = self.get(path)
        if found is None:
            raise MetadataError(f"metadata {path}: there is none")
        return found

    def document(self, path: str) -> Mapping[str, Any] | None:
        """A JSON object below /latest/. Raises MetadataError."""
        text = self.get(path)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except ValueError as error:
            raise MetadataError(f"metadata {path}: is no JSON") from error
        return found if is_map(found) else None

    def role_credentials(self) -> Credentials | None:
        """Those of the instance's role; None without one. Raises MetadataError."""
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
            raise MetadataError(f"metadata {base}{role}: gives no whole credentials") from error

    def _session(self) -> str:
        now = self.now()
        if self._token is None or self._token_until is None or now >= self._token_until:
            wish = urllib.request.Request(
                f"{self.endpoint}/latest/api/token",
                method="PUT",
                headers={"X-aws-ec2-metadata-token-ttl-seconds": str(int(_TOKEN_TTL.total_seconds()))},
            )
            with urllib.request.urlopen(wish, timeout=_TIMEOUT_S) as answer:
                self._token = answer.read().decode()
            self._token_until = now + _TOKEN_TTL - _RENEW_BEFORE
        assert self._token is not None
        return self._token

    def _ask(self, path: str, token: str) -> str:
        wish = urllib.request.Request(f"{self.endpoint}/latest/{path}", headers={"X-aws-ec2-metadata-token": token})
        with urllib.request.urlopen(wish, timeout=_TIMEOUT_S) as answer:
            return answer.read().decode()


def from_environment() -> Ec2Metadata:
    """The service of this instance, at $AWS_EC2_METADATA_SERVICE_ENDPOINT or where EC2 has it."""
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or DEFAULT_ENDPOINT
    return Ec2Metadata(endpoint=endpoint.rstrip("/"), now=lambda: datetime.now(UTC))


@dataclass(slots=True, kw_only=True)
class CredentialChain:
    """Keys of the environment, else of the instance's role, renewed before they end."""

    metadata: Ec2Metadata
    _held: Credentials | None = field(default=None, init=False)

    def __call__(self) -> Credentials:
        """Credentials that are good now. Raises MetadataError when there are none."""
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
