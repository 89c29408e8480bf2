"""The rules that people set for the watchdogs of a pool. Values only; `document` reads them."""

from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicy:
    """When an instance counts as idle and how carefully it is ended."""

    window: timedelta = timedelta(minutes=30)
    """Evidence is judged over this whole window."""
    coverage: float = 0.9
    """Least share of the expected samples, per source, 0 to 1."""
    gpu_active_below: float = 0.01
    """Noise floor of `gpu_active` (0 to 1): at or above it the GPU works."""
    grace: timedelta = timedelta(minutes=10)
    """From mark to act."""
    min_age: timedelta = timedelta(minutes=20)
    """Younger instances are warming up."""
    max_stops_per_run: int = 2
    max_stops_per_hour: int = 6
    max_stops_per_day: float | None = 2.0
    """For each instance: stops cost cold starts, so they go to the longest gaps. None: no such limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotPolicy:
    """When on-demand stands in for missing spot, and when spot comes back."""

    fallback_after: timedelta = timedelta(seconds=60)
    """Spot that is not ready this long after it was lost or asked for is replaced."""
    hold: timedelta = timedelta(minutes=15)
    """Spot must have been ready this long before on-demand is given back."""
    price_ceiling: Decimal = Decimal("0.9")
    """Highest spot price as a share of on-demand."""
    zone_backoff: timedelta = timedelta(minutes=20)
    """A zone that refused or lost capacity is tried last for this long."""
    max_surge: int = 1
    """Most instances above target while on-demand is given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRule:
    """A target for a part of the week, in the time zone of the people who wrote it."""

    days: tuple[str, ...]
    """`mon` to `sun`."""
    start: str
    """`08:00`, local time."""
    end: str
    target: int
    """Least target while it holds; load may raise it."""
    timezone: str = "UTC"
    except_on: tuple[date, ...] = ()
    """Days that do not count: holidays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePolicy:
    """When a pool needs more or fewer replicas."""

    waiting_per_replica_above: float = 4
    """Queued requests per ready replica that are too many."""
    kv_cache_above: float = 0.8
    """Share of the KV cache, 0 to 1, that is too much."""
    requests_per_replica: float | None = None
    """Requests in flight that one replica carries within its objectives. None: unknown."""
    tokens_per_second_per_replica: float | None = None
    """The same in tokens per second, input and output together; used where the other is unknown."""
    first_token_s: float | None = None
    """Objective: 95 % of requests have their first token by then."""
    inter_token_s: float | None = None
    """Objective: 95 % of tokens follow the one before within this time."""
    headroom: float = 0.1
    """Share on top of the work that is there."""
    down_after: timedelta = timedelta(minutes=15)
    """The highest load of this time must fit into fewer replicas."""
    schedule: tuple[ScheduleRule, ...] = field(default_factory=tuple)
