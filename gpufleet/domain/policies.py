"""The policies of a pool's watchdogs, as users set them. Values only; `gpufleet.settings.document` reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

AS_BEFORE: Final = "as_before"
"""Metadata key of a setting that an upgrade adds: the value with which watchdogs behave as before the upgrade.

With that value, a policy counts as the accepted one. Keep the value if the default changes later: users must
accept that change.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicy:
    """When an instance counts as idle, and the limits on its termination.

    Durations are written as `30m`. `coverage` and `gpu_active_below` are shares from 0 to 1, and the limits are
    numbers of instances per pass or hour. The limit per day is multiplied by the number of instances of the pool.
    """

    window: timedelta = timedelta(minutes=30)
    """Evidence must cover this whole window."""
    coverage: float = 0.9
    """Minimum share of the expected samples, per source, 0 to 1."""
    gpu_active_below: float = 0.01
    """Noise floor of `gpu_active` (0 to 1): at or above it, the GPU counts as active."""
    grace: timedelta = timedelta(minutes=10)
    """Time from the mark to the action."""
    min_age: timedelta = timedelta(minutes=20)
    """Younger instances are still warming up."""
    max_stops_per_run: int = 2
    max_stops_per_hour: int = 6
    max_stops_per_day: float | None = 6.0
    """Limit per instance of the pool: more stops would annoy users who wait for it. None: no limit."""
    stop_price: timedelta | None = field(default=timedelta(minutes=30), metadata={AS_BEFORE: None})
    """Cost of one stop in GPU time, in addition to the cold start. None: only window and grace decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotPolicy:
    """When on-demand replaces missing spot, and when the pool returns to spot.

    Durations are written as `15m`. `price_ceiling` is a share of the on-demand price; the limits are numbers of
    instances.
    """

    fallback_after: timedelta = timedelta(seconds=60)
    """Spot capacity that is not ready this long after its loss or request is replaced by on-demand."""
    hold: timedelta = timedelta(minutes=15)
    """Spot must be ready for this long before on-demand is released."""
    price_ceiling: Decimal = Decimal("0.9")
    """Highest spot price as a share of on-demand."""
    zone_backoff: timedelta = timedelta(minutes=20)
    """A zone that refused or lost capacity is used last for this long."""
    max_surge: int = 2
    """Maximum instances above target and spare while on-demand is released. 0: no moves between zones, and spot
    returns one instance at a time."""
    max_stops_per_run: int = 2
    """Limit for optional stops: released on-demand, surplus, moves between zones."""
    max_stops_per_hour: int = 12
    max_starts_per_hour: int | None = field(default=None, metadata={AS_BEFORE: None})
    """Maximum launches per hour in all groups of the pool. None: three times the pool's `max`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRule:
    """A minimum target, in instances, for a part of the week. `start` and `end` are local times such as `08:00`."""

    days: tuple[str, ...]
    """`mon` to `sun`."""
    start: str
    """Local time, such as `08:00`."""
    end: str
    target: int
    """Minimum target while the rule applies; load can raise it."""
    timezone: str = "UTC"
    except_on: tuple[date, ...] = ()
    """Days on which the rule does not apply, such as holidays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePolicy:
    """When a pool needs more or fewer replicas.

    `first_token_s` and `inter_token_s` are in seconds, `kv_cache_above` and `headroom` are shares (0.1 for 10 %), and
    `down_after` is a duration such as `1h`.
    """

    waiting_per_replica_above: float = 4
    """The pool grows above this number of queued requests per ready replica."""
    kv_cache_above: float = 0.8
    """The pool grows above this used share of the KV cache, 0 to 1."""
    requests_per_replica: float | None = None
    """Requests in flight that one replica can serve within its objectives. None if unknown."""
    tokens_per_second_per_replica: float | None = None
    """The same capacity in tokens per second, input plus output; used if `requests_per_replica` is unknown."""
    first_token_s: float | None = None
    """Objective: 95 % of requests get their first token within this time, in seconds."""
    inter_token_s: float | None = None
    """Objective: 95 % of tokens follow the previous one within this time, in seconds."""
    headroom: float = 0.1
    """Minimum spare share above the highest load."""
    down_after: timedelta = timedelta(hours=1)
    """The pool keeps the replicas that the highest load within this time needs."""
    schedule: tuple[ScheduleRule, ...] = field(default_factory=tuple)


class OrphanAction(StrEnum):
    """What is done with an idle GPU instance outside every pool."""

    MARK = "mark"
    """Write a tag and send a message; never anything else."""
    STOP = "stop"
    """Mark first; stop it if it is still idle after its grace."""


class EvidenceSource(StrEnum):
    """The source of evidence that an instance outside every pool is idle."""

    PROMETHEUS = "prometheus"
    """Both sources: GPU exporter and engine."""
    CLOUDWATCH = "cloudwatch"
    """The CloudWatch agent's `nvidia_smi` metrics on AWS. There are no engine metrics, so nothing is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanPolicy:
    """Which GPU instances outside every pool a rule selects, and what it does with them. An instance must meet all
    conditions that are set. Durations are written as `24h`.
    """

    name: str
    action: OrphanAction = OrphanAction.MARK
    evidence: EvidenceSource = EvidenceSource.PROMETHEUS
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tag or label -> value; `*` and `?` are wildcards."""
    name_like: str | None = None
    """Name of the machine (AWS: its `Name` tag); `*` and `?` are wildcards."""
    owner: str | None = None
    """Value of the tag `gpu-fleet:owner`, `owner` or `Owner`."""
    older_than: timedelta | None = None
    window: timedelta = timedelta(hours=2)
    """Evidence must cover this whole window."""
    coverage: float = 0.9
    gpu_active_below: float = 0.01
    grace: timedelta = timedelta(hours=24)
    """Time from mark to stop: enough for the owner to read the message."""
    min_age: timedelta = timedelta(hours=24)
    max_stops_per_run: int = 1
    max_stops_per_hour: int = 2
    lose_local_disks: bool = False
    """Whether machines with local disks may be stopped: a stop loses the data on those disks."""
    engine_job: str = "engine"
    """Prometheus job that scrapes the engines; each series needs the label `instance_id`."""
    gpu_job: str = "accelerator"
    """Prometheus job that scrapes the GPU exporters; each series needs the same label."""

    def idle(self) -> IdlePolicy:
        """Return the part of this policy that defines idleness."""
        return IdlePolicy(
            window=self.window,
            coverage=self.coverage,
            gpu_active_below=self.gpu_active_below,
            grace=self.grace,
            min_age=self.min_age,
            max_stops_per_run=self.max_stops_per_run,
            max_stops_per_hour=self.max_stops_per_hour,
        )
