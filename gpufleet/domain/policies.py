"""The rules that people set for the watchdogs of a pool. Values only; `document` reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

AS_BEFORE: Final = "as_before"
"""Metadata of a setting that comes with an upgrade: the value at which watchdogs do what they did without it.

At that value the policy counts as the one that was seen. It stays when the default changes: that is to be seen.
"""


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
    max_stops_per_day: float | None = 6.0
    """For each instance of the pool: more would annoy whoever waits for it. None: no such limit."""
    stop_price: timedelta | None = field(default=timedelta(minutes=30), metadata={AS_BEFORE: None})
    """What one stop costs in GPU time, on top of the cold start. None: window and grace alone decide."""


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
    max_surge: int = 2
    """Most instances above target and spare while on-demand is given back. 0: nothing moves between zones, and spot
    comes back one at a time."""
    max_stops_per_run: int = 2
    """Of its own choice: on-demand that goes back, surplus, moves."""
    max_stops_per_hour: int = 12
    max_starts_per_hour: int | None = field(default=None, metadata={AS_BEFORE: None})
    """Most instances of the pool that start within an hour, of all its groups. None: three times its `max`."""


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
    """Least share on top of the highest load."""
    down_after: timedelta = timedelta(hours=1)
    """The pool keeps what the highest load of this time needs."""
    schedule: tuple[ScheduleRule, ...] = field(default_factory=tuple)


class OrphanAction(StrEnum):
    """What becomes of an idle GPU instance outside every pool."""

    MARK = "mark"
    """A tag and a message; nothing else, ever."""
    STOP = "stop"
    """Marked first; stopped when it is still idle after its grace."""


class EvidenceSource(StrEnum):
    """Who says whether the GPUs of an orphan rest."""

    PROMETHEUS = "prometheus"
    """GPU exporter and engine: both sources."""
    CLOUDWATCH = "cloudwatch"
    """The CloudWatch agent's `nvidia_smi` metrics, on AWS: no engine, so nothing is stopped by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanPolicy:
    """Which GPU instances outside every pool a rule names, and what it does. All that is said must hold of one."""

    name: str
    action: OrphanAction = OrphanAction.MARK
    evidence: EvidenceSource = EvidenceSource.PROMETHEUS
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tag or label to value; `*` and `?` stand for any text."""
    name_like: str | None = None
    """Name of the machine (AWS: its `Name` tag), with `*` and `?`."""
    owner: str | None = None
    """Value of its tag `gpu-fleet:owner`, `owner` or `Owner`."""
    older_than: timedelta | None = None
    window: timedelta = timedelta(hours=2)
    """Evidence is judged over this whole window."""
    coverage: float = 0.9
    gpu_active_below: float = 0.01
    grace: timedelta = timedelta(hours=24)
    """From mark to stop: whoever forgot it shall read the message."""
    min_age: timedelta = timedelta(hours=24)
    max_stops_per_run: int = 1
    max_stops_per_hour: int = 2
    lose_local_disks: bool = False
    """Whether machines may be stopped that have local disks: a stop loses what lies there."""
    engine_job: str = "engine"
    """Prometheus job that scrapes their engines; each series needs the label `instance_id`."""
    gpu_job: str = "dcgm"
    """The same of their GPU exporters."""

    def idle(self) -> IdlePolicy:
        """Its part that says what idle is."""
        return IdlePolicy(
            window=self.window,
            coverage=self.coverage,
            gpu_active_below=self.gpu_active_below,
            grace=self.grace,
            min_age=self.min_age,
            max_stops_per_run=self.max_stops_per_run,
            max_stops_per_hour=self.max_stops_per_hour,
        )
