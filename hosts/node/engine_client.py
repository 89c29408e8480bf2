"""HTTP client of the engine on this instance, and of its gate if it has one."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from hosts.node.local_http import fetch
from hosts.node.ports import EngineIdentity, EngineLoad, GateRequests, ProcessTimes, StepError
from serving import engine_gate, metrics
from serving.engines.contract import Contract
from serving.engines.reading import Reading, read
from serving.exposition import parse

_TIMEOUT_S: Final = 2.0
_WARM_UP_TIMEOUT_S: Final = 60.0
_LONGEST_VERSION: Final = 60
_IN_FLIGHT: Final = (metrics.REQUESTS_RUNNING, metrics.OPEN_REQUESTS)
"""Gauges of requests that run: the highest counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUrls:
    """Where the parts of an engine listen, without paths."""

    api: str
    metrics: str
    clients: str
    """Where requests are sent."""
    count: str | None = None
    """Where its gate answers the number of requests; None: the engine has no gate."""

    @classmethod
    def of(cls, contract: Contract, address: str, port: int) -> Self:
        """Return the URLs on an instance with that address. `port`: where requests are sent."""
        clients, probes = f"http://{address}:{port}", contract.probes
        gate = contract.launch.gate if contract.launch else None
        host = address if gate is None else engine_gate.loopback_of(address)
        api = port if gate is None else gate.port
        return cls(
            api=f"http://{host}:{api}",
            metrics=f"http://{host}:{probes.metrics_port or api}",
            clients=clients,
            count=None if gate is None else f"http://{host}:{engine_gate.COUNT_PORT}/",
        )


class HttpEngine:
    """The engine at its URLs. A text: an engine without a gate whose parts all listen there."""

    def __init__(  # noqa: PLR0913
        self,
        urls: EngineUrls | str,
        served_name: str,
        contract: Contract,
        read_key: Callable[[], str | None] = lambda: None,
        process_times: Callable[[], ProcessTimes | None] = lambda: None,
        stated_version: str | None = None,
    ) -> None:
        """Create a client. `stated_version`: the release in the settings, if the engine does not report its own."""
        self._urls = EngineUrls(api=urls, metrics=urls, clients=urls) if isinstance(urls, str) else urls
        self._served_name = served_name
        self._contract = contract
        self._read_key = read_key
        self._process_times = process_times
        self._stated_version = stated_version
        self._version: str | None = None
        self._missing: tuple[str, ...] = ()

    def healthy(self) -> bool:
        """Return whether the engine's health check succeeds."""
        probes = self._contract.probes
        try:
            body = fetch(f"{self._urls.api}{probes.alive}", _TIMEOUT_S)
            return probes.alive_status is None or _has(body, probes.alive_status)
        except (OSError, ValueError):
            return False

    def load(self) -> EngineLoad | None:
        """Return the numbers of running and waiting requests; None if the engine does not report them."""
        reading = self._read()
        if reading is None:
            return None
        self._missing = reading.missing
        work = self._contract.evidence.work
        running = [reading.values[metric] for metric in _IN_FLIGHT if metric in work and metric in reading.values]
        waiting = reading.values.get(metrics.REQUESTS_WAITING) if metrics.REQUESTS_WAITING in work else 0.0
        if self._urls.count is not None:
            requests = self.gate_requests()
            if requests is None:
                return None
            # it contains those that wait
            running, waiting = [*running, float(requests.opened)], 0.0
        elif metrics.NODE_ENGINE_REQUESTS in work:
            return None
        return None if not running or waiting is None else EngineLoad(running=max(running), waiting=waiting)

    def gate_requests(self) -> GateRequests | None:
        """Return the requests that the gate counts; None without a gate or a valid answer."""
        if self._urls.count is None:
            return None
        try:
            opened, passed = fetch(self._urls.count, _TIMEOUT_S).split()
            return GateRequests(opened=int(opened), passed=int(passed))
        except (OSError, ValueError):
            return None

    def identity(self) -> EngineIdentity:
        """Return the engine, its release and the names that its page lacked at the last `load`."""
        return EngineIdentity(
            kind=self._contract.kind,
            version=self._version or self._stated_version,
            missing=self._missing,
            process=self._process_times(),
        )

    def _read(self) -> Reading | None:
        """Return the page; None without a valid answer. An unknown release is read as the newest known one."""
        try:
            page = tuple(parse(fetch(f"{self._urls.metrics}{self._contract.probes.metrics}", _TIMEOUT_S).decode()))
        except (OSError, ValueError):
            # another release may run when it answers again
            self._version = None
            return None
        if self._version is None:
            self._version = self._fetch_version()
        return read(self._contract, self._contract.release(self._version or self._stated_version), page)

    def _fetch_version(self) -> str | None:
        """Return what the engine reports as its release, shortened; None if it reports none."""
        probes = self._contract.probes
        if probes.version is None:
            return None
        try:
            key = self._read_key() if probes.version_needs_key else None
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            request = urllib.request.Request(f"{self._urls.api}{probes.version}", headers=headers)
            answer = json.loads(fetch(request, _TIMEOUT_S))
        except (OSError, ValueError):
            return None
        found = cast("dict[str, Any]", answer).get(probes.version_field) if isinstance(answer, dict) else None
        return found[:_LONGEST_VERSION] if isinstance(found, str) and found.isprintable() else None

    def warm_up(self, key: str) -> None:
        """Send one small request, so that the first user does not wait for lazy initialization. Raises StepError."""
        body = json.dumps({"model": self._served_name, "prompt": "Hello", "max_tokens": 4}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"{self._urls.clients}/v1/completions", data=body, headers=headers)
        try:
            found = json.loads(fetch(request, _WARM_UP_TIMEOUT_S))
        except urllib.error.HTTPError as error:
            body_text = error.read(300).decode(errors="replace")
            raise StepError(f"the first request returned HTTP {error.code}: {body_text}") from error
        except (OSError, ValueError) as error:
            raise StepError(f"the first request failed: {error}") from error
        if not isinstance(found, dict) or not cast("dict[str, Any]", found).get("choices"):
            raise StepError("the response to the first request contains no choices")


def _has(body: bytes, expected: str) -> bool:
    """Return whether a JSON document has what `Probes.alive_status` describes. Raises ValueError."""
    document = json.loads(body)
    name, separator, value = expected.partition("=")
    found = cast("dict[str, Any]", document).get(name) if isinstance(document, dict) else None
    return found == value if separator else bool(found)
