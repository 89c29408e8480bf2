"""The contract of an inference engine: how to start, probe and drain it, and what each of its numbers means.

Engines report similar names with different meanings: a token counter may increase only when a request ends, a gauge
may keep its value while the engine sleeps. A contract states for each number when it is refreshed and what it can
prove. Code outside `serving.engines` uses canonical metrics only and never asks which engine it is. Values and
functions only: no I/O, standard library only (the node agent imports it).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final, Self

from serving.metrics import NODE_ENGINE_CONNECTIONS, Metric


class EngineKind(StrEnum):
    """The engines with a contract."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    TRITON = "triton"
    LMDEPLOY = "lmdeploy"
    DYNAMO = "dynamo"
    TGI = "tgi"
    OLLAMA = "ollama"


_VERSION: Final = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(?![\d.]*\d{10})")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A release of an engine. Suffixes (`rc1`, `.post1`, `+cu129`) do not change the meaning of numbers: ignored."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the version in a text such as `0.32.0`, `v0.5.23.post1` or `1.2.0rc3`.

        Raises:
            ValueError: the text is not a version.
        """
        match = _VERSION.match(text.strip())
        if match is None:
            raise ValueError(f"engine version: expected numbers such as 0.32.0, got {text[:40]!r}")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """A range of releases: from `since` (included) to `before` (excluded). None: no limit on that side."""

    since: Version | None = None
    before: Version | None = None

    def __contains__(self, version: Version) -> bool:
        return (self.since is None or version >= self.since) and (self.before is None or version < self.before)

    def __str__(self) -> str:
        since = "" if self.since is None else f"{self.since} or later"
        before = "" if self.before is None else f"before {self.before}"
        return ", ".join(part for part in (since, before) if part) or "all"


def versions(since: str | None = None, before: str | None = None) -> Versions:
    """Return a range of releases from two texts. Raises ValueError."""
    return Versions(
        since=None if since is None else Version.parse(since),
        before=None if before is None else Version.parse(before),
    )


class Refresh(StrEnum):
    """The event at which an engine writes a number."""

    REQUEST = "at the start and the end of each request"
    ITERATION = "at each iteration of the scheduler"
    INTERVAL = "at a fixed interval, or each N iterations"
    REQUEST_END = "when a request ends"
    SCRAPE = "when the page is read"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSeries:
    """A metric of the engine's page that carries a canonical metric."""

    name: str
    """Name on the page; of a histogram without `_bucket`, `_sum`, `_count`."""
    measures: Metric
    """The canonical metric."""
    versions: Versions = Versions()
    refresh: Refresh = Refresh.ITERATION
    lag: timedelta = timedelta(0)
    """Longest time from an event to its appearance on the page while the engine works."""
    zero_while_busy: bool = False
    """Whether a gauge can be 0, or a counter constant, for longer than `lag` while a request is processed."""
    kept_at_rest: bool = False
    """Whether a gauge can stay above 0 for longer than `lag` after the last request ended."""
    where: Mapping[str, str] = field(default_factory=dict[str, str])
    """Regular expressions (RE2) of label values; a missing label is empty. Only series that match all of them are
    counted. It excludes ranks that repeat the number of the first one, and parts that are also in a total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEvidenceRule:
    """What an engine's numbers can prove about work and idleness."""

    work: tuple[Metric, ...]
    """Each of them proves work: a gauge above 0, or a counter that changed in the window. The agent's number of
    connections to the engine is one of them where the engine's own numbers do not show a request that runs."""
    idle: tuple[Metric, ...]
    """All of them together prove that the engine was idle: gauges at 0 and counters constant, over the whole
    window."""
    window: timedelta = timedelta(0)
    """Shortest window over which `idle` is a proof."""


class TokenSource(StrEnum):
    """Where the number of tokens is taken from."""

    ENGINE = "counters of the engine"
    HISTOGRAM = "sums of the engine's histograms"
    ROUTER = "usage records of the router"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """The source of record for tokens, and its known error. The report shows both."""

    source: TokenSource
    error: str
    """For people: which tokens are missing, counted twice, or counted in a later period."""
    exact_for_aborts: bool = False
    """Whether the tokens of a request that its client leaves are counted as they were processed."""
    per_adapter: bool = False
    """Whether the engine can serve LoRA adapters. The router's usage records count their tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """HTTP paths of the engine, and what they need. None of them makes a GPU work."""

    alive: str
    """It answers 200 while the process can serve."""
    alive_status: str | None = None
    """JSON field and value that a 200 must contain, as `status=healthy`: some engines answer 200 when they cannot
    serve."""
    version: str | None = None
    """Path of a JSON document with the version; None: the engine does not report it."""
    version_field: str = "version"
    version_needs_key: bool = False
    metrics: str | None = "/metrics"
    metrics_port: int | None = None
    """None: the port of the API."""
    metrics_need_key: bool = False
    shows_drain: bool = False
    """Whether `alive` fails from the start of a drain."""


class StopMode(StrEnum):
    """What an engine does after SIGTERM."""

    FINISHES = "finishes running requests within its time limit, refuses new ones"
    FINISHES_AND_ACCEPTS = "finishes running requests without a time limit, accepts new ones"
    CUTS = "ends running requests after a short time of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDrain:
    """How an engine ends its requests. Routers are notified first in every case."""

    stop: StopMode
    abort: str | None = None
    """Path of a POST that ends all running requests; None: only SIGKILL does."""
    abort_body: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """Everything that is specific to one engine."""

    kind: EngineKind
    title: str
    """Name for people."""
    tested: Versions
    """Releases whose numbers have the meaning below. Outside of it, the engine's numbers are unknown: nothing is
    ended."""
    series: tuple[EngineSeries, ...]
    evidence: EngineEvidenceRule
    tokens: TokenRecord
    probes: Probes
    drain: EngineDrain
    sources: tuple[str, ...]
    """Where the facts are from: files of the engine's repository with their commit or release, or recorded pages."""
    key_variable: str | None = None
    """Environment variable of the API key. With it, inference endpoints require `Authorization: Bearer`."""
    launchable: bool = False
    """Whether the fleet can start it. False: read-only, the fleet reads its numbers."""

    @property
    def newest(self) -> Version:
        """The start of the newest range of releases that the contract covers."""
        bounds = [series.versions.since for series in self.series if series.versions.since] + [self.tested.since]
        return max(bound for bound in bounds if bound is not None)

    def at(self, version: Version) -> tuple[EngineSeries, ...]:
        """Return the series of a release."""
        return tuple(series for series in self.series if version in series.versions)


CONNECTIONS_LAG: Final = timedelta(seconds=75)
"""How long a router keeps an idle connection to an engine open."""


def faults(contract: Contract) -> list[str]:
    """Return what a contract claims that its own numbers do not support. Empty: consistent."""
    found: list[str] = []
    for metric in (*contract.evidence.work, *contract.evidence.idle):
        carriers = [series for series in contract.series if series.measures is metric]
        if not carriers and metric is not NODE_ENGINE_CONNECTIONS:
            found.append(f"evidence uses {metric}, which no series of {contract.kind} carries")
        if metric in contract.evidence.work and any(series.kept_at_rest for series in carriers):
            found.append(f"{metric} stays above 0 at rest, so it does not prove work")
    proofs = [series for series in contract.series if series.measures in contract.evidence.idle]
    if (
        contract.series
        and all(series.zero_while_busy for series in proofs)
        and NODE_ENGINE_CONNECTIONS not in contract.evidence.idle
    ):
        found.append("each number of `idle` can be 0 while a request runs: add the number of connections")
    longest = max((series.lag for series in proofs), default=timedelta(0))
    if contract.evidence.window < longest:
        found.append(f"the window of {contract.evidence.window} is shorter than the lag of {longest}")
    return found
