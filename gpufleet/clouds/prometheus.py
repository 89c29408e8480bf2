"""Client of Prometheus, or of any store with its HTTP API: instant queries and scrape intervals."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import yaml

from gpufleet.clouds.clock_check import seconds_apart
from gpufleet.clouds.deadlines import DeadlineTransport
from gpufleet.clouds.plain_http import context_without_authorities
from gpufleet.domain.activity import CloudError
from gpufleet.domain.parsed import is_map

_TIMEOUT: Final = 30.0
LONGEST_S: Final = 120.0
"""Time limit for one complete response, headers included. Much shorter than the lease of a run."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"(\d+)(ms|s|m|h|d)")


class Prometheus:
    """A metrics store. Returns complete results or raises CloudError. Counts its calls."""

    def __init__(
        self,
        url: str,
        client: httpx.Client | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        longest_s: float = LONGEST_S,
    ) -> None:
        self._url = url.rstrip("/")
        self._now = now
        self._clock = clock
        self._longest_s = longest_s
        self._client = client or _client(self._url, longest_s)
        self._intervals: dict[str, timedelta] | None = None
        self.calls: dict[str, int] = {}

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def query(self, expression: str, at: datetime) -> Sequence[tuple[Mapping[str, str], float]]:
        """Labels and value of each series in the result of an instant query. Raises CloudError."""
        # POST, because long queries exceed the URL length that proxies allow
        answer = self._ask("POST", "/api/v1/query", data={"query": expression, "time": f"{at.timestamp():.3f}"})
        kind = answer.get("resultType") if is_map(answer) else None
        if kind != "vector":
            raise CloudError(f"Prometheus at {self._url}: expected a vector from a query, got {kind!r}")
        try:
            return [(row["metric"], float(row["value"][1])) for row in answer["result"]]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise CloudError(f"Prometheus at {self._url}: expected a vector of numbers from a query") from error

    def now(self) -> datetime:
        """The store's own time, with millisecond precision. The store timestamps its samples with this clock."""
        # without a time argument, the store evaluates the expression at its current time
        answer = self._ask("POST", "/api/v1/query", data={"query": "time()"})
        try:
            return datetime.fromtimestamp(float(answer["result"][1]), UTC)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise CloudError(
                f"Prometheus at {self._url}: expected a scalar from time(), got {answer!r:.100}"
            ) from error

    def interval(self, job: str) -> timedelta | None:
        """Scrape interval of a job; None if the configuration has no such job. Raises CloudError."""
        if self._intervals is None:
            answer = self._ask("GET", "/api/v1/status/config")
            if not is_map(answer) or not isinstance(answer.get("yaml"), str):
                raise CloudError(f"Prometheus at {self._url}: /api/v1/status/config contains no configuration")
            self._intervals = read_intervals(answer["yaml"])
        return self._intervals.get(job)

    def _ask(self, method: str, path: str, data: Mapping[str, str] | None = None) -> Any:
        self.calls[path] = self.calls.get(path, 0) + 1
        asked, began = self._now(), self._clock()
        try:
            with self._client.stream(method, self._url + path, data=data) as response:
                self._same_time(response.headers.get("Date"), asked)
                content = b"".join(self._in_time(response, began))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise CloudError(f"Prometheus at {self._url} did not answer: {error}") from error
        try:
            body = json.loads(content)
        except ValueError as error:
            raise self._not_valid(response.status_code, str(error)) from error
        if not response.is_success or not is_map(body) or body.get("status") != "success":
            status, reason = response.status_code, body.get("error") if is_map(body) else None
            if response.is_success and not reason:
                raise self._not_valid(status, f"{body!r:.100}")
            raise CloudError(
                f"Prometheus at {self._url} answered with status {status}: {reason or 'no reason given'}"
            )
        if body.get("warnings") or body.get("isPartial"):
            # a store that queries several others reports when one of them failed (VictoriaMetrics: `isPartial`);
            # an incomplete result is treated as an error
            warnings = "; ".join(body.get("warnings") or ("isPartial is set",))
            raise CloudError(f"Prometheus at {self._url} returned a partial answer: {warnings}")
        return body.get("data")

    def _not_valid(self, status: int, why: str) -> CloudError:
        return CloudError(
            f"Prometheus at {self._url} sent no valid answer (status {status}): {why}; check that this is the address"
            " of a Prometheus"
        )

    def _in_time(self, response: httpx.Response, began: float) -> Iterator[bytes]:
        """Yield the body within the time limit. The limit of each read alone would allow a body that never ends."""
        size = 0
        for part in response.iter_bytes():
            size += len(part)
            if self._clock() - began > self._longest_s:
                raise CloudError(
                    f"Prometheus at {self._url} sent {size} bytes in {self._longest_s:g} s without ending its answer"
                )
            yield part

    def _same_time(self, date: str | None, asked: datetime) -> None:
        """Raise CloudError if the clocks differ too much: old samples would then be read as current ones."""
        apart = seconds_apart(date, asked, self._now())
        if apart is not None:
            raise CloudError(
                f"Prometheus at {self._url} reports the time {date}, {apart:.0f} s from the time of this machine:"
                " synchronize both with NTP"
            )


def _client(url: str, longest_s: float) -> httpx.Client:
    # no proxies and trust_env off: a proxy from the environment must not receive requests to private addresses
    context = (
        context_without_authorities() if url.startswith("http://") else httpx.create_ssl_context(trust_env=False)
    )
    return httpx.Client(transport=DeadlineTransport(context, longest_s), timeout=_TIMEOUT, trust_env=False)


def read_intervals(configuration: str) -> dict[str, timedelta]:
    """Scrape interval of each job in a Prometheus configuration (YAML)."""
    document: Mapping[str, Any] = yaml.safe_load(configuration) or {}
    general: str = document.get("global", {}).get("scrape_interval", "1m")
    jobs: list[Mapping[str, str]] = document.get("scrape_configs", [])
    return {job["job_name"]: _duration(job.get("scrape_interval", general)) for job in jobs}


def _duration(text: str) -> timedelta:
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise CloudError(f"Prometheus reports a scrape interval of {text!r}, which is not a duration")
    return timedelta(seconds=sum(int(number) * _UNITS[unit] for number, unit in parts))
