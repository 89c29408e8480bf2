"""Facts about a pool for the scale watchdog. Pure types. `None` means "not reported" everywhere."""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from gpufleet.domain.decisions import Reason
from gpufleet.domain.policies import ScalePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Replicas that a reason requires."""

    replicas: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Amount of work in replicas: 2.5 is the work of two and a half fully used replicas."""

    now: float
    peak: float
    """Highest over the policy's `down_after`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Load that the engines report. Peaks are over `down_after` of the policy."""

    reporting: int
    """Replicas whose metrics were read."""
    coverage: float | None = None
    """Share of `down_after` with samples of the pool; None: not measured, as complete."""
    waiting: float = 0.0
    """Requests in the engines' queues, all replicas."""
    backlog_s: float | None = None
    """The queue as work: seconds that one replica would need for it; None: unknown."""
    waiting_peak: float = 0.0
    running_peak: float = 0.0
    kv_cache: float | None = None
    """Mean share of the KV cache in use, 0 to 1."""
    kv_cache_peak: float | None = None
    first_token_s: float | None = None
    """Seconds, 95th percentile; None also without traffic."""
    first_token_peak_s: float | None = None
    inter_token_s: float | None = None
    inter_token_peak_s: float | None = None
    full: float | None = None
    """Running requests per replica when the queue was too long, over the last day; None: never, or unknown."""
    slow: float | None = None
    """Running requests per replica when latency missed its objective, over the last day; None: never, or unknown."""
    tokens_peak: float | None = None
    """Tokens per second, in and out, all replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoolView:
    """One pool."""

    name: str
    policy: ScalePolicy
    target: int
    """Current target."""
    min: int
    max: int
    ready: int
    """Replicas in service."""
    without_metrics: int = 0
    """Ready replicas whose metrics were not read."""
    held_requests: float = 0
    """Requests that the router holds because the pool has no replica."""
    held_requests_peak: float = 0
    """Maximum number of requests held at once over `down_after` of the policy."""
    demand: Demand | None = None
    pressure: Pressure | None = None
    cold_start: timedelta = timedelta(minutes=6)
    paused_by: str | None = None
    target_held_by: str | None = None
    """Who holds the target, until when and why."""
    policy_seen: bool = True
    usd_per_hour: Decimal | None = None
    """Price of one replica; None: unknown."""
