"""Clients of the embedded cloud. Nothing outside the loopback interface can be reached through them."""

from __future__ import annotations

import ipaddress
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from localcloud.provider.errors import CancelledError, NotReadyError

_POLL_S = 0.3
_KNOWN_SETTINGS = frozenset(
    {
        "accessKey",
        "allowedAccountIds",
        "defaultTags",
        "endpoints",
        "ignoreTags",
        "maxRetries",
        "region",
        "s3UsePathStyle",
        "secretKey",
        "skipCredentialsValidation",
        "skipMetadataApiCheck",
        "skipRegionValidation",
        "skipRequestingAccountId",
        "version",
    }
)


class NotLocalError(ValueError):
    """The provider was pointed at something that is not the embedded cloud."""


def require_loopback(url: str, said_by: str) -> str:
    """`url`, when it names a loopback address.

    Raises:
        NotLocalError: any other address, also a name that would have to be resolved.
    """
    host = urlsplit(url).hostname or ""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise NotLocalError(
            f"{said_by}: {url!r} is not a loopback address; the local provider speaks to the embedded cloud alone. "
            "Run `gpufleet local up` and use the environment of `gpufleet local env`"
        )
    return url


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the program's provider resource (or the stack's `aws:` configuration) says."""

    endpoint: str
    region: str
    default_tags: Mapping[str, str] = field(default_factory=dict[str, str])
    ignored_keys: frozenset[str] = frozenset()
    ignored_prefixes: tuple[str, ...] = ()


def read_settings(arguments: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Settings from the provider's arguments (nested ones are JSON texts) and the environment.

    Raises:
        NotLocalError: no endpoint is given, or one that is not loopback.
        ValueError: a setting that only a real account can honour, or no region.
    """
    given = {k: _decoded(v) for k, v in arguments.items()}
    if unknown := sorted(k for k, v in given.items() if k not in _KNOWN_SETTINGS and v not in ("", [], {})):
        raise ValueError(f"provider setting {unknown[0]!r} is not modelled by the local provider; remove it")
    for name, url in environment.items():
        if name.startswith("AWS_ENDPOINT_URL") and url:
            require_loopback(url, name)
    urls = [u for entry in given.get("endpoints") or [] for u in entry.values() if u]
    for url in urls:
        require_loopback(url, "endpoints")
    endpoint = (urls or [environment.get("AWS_ENDPOINT_URL", "")])[0]
    if not endpoint:
        raise NotLocalError(
            "AWS_ENDPOINT_URL is not set: the local provider speaks to the embedded cloud alone. "
            "Run `gpufleet local up` and use the environment of `gpufleet local env`"
        )
    region = given.get("region") or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if not region:
        raise ValueError("aws:region is not set: `pulumi config set aws:region us-east-1`")
    ignore = given.get("ignoreTags") or {}
    return Settings(
        endpoint=endpoint,
        region=str(region),
        default_tags=(given.get("defaultTags") or {}).get("tags") or {},
        ignored_keys=frozenset(ignore.get("keys") or ()),
        ignored_prefixes=tuple(ignore.get("keyPrefixes") or ()),
    )


def _decoded(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in {"{", "["}:
        return json.loads(value)
    return value


class Session:
    """Settings and clients that all requests of one provider share. Safe to use from many threads."""

    def __init__(self, settings: Settings, *, root: Path | None = None) -> None:
        self.settings = settings
        self.root = root or Path.cwd()
        self.cancelled = threading.Event()
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}
        self._session = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local")

    def client(self, service: str, region: str) -> Any:
        """A boto3 client of the embedded cloud."""
        with self._lock:
            key = (service, region)
            if key not in self._clients:
                self._clients[key] = self._session.client(
                    service,
                    region_name=region,
                    endpoint_url=self.settings.endpoint,
                    config=Config(
                        proxies={},
                        retries={"max_attempts": 2, "mode": "standard"},
                        s3={"addressing_style": "path"},
                        max_pool_connections=32,
                        connect_timeout=5,
                        read_timeout=60,
                    ),
                )
            return self._clients[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """The embedded cloud as one request sees it: a region and a time limit.

    Attributes:
        limit_s: seconds after which a wait of this request gives up.
    """

    session: Session
    region: str
    limit_s: float

    def client(self, service: str) -> Any:
        """The boto3 client of a service in this request's region."""
        return self.session.client(service, self.region)

    @property
    def account(self) -> str:
        """The account number of the embedded cloud."""
        return str(self.client("sts").get_caller_identity()["Account"])

    def wait(self, what: str, done: Callable[[], bool], *, limit_s: float | None = None) -> None:
        """Ask `done` again and again until it says yes.

        Raises:
            NotReadyError: the limit is over; the text says what was waited for.
            CancelledError: the run was stopped.
        """
        limit = self.limit_s if limit_s is None else limit_s
        end = time.monotonic() + limit
        while not done():
            if time.monotonic() >= end:
                raise NotReadyError(f"waited {limit:.0f} s for {what}")
            if self.session.cancelled.wait(_POLL_S):
                raise CancelledError(f"stopped while waiting for {what}")


def environment() -> Mapping[str, str]:
    """The process's environment; read when the engine configures the provider, never at import."""
    return os.environ
