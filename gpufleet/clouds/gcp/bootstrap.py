"""Google Cloud resources that an environment needs before its first `pulumi up`: state bucket, key, secrets.

Uses the REST APIs (Cloud Storage v1, Cloud KMS v1, Secret Manager v1) with Google's authorized session, because eight
calls to three services do not justify three client libraries.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import requests
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession

from gpufleet.clouds.foundation import BootstrapStep, public_half, secrets_of
from gpufleet.clouds.gcp.calls import ENDPOINT
from gpufleet.clouds.gcp.emulator import emulator
from gpufleet.clouds.gcp.login import credentials, emulated
from gpufleet.domain.activity import CloudError
from gpufleet.domain.rsa import PublicKey

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
KEY_RING: Final = "gpu-fleet"
ROTATION: Final = "31536000s"
"""Rotation period of the key in seconds: one year, as on AWS."""
_ENGINE_KEY: Final = re.compile(r"gpu-fleet-(.+)-engine-key")
CALL_LIMIT_S: Final = 30.0
NOT_FOUND: Final = 404
CONFLICT: Final = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """Names of the resources, and the Pulumi settings that refer to them."""

    project: str
    region: str
    environment: str
    own_order_key: str | None = None
    """The name of the secret that signs orders; None: the default name."""

    @property
    def bucket(self) -> str:
        """The state bucket. All environments of the project share it."""
        return f"gpu-fleet-state-{self.project}"

    @property
    def key(self) -> str:
        return f"{self.key_ring}/cryptoKeys/{self.environment}"

    @property
    def key_ring(self) -> str:
        return f"projects/{self.project}/locations/{self.region}/keyRings/{KEY_RING}"

    @property
    def engine_key(self) -> str:
        return f"gpu-fleet-{self.environment}-engine-key"

    @property
    def order_key(self) -> str:
        return self.own_order_key or f"gpu-fleet-{self.environment}-order-key"

    @property
    def backend_url(self) -> str:
        return f"gs://{self.bucket}"

    @property
    def secrets_provider(self) -> str:
        return f"gcpkms://{self.key}"


class GoogleRest:
    """Calls to Google's REST services with the current credentials."""

    def __init__(self) -> None:
        self._emulator = emulator(ENDPOINT)
        self._session: requests.Session | None = None

    def ask(self, host: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Make a call and return the JSON response; None if a GET finds nothing (404).

        Raises CloudError with the service's message; its `code` is the HTTP status.
        """
        url = f"{self._emulator or f'https://{host}.googleapis.com'}{path}"
        try:
            answer = self._open().request(method, url, json=body, timeout=CALL_LIMIT_S)
        except (requests.RequestException, GoogleAuthError) as error:
            raise CloudError(f"{host}: {method} {path} failed: {error}") from error
        # for other methods, 404 means that the parent resource is missing and nothing was created
        if answer.status_code == NOT_FOUND and method == "GET":
            return None
        if not answer.ok:
            raise CloudError(
                f"{host}: {method} {path} was refused: {_error_message(answer)}", str(answer.status_code)
            )
        try:
            return answer.json()
        except requests.JSONDecodeError as error:
            raise CloudError(f"{host}: {method} {path} failed: the answer is not JSON: {error}") from error

    def _open(self) -> requests.Session:
        if self._session is None:
            google_credentials = credentials(SCOPE) if self._emulator is None else emulated(self._emulator)
            self._session = AuthorizedSession(google_credentials)
        return self._session


def steps(google: GoogleRest, wanted: Foundation) -> Iterator[BootstrapStep]:
    """Existing and missing resources, in the order of their creation. Raises CloudError."""
    bucket = _bucket(google, wanted)
    lacks = _lacks(bucket) if bucket is not None else []
    yield BootstrapStep(
        what=f"state bucket {wanted.bucket} (versioned, uniform access, no public access)"
        + (f": it exists and lacks {', '.join(lacks)}" if lacks else ""),
        present=bucket is not None and not lacks,
        make=lambda: _make_bucket(google, wanted),
    )
    yield BootstrapStep(
        what=f"key {wanted.key} for secrets in Pulumi's state (rotated yearly)",
        present=google.ask("cloudkms", "GET", f"/v1/{wanted.key}") is not None,
        make=lambda: _make_key(google, wanted),
    )
    for secret in secrets_of(wanted.engine_key, wanted.order_key):
        yield BootstrapStep(
            what=secret.what,
            present=_has_value(google, wanted, secret.name),
            make=lambda secret=secret: _make_secret(google, wanted, secret.name, secret.make()),
        )


def environments(google: GoogleRest, project: str) -> frozenset[str]:
    """Names of the environments that have an engine key in a project. Raises CloudError."""
    found: set[str] = set()
    token = ""
    while True:
        page = f"pageSize=500&pageToken={quote(token, safe='')}"
        answer: dict[str, Any] = google.ask("secretmanager", "GET", f"/v1/projects/{project}/secrets?{page}") or {}
        names = (str(secret["name"]).rpartition("/")[2] for secret in answer.get("secrets", ()))
        found |= {match[1] for name in names if (match := _ENGINE_KEY.fullmatch(name))}
        token = answer.get("nextPageToken", "")
        if not token:
            return frozenset(found)


def public_key(google: GoogleRest, wanted: Foundation) -> PublicKey | None:
    """The public half of the key that signs orders; None if the key does not exist yet. Raises CloudError."""
    place = f"/v1/projects/{wanted.project}/secrets/{wanted.order_key}/versions/latest:access"
    found = google.ask("secretmanager", "GET", place)
    if found is None:
        return None
    return public_half(wanted.order_key, base64.b64decode(found["payload"]["data"]).decode(errors="replace"))


def _bucket(google: GoogleRest, wanted: Foundation) -> Mapping[str, Any] | None:
    """The bucket if the project owns it, else None. Names are globally unique: another project may own this one."""
    asked = f"/storage/v1/b?project={quote(wanted.project)}&prefix={wanted.bucket}"
    listed: Mapping[str, Any] = google.ask("storage", "GET", asked) or {}
    return next((one for one in listed.get("items", []) if one["name"] == wanted.bucket), None)


def _lacks(bucket: Mapping[str, Any]) -> list[str]:
    access = bucket.get("iamConfiguration", {})
    held = {
        "versioning": bucket.get("versioning", {}).get("enabled"),
        "uniform access": access.get("uniformBucketLevelAccess", {}).get("enabled"),
        "prevention of public access": access.get("publicAccessPrevention") == "enforced",
    }
    return [word for word, is_held in held.items() if is_held is not True]


def _make_bucket(google: GoogleRest, wanted: Foundation) -> None:
    """Create the bucket, or apply missing settings. Google rejects a name that another project owns."""
    settings = {
        "versioning": {"enabled": True},
        "iamConfiguration": {
            "uniformBucketLevelAccess": {"enabled": True},
            "publicAccessPrevention": "enforced",
        },
    }
    if _bucket(google, wanted) is not None:
        google.ask("storage", "PATCH", f"/storage/v1/b/{wanted.bucket}", settings)
        return
    body = {"name": wanted.bucket, "location": wanted.region, **settings}
    google.ask("storage", "POST", f"/storage/v1/b?project={quote(wanted.project)}", body)


def _make_key(google: GoogleRest, wanted: Foundation) -> None:
    place, _, _ = wanted.key_ring.rpartition("/")
    if google.ask("cloudkms", "GET", f"/v1/{wanted.key_ring}") is None:
        google.ask("cloudkms", "POST", f"/v1/{place}?keyRingId={KEY_RING}", {})
    body = {
        "purpose": "ENCRYPT_DECRYPT",
        "rotationPeriod": ROTATION,
        "nextRotationTime": _in_a_year(),
    }
    google.ask("cloudkms", "POST", f"/v1/{wanted.key_ring}/cryptoKeys?cryptoKeyId={wanted.environment}", body)


def _in_a_year() -> str:
    return (datetime.now(UTC) + timedelta(days=365)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _has_value(google: GoogleRest, wanted: Foundation, name: str) -> bool:
    """Whether a secret has a value. An earlier run may have created the secret but not its first version."""
    versions = f"/v1/projects/{wanted.project}/secrets/{name}/versions/latest"
    return google.ask("secretmanager", "GET", versions) is not None


def _make_secret(google: GoogleRest, wanted: Foundation, name: str, value: str) -> None:
    home = f"/v1/projects/{wanted.project}/secrets"
    try:
        google.ask("secretmanager", "POST", f"{home}?secretId={name}", {"replication": {"automatic": {}}})
    except CloudError as error:
        if error.code != str(CONFLICT):
            raise
        if _has_value(google, wanted, name):
            return  # created concurrently: two readers must not get different values
    payload = base64.b64encode(value.encode()).decode()
    google.ask("secretmanager", "POST", f"{home}/{name}:addVersion", {"payload": {"data": payload}})


def _error_message(answer: requests.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}"
