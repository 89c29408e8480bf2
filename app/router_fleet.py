"""The inputs of a router: the fleet document, the policy next to it, the keys and the cloud's inventory."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from app.errors import AppError
from app.fleets import load_one, parse_own
from gpufleet.clouds import secrets
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.inventory import AwsInventory
from gpufleet.domain.files import write_atomically
from gpufleet.domain.model import Cloud, Instance
from gpufleet.domain.ownership import OwnedGroup
from gpufleet.settings.document import FleetDocument
from serving import engine_container
from serving.router.keys import ApiKey, KeysError, parse_keys
from serving.router.policy import FILE_NAME, RouterPolicy, parse_policy, render_policy

if TYPE_CHECKING:
    from gpufleet.clouds.gcp.inventory import GoogleInventory

KEY_RETRY_S: Final = 30.0
"""Seconds between two attempts to read the engine key: a store that does not respond would delay every read of the
fleet.
"""


class LiveFleet:
    """Reads from the document's URL and the cloud's API. Its clients are created once and reused."""

    def __init__(
        self,
        url: str,
        keys_file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        explains: bool = True,
    ) -> None:
        """`explains`: whether to look up why instances ended. A router's own rights do not cover that."""
        self._explains = explains
        self._url = url
        self._keys_file = keys_file
        self._aws: dict[str, AwsCalls] = {}
        self._google_inventory: GoogleInventory | None = None
        self._google_groups: Mapping[str, OwnedGroup] = {}
        self._clock = clock
        self._key_place = ""
        self._key: str | OSError = ""
        self._key_retry_at = 0.0

    @property
    def policy_url(self) -> str:
        """`router.json` next to the fleet document."""
        return self._url.rpartition("/")[0] + "/" + FILE_NAME if "/" in self._url else FILE_NAME

    def document(self) -> FleetDocument:
        """Raises OSError when it cannot be read or used."""
        try:
            if self._url.startswith("s3://"):
                return parse_own(self._read(self._url), self._url)
            return load_one(self._url)
        except AppError as error:
            raise OSError(str(error)) from error

    def policy(self) -> RouterPolicy:
        """The policy; the defaults if there is no file. Raises OSError or DocumentError."""
        try:
            return parse_policy(self._read(self.policy_url), self.policy_url)
        except FileNotFoundError:
            return RouterPolicy()
        except PermissionError:
            # a reader that may not list a bucket gets the same error for a missing object
            if self._is_there(self.policy_url):
                raise
            return RouterPolicy()

    def write_policy(self, policy: RouterPolicy) -> None:
        """Write a policy to where every router of the fleet reads it. Raises OSError."""
        body = render_policy(policy).encode()
        parts = urlsplit(self.policy_url)
        if parts.scheme == "s3":
            self._calls().one("s3", "put_object", Bucket=parts.netloc, Key=parts.path.lstrip("/"), Body=body)
        elif parts.scheme == "gs":
            from gpufleet.clouds.gcp.objects import write_object

            write_object(parts.netloc, parts.path.lstrip("/"), body)
        else:
            write_atomically(Path(parts.path), body)

    def keys(self) -> tuple[ApiKey, ...]:
        """The API keys; empty without a file of keys. Raises OSError or KeysError."""
        if self._keys_file is None:
            return ()
        try:
            return parse_keys(self._keys_file.read_text())
        except KeysError as error:
            raise KeysError(f"{self._keys_file}: {error}") from error

    def engine_key(self, document: FleetDocument) -> str:
        """The engine key, read once: the security model describes how to change it. Raises OSError."""
        place = document.engine_key
        if place is None:
            raise OSError(
                "the fleet document contains no engine key: an earlier release wrote it; run `pulumi up` of this one"
            )
        if place != self._key_place or (isinstance(self._key, OSError) and self._clock() >= self._key_retry_at):
            self._key_place, self._key_retry_at = place, self._clock() + KEY_RETRY_S
            try:
                self._key = _engine_key(place, document.region)
            except OSError as error:
                self._key = error
        if isinstance(self._key, OSError):
            raise self._key
        return self._key

    def instances(self, document: FleetDocument) -> Sequence[Instance]:
        """Raises OSError when the inventory is incomplete."""
        match document.cloud:
            case Cloud.AWS:
                calls = self._calls(document.region)
                groups = document.owned_groups()
                return AwsInventory(calls, document.region, document.environment, groups).instances()
            case Cloud.GCP:
                return self._google(document).instances()

    def _read(self, url: str) -> bytes:
        parts = urlsplit(url)
        key = parts.path.lstrip("/")
        if parts.scheme == "gs":
            from gpufleet.clouds.gcp.objects import read_object

            return read_object(parts.netloc, key)
        if parts.scheme != "s3":
            return Path(parts.path).read_bytes()
        try:
            return self._calls().one("s3", "get_object", Bucket=parts.netloc, Key=key)["Body"].read()
        except OSError as error:
            code = getattr(error, "code", "")
            if code in ("NoSuchKey", "NoSuchBucket", "404"):
                raise FileNotFoundError(f"{url}: no such object") from error
            if code in ("AccessDenied", "403"):
                raise PermissionError(f"{url}: {error}") from error
            raise

    def _is_there(self, url: str) -> bool:
        """Whether the bucket lists it. Raises OSError."""
        parts = urlsplit(url)
        key = parts.path.lstrip("/")
        if parts.scheme == "gs":
            from gpufleet.clouds.gcp.objects import list_objects

            return key in list_objects(parts.netloc, key)
        found = self._calls().one("s3", "list_objects_v2", Bucket=parts.netloc, Prefix=key, MaxKeys=1)
        return any(one["Key"] == key for one in found.get("Contents", ()))

    def _google(self, document: FleetDocument) -> "GoogleInventory":
        groups = document.owned_groups()
        if self._google_inventory is None or groups != self._google_groups:
            # these imports are large, so they run only for a fleet on Google Cloud
            from gpufleet.clouds.gcp.calls import GoogleCalls
            from gpufleet.clouds.gcp.inventory import GoogleInventory

            calls = GoogleCalls(document.account)
            self._google_inventory = GoogleInventory(
                calls, document.region, document.environment, groups, explains=self._explains
            )
            self._google_groups = groups
        return self._google_inventory

    def _calls(self, region: str = "") -> AwsCalls:
        # a bucket can be read from any region, so the first existing client is used
        if not region and self._aws:
            return next(iter(self._aws.values()))
        if region not in self._aws:
            self._aws[region] = AwsCalls(region or "us-east-1")
        return self._aws[region]


def _engine_key(place: str, region: str) -> str:
    """The engine key. Raises OSError.

    A value that is not an engine key, for example another secret, must not be sent to an engine.
    """
    key = secrets.read(place, region).strip()
    if not engine_container.is_key(key):
        raise OSError(f"{place}: {engine_container.NO_KEY}")
    return key
