"""What the scale watchdog knows of a pool. Pure types. `None` is "not reported" everywhere."""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from gpufleet.domain.decisions import Reason
from gpufleet.domain.policies import ScalePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Replicas that something asks for."""

    replicas: int
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How much work there is, in replicas' worth: 2.5 keeps two and a half replicas as busy as they may be."""

    now: float
    peak: float
    """Highest over the policy's `down_after`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """What the engines say. Peaks are over the policy's `down_after`."""

    reporting: int
    """Replicas whose metrics were read."""
    coverage: float | None = None
    """Share of `down_after` that the store has samples of the pool from; None: all of it was seen otherwise."""
    waiting: float = 0.0
    """Requests in the engines' queues, all replicas."""
    backlog_s: float | None = None
    """The queue as work: seconds that one replica would need for it; None: not known."""
    waiting_peak: float = 0.0
    running_peak: float = 0.0
    kv_cache: float | None = None
    """Mean share of the KV cache in use, 0 to 1."""
    kv_cache_peak: float | None = None
    first_token_s: float | None = None
    """Seconds, 95th percentile; None without traffic, too."""
    first_token_peak_s: float | None = None
    inter_token_s: float | None = None
    inter_token_peak_s: float | None = None
    full: float | None = None
    """Requests that a replica ran when more waited than may, over the last day; None: never, or not known."""
    slow: float | None = None
    """The same when latency missed its objective."""
    tokens_peak: float | None = None
    """Tokens per second, in and out, all replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePool:
    """One pool."""

    name: str
    policy: ScalePolicy
    target: int
    """As it stands."""
    min: int
    max: int
    ready: int
    """Replicas in service."""
    unread: int = 0
    """Those of them whose metrics were not read, whoever else's were."""
    held: float = 0
    """Requests that the router holds because the pool has no replica."""
    held_peak: float = 0
    """The most of them at once over the policy's `down_after`."""
    demand: Demand | None = None
    pressure: Pressure | None = None
    cold_start: timedelta = timedelta(minutes=6)
    paused_by: str | None = None
    held_by: str | None = None
    """Who holds the target by hand, until when and why."""
    policy_seen: bool = True
    usd_per_hour: Decimal | None = None
    """Of one replica; None: unknown."""
