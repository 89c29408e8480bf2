"""HTTP client of the engine on this instance."""

import json
import urllib.error
import urllib.request
from typing import Any, Final, cast

from hosts.node.local_http import fetch
from hosts.node.ports import EngineIdentity, EngineLoad, StepError
from serving import metrics
from serving.engines.contract import Contract, Version
from serving.engines.reading import Reading, read
from serving.exposition import parse

_TIMEOUT_S: Final = 2.0
_WARM_UP_TIMEOUT_S: Final = 60.0
_LONGEST_VERSION: Final = 60


class HttpEngine:
    """The engine at a URL."""

    def __init__(self, url: str, served_name: str, contract: Contract) -> None:
        self._url = url
        self._served_name = served_name
        self._contract = contract
        self._version: str | None = None
        self._missing: tuple[str, ...] = ()

    def healthy(self) -> bool:
        """Return whether the engine's health check succeeds."""
        try:
            fetch(f"{self._url}{self._contract.probes.alive}", _TIMEOUT_S)
        except OSError:
            return False
        return True

    def load(self) -> EngineLoad | None:
        """Return the numbers of running and waiting requests; None if the engine does not report them."""
        reading = self._read()
        if reading is None:
            return None
        self._missing = reading.missing
        running = reading.values.get(metrics.REQUESTS_RUNNING)
        waiting = reading.values.get(metrics.REQUESTS_WAITING)
        return None if running is None or waiting is None else EngineLoad(running=running, waiting=waiting)

    def identity(self) -> EngineIdentity:
        """Return the engine, its release and the names that its page lacked at the last `load`."""
        return EngineIdentity(kind=self._contract.kind, version=self._version, missing=self._missing)

    def _read(self) -> Reading | None:
        """Return the page; None without a valid answer. An unknown release is read as the newest known one."""
        try:
            page = tuple(parse(fetch(f"{self._url}{self._contract.probes.metrics}", _TIMEOUT_S).decode()))
        except (OSError, ValueError):
            # another release may run when it answers again
            self._version = None
            return None
        if self._version is None:
            self._version = self._fetch_version()
        return read(self._contract, self._release(), page)

    def _release(self) -> Version:
        newest = self._contract.newest
        try:
            found = newest if self._version is None else Version.parse(self._version)
        except ValueError:
            return newest
        return found if found in self._contract.tested else newest

    def _fetch_version(self) -> str | None:
        """Return what the engine reports as its release, shortened; None if it reports none."""
        probes = self._contract.probes
        try:
            answer = json.loads(fetch(f"{self._url}{probes.version}", _TIMEOUT_S))
        except (OSError, ValueError):
            return None
        found = cast("dict[str, Any]", answer).get(probes.version_field) if isinstance(answer, dict) else None
        return found[:_LONGEST_VERSION] if isinstance(found, str) and found.isprintable() else None

    def warm_up(self, key: str) -> None:
        """Send one small request, so that the first user does not wait for lazy initialization. Raises StepError."""
        body = json.dumps({"model": self._served_name, "prompt": "Hello", "max_tokens": 4}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"{self._url}/v1/completions", data=body, headers=headers)
        try:
            found = json.loads(fetch(request, _WARM_UP_TIMEOUT_S))
        except urllib.error.HTTPError as error:
            body_text = error.read(300).decode(errors="replace")
            raise StepError(f"the first request returned HTTP {error.code}: {body_text}") from error
        except (OSError, ValueError) as error:
            raise StepError(f"the first request failed: {error}") from error
        if not isinstance(found, dict) or not cast("dict[str, Any]", found).get("choices"):
            raise StepError("the response to the first request contains no choices")
