"""The contract of an inference engine: how to start, probe and drain it, and what each of its numbers means.

Engines report similar names with different meanings: a token counter may increase only when a request ends, a gauge
may keep its value while the engine sleeps. A contract states for each number when it is refreshed and what it can
prove. Code outside `serving.engines` uses canonical metrics only and never asks which engine it is. Values and
functions only: no I/O, standard library only (the node agent imports it).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final

from serving.engines.launch import Launch
from serving.metrics import NODE_ENGINE_PASSED, NODE_ENGINE_REQUESTS, Metric
from serving.releases import Version, Versions


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
    or_where: Mapping[str, str] = field(default_factory=dict[str, str])
    """A second choice like `where`: series that match all of these are counted, too. Empty: there is none."""

    @property
    def choices(self) -> tuple[Mapping[str, str], ...]:
        """Series that match one of these are counted."""
        return (self.where, self.or_where) if self.or_where else (self.where,)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEvidenceRule:
    """What an engine's numbers can prove about work and idleness."""

    work: tuple[Metric, ...]
    """Each of them proves work: a gauge above 0, or a counter that changed in the window. The numbers of the gate
    (`GATE`) are among them where the engine's own numbers do not show a request that runs."""
    idle: tuple[Metric, ...]
    """All of them together prove that the engine was idle: gauges at 0 and counters constant, over the whole
    window."""
    window: timedelta = timedelta(0)
    """Shortest window over which `idle` is a proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterLabels:
    """Labels of an engine's token counters. Other labels are of a metrics store: series with them are copies."""

    model: str = "model_name"
    """The served model."""
    engine: str = "engine"
    """A part of the page that counts alone: a data-parallel rank, or a version of a model."""
    parts: tuple[str, ...] = ()
    """They divide a counter: the values of all its series add up to it."""


class TokenSource(StrEnum):
    """Where the number of tokens is taken from."""

    ENGINE = "counters of the engine"
    HISTOGRAM = "sums of the engine's histograms"
    ROUTER = "usage records of the router"

    @property
    def code(self) -> str:
        """Its stable code."""
        return self.name.lower()


class TokenError(StrEnum):
    """What a source of tokens may miss, count twice, or count in a later period. The values are stable codes."""

    REQUEST_END = "counted_at_request_end"
    AFTER_LAST_SCRAPE = "after_last_scrape_missing"
    """Tokens between the last scrape and an abrupt end."""
    ABANDONED = "abandoned_streams_missing"
    ABORTED_PROMPT = "aborted_prompts_counted_whole"
    FAILED_INPUT = "failed_input_counted"
    FAILED_OUTPUT = "failed_output_missing"
    UNFINISHED_CACHED = "unfinished_cached_missing"
    OTHER_MODELS = "other_backends_missing"
    NOT_ROUTED = "unrouted_requests_missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """The source of record for tokens, and its known error. The report shows both."""

    source: TokenSource
    error: str
    """For people: which tokens are missing, counted twice, or counted in a later period."""
    errors: tuple[TokenError, ...]
    """The same as codes."""
    per_adapter: bool = False
    """Whether the engine can serve LoRA adapters. The router's usage records count their tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """HTTP paths of the engine, and what they need. None of them makes a GPU work."""

    alive: str
    """It answers 200 while the process can serve."""
    alive_status: str | None = None
    """What the JSON document of a 200 must contain: a field with a value, as `status=healthy`, or a field that is not
    empty, as `data`. Some engines answer 200 when they cannot serve."""
    version: str | None = None
    """Path of a JSON document with the version; None: the engine does not report it."""
    version_field: str = "version"
    version_needs_key: bool = False
    metrics: str | None = "/metrics"
    metrics_port: int | None = None
    """None: the port of the API."""


class StopMode(StrEnum):
    """What an engine does after SIGTERM."""

    FINISHES = "finishes running requests within its time limit, refuses new ones"
    FINISHES_AND_ACCEPTS = "finishes running requests without a time limit, accepts new ones"
    CUTS = "ends running requests after a short time of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDrain:
    """How an engine ends its requests. Routers are notified first in every case.

    The agent aborts what still runs at the deadline of a drain with SIGKILL, whichever engine it is.
    """

    stop: StopMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """Everything that is specific to one engine."""

    kind: str
    """The name in settings and metrics: the name of its module."""
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
    labels: CounterLabels = CounterLabels()
    sources: tuple[str, ...]
    """Where the facts are from: files of the engine's repository with their commit or release, or recorded pages."""
    launch: Launch | None = None
    """How the fleet starts it. None: read-only, the fleet reads its numbers."""
    run: str | None = None
    """What of it the project ran: its release and on what. None: nothing, everything is read from its source."""

    @property
    def newest(self) -> Version:
        """The start of the newest range of releases that the contract covers."""
        bounds = [series.versions.since for series in self.series if series.versions.since] + [self.tested.since]
        return max(bound for bound in bounds if bound is not None)

    def covers(self, version: str | None) -> bool:
        """Whether the release is known and the numbers have the meaning of this contract."""
        try:
            return version is not None and Version.parse(version) in self.tested
        except ValueError:
            return False

    def release(self, version: str | None) -> Version:
        """Return the release to read a page with: the newest one with a contract if it does not cover `version`."""
        return Version.parse(version) if version is not None and self.covers(version) else self.newest

    def at(self, version: Version) -> tuple[EngineSeries, ...]:
        """Return the series of a release."""
        return tuple(series for series in self.series if version in series.versions)


GATE: Final = (NODE_ENGINE_REQUESTS, NODE_ENGINE_PASSED)
"""What the gate counts. It is exact at every moment: each request is open from its first to its last byte."""


def faults(contract: Contract) -> list[str]:
    """Return what a contract claims that its own numbers do not support. Empty: consistent."""
    found: list[str] = []
    for metric in (*contract.evidence.work, *contract.evidence.idle):
        carriers = [series for series in contract.series if series.measures is metric]
        if not carriers and metric not in GATE:
            found.append(f"evidence uses {metric}, which no series of {contract.kind} carries")
        if metric in contract.evidence.work and any(series.kept_at_rest for series in carriers):
            found.append(f"{metric} stays above 0 at rest, so it does not prove work")
    proofs = [series for series in contract.series if series.measures in contract.evidence.idle]
    if (
        contract.series
        and all(series.zero_while_busy for series in proofs)
        and NODE_ENGINE_REQUESTS not in contract.evidence.idle
    ):
        found.append("each number of `idle` can be 0 while a request runs: add the numbers of the gate")
    longest = max((series.lag for series in proofs), default=timedelta(0))
    if contract.evidence.window < longest:
        found.append(f"the window of {contract.evidence.window} is shorter than the lag of {longest}")
    return found
