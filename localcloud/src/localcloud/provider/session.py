"""The settings and clients of one provider, and its waits; independent of clouds."""

from __future__ import annotations

import ipaddress
import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from localcloud.callers import VARIABLE
from localcloud.provider.errors import CancelledError, NotReadyError

_POLL_S = 0.3


class NotLocalError(ValueError):
    """The provider's settings do not select the embedded cloud."""


def require_loopback(url: str, source: str) -> str:
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
            f"{source}: {url!r} is not a loopback address; the local provider connects to the embedded cloud only. "
            "Run `gpufleet local up` and use the environment of `gpufleet local env`"
        )
    return url


def token_of(environment: Mapping[str, str]) -> str:
    """The token of the embedded cloud's start.

    Raises:
        NotLocalError: there is none.
    """
    if not (token := environment.get(VARIABLE)):
        raise NotLocalError(
            f"{VARIABLE} is not set: the embedded cloud refuses requests without its token. "
            "Run `gpufleet local up` and use the environment of `gpufleet local env`"
        )
    return token


MAX_RETRIES: Final = 2
"""Fewer than the 25 of the real AWS provider: on the loopback interface, a cloud that does not answer is a defect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the program's provider resource or the stack's configuration.

    Attributes:
        endpoint: address of the embedded cloud.
        token: its token.
        project: Google's project; AWS has none.
        zone: the default zone on Google Cloud.
        default_tags: tags (labels) that each resource gets.
        max_retries: how often a call that the cloud throttled is repeated.
    """

    endpoint: str
    token: str = field(repr=False)
    region: str
    project: str = ""
    zone: str = ""
    default_tags: Mapping[str, str] = field(default_factory=dict[str, str])
    max_retries: int = MAX_RETRIES
    ignored_keys: frozenset[str] = frozenset()
    ignored_prefixes: tuple[str, ...] = ()


def decode_settings(arguments: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """The provider's arguments, nested ones read from their JSON texts.

    Raises:
        ValueError: a setting that the local provider does not model.
    """
    given = {k: _decoded(v) for k, v in arguments.items()}
    if unknown := sorted(k for k, v in given.items() if k not in known and v not in ("", [], {})):
        raise ValueError(f"provider setting {unknown[0]!r} is not modelled by the local provider; remove it")
    return given


def _decoded(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in {"{", "["}:
        return json.loads(value)
    return value


class Session(ABC):
    """Settings and clients that all requests of one provider share. Safe to use from many threads."""

    def __init__(self, settings: Settings, *, root: Path | None = None) -> None:
        self.settings = settings
        self.root = root or Path.cwd()
        self.cancelled = threading.Event()
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], Any] = {}

    def client(self, service: str, region: str) -> Any:
        """A client of the embedded cloud, made when it is first asked for."""
        with self._lock:
            key = (service, region)
            if key not in self._clients:
                self._clients[key] = self.make_client(service, region)
            return self._clients[key]

    @abstractmethod
    def make_client(self, service: str, region: str) -> Any:
        """A new client of one service."""


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
        """The client of a service in this request's region."""
        return self.session.client(service, self.region)

    @property
    def account(self) -> str:
        """AWS: the account number of the embedded cloud."""
        return str(self.client("sts").get_caller_identity()["Account"])

    @property
    def project(self) -> str:
        """Google Cloud: the project of the provider's settings."""
        return self.session.settings.project

    def wait(self, what: str, done: Callable[[], bool], *, limit_s: float | None = None) -> None:
        """Poll `done` until it returns True.

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
