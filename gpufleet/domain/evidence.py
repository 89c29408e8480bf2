"""What the metrics say of an instance over a window. Pure types.

`None` means "not reported" everywhere: a zero is a measured zero.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType, Instance, Phase
from gpufleet.domain.prices import FREE_IF_INTERRUPTED

STALE_AFTER: Final = 2
"""Intervals after which the newest sample is too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEvidence:
    """The serving engine's side. With several engines on an instance, the busiest and the worst covered count."""

    coverage: float | None = None
    """Least share of the expected samples over its series, 0 to 1, by number and by time."""
    missed: float | None = None
    """Most scrapes on which one of its series was missing from a page that others stood on."""
    newest_age: timedelta | None = None
    """Age of the newest sample of the series that is furthest behind."""
    interval: timedelta | None = None
    """From one scrape of this source to the next; None: that of the evidence."""
    running_max: float | None = None
    """Most requests in flight; NaN: a gauge or a counter said what is no number."""
    waiting_max: float | None = None
    """Most requests queued."""
    tokens: float | None = None
    """Prompt and generation tokens served, resets taken into account."""
    counter_changes: float | None = None
    """How often a token or request counter changed, a reset included. 0: flat."""
    started_age: timedelta | None = None
    """Time since the youngest engine process started."""
    restarts: float = 0.0
    """How often the start time of a process changed, whatever its clock says."""
    pulse_changes: float | None = None
    """Changes of the process's CPU counter; 0 of a living process means that old values are repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvidence:
    """The DCGM exporter's side, over all GPUs (and MIG slices) of the instance."""

    gpus: int | None = None
    """GPUs that report now, by UUID or by number, whichever makes fewer."""
    metered: int | None = None
    """GPUs that report their energy now."""
    coverage: float | None = None
    missed: float | None = None
    newest_age: timedelta | None = None
    interval: timedelta | None = None
    active_max: float | None = None
    """Highest `gpu_active` of any GPU, 0 to 1."""
    active_min: float | None = None
    """Lowest; below 0 it is no measurement. NaN: a field of the page said what is no number."""
    util_max: float | None = None
    """Highest DCGM_FI_DEV_GPU_UTIL, 0 to 100: a second opinion where profiling fields read 0 under load."""
    energy_changes: float | None = None
    """Least number of changes of a GPU's energy counter lately; 0: the exporter repeats old values."""
    watts_max: float | None = None
    """Highest mean power of any GPU over a fifth of the window, from its energy counter, which no burst escapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Both sides over one window."""

    window: timedelta
    interval: timedelta
    """Longest scrape interval of the two."""
    engine: EngineEvidence | None = None
    gpu: GpuEvidence | None = None
    reached: bool | None = None
    """Whether the engine ever answered since boot; None: not looked up, since it answered in the window."""

    def is_new(self, side: EngineEvidence | GpuEvidence) -> bool:
        """Whether its newest sample may be that of a source that still reports."""
        return side.newest_age is not None and side.newest_age <= STALE_AFTER * (side.interval or self.interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """What a node agent said of itself."""

    phase: Phase
    ready: bool
    draining: bool
    drained: bool
    drain_by: DrainOwner | None = None
    """Who asked for its drain; None: nobody, or an agent of release 0.1 that does not say."""
    reason: str | None = None
    """Why it drains, for people."""
    notice_at: datetime | None = None
    """When its cloud gave notice that it takes the instance, whoever owns the drain."""
    requests_running: float | None = None
    phase_since: datetime | None = None
    error: str | None = None
    has_served: bool = False
    """Whether it was ready once since its launch. Agents of release 0.1 do not say."""


def is_free_if_taken(instance: Instance, now: datetime) -> bool:
    """Whether its cloud charges nothing for it if it takes it now. What we end ourselves is charged."""
    young = now - instance.launched_at < FREE_IF_INTERRUPTED[instance.cloud]
    return young and instance.capacity_type is CapacityType.SPOT


def is_left_to_its_cloud(instance: Instance, agent: AgentStatus | None, now: datetime) -> bool:
    """Whether no watchdog ends it: it is under a notice, and its cloud charges nothing for what it takes."""
    return agent is not None and agent.notice_at is not None and is_free_if_taken(instance, now)
