"""The metrics of an instance over a window, summarized. Types only, no I/O.

`None` always means "not reported": a zero is a measured zero.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType, Instance, Phase
from gpufleet.domain.prices import FREE_IF_PREEMPTED

STALE_AFTER: Final = 2
"""Number of scrape intervals after which the newest sample is too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEvidence:
    """Evidence from the serving engine. With several engines on an instance, the highest load and the lowest coverage
    count.
    """

    coverage: float | None = None
    """Lowest share of the expected samples among its series, 0 to 1, by number and by time."""
    missed: float | None = None
    """Highest number of scrapes in which one series was missing while other series of the page were present."""
    newest_age: timedelta | None = None
    """Age of the newest sample, in the series for which it is highest."""
    interval: timedelta | None = None
    """Scrape interval of this source; None: `Evidence.interval` applies."""
    running_max: float | None = None
    """Maximum of requests in flight, of the gauges that prove work; 0 if the engine has none. NaN if a gauge or
    counter had an invalid value."""
    waiting_max: float | None = None
    """Maximum of queued requests."""
    tokens: float | None = None
    """Prompt and generation tokens served; counter resets are taken into account."""
    counter_changes: float | None = None
    """Number of changes of the token and request counters, including resets. 0: constant."""
    started_age: timedelta | None = None
    """Time since the youngest engine process started."""
    restarts: float = 0.0
    """Number of changes of a process's start time, independent of its clock."""
    pulse_changes: float | None = None
    """Changes of the process's CPU counter; 0 for a running process means that old values are repeated."""
    unknown: str | None = None
    """Why its numbers prove nothing: an engine or a release without a contract, a name that its page lacks, or a
    window that is too short for the engine. None: they have the meaning above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvidence:
    """Evidence from the exporter of the accelerators, over all devices and slices of the instance."""

    gpus: int | None = None
    """Number of devices that report their activity now, by any label that identifies them, whichever is lowest."""
    metered: int | None = None
    """Number of devices that report now a number that changes also at rest, such as their energy."""
    units: int | None = None
    """Number of schedulable units that report their activity now: slices, and devices without slices."""
    coverage: float | None = None
    missed: float | None = None
    newest_age: timedelta | None = None
    interval: timedelta | None = None
    active_max: float | None = None
    """Highest `gpu_active` of any unit, 0 to 1."""
    active_min: float | None = None
    """Lowest `gpu_active` of any unit; below 0 it is not a measurement. NaN if a number had an invalid value."""
    util_max: float | None = None
    """Highest activity in percent, by numbers whose 0 proves nothing, such as utilization: it can show work only."""
    work_changes: float = 0.0
    """Number of changes of the counters of executions: each shows work."""
    computed_ago: timedelta | None = None
    """Shortest time since a unit last computed; None: not reported."""
    energy_changes: float | None = None
    """Lowest number of recent changes of a number that changes also at rest, such as energy; 0 means that the
    exporter repeats old values."""
    without_pulse: bool = False
    """Whether the exporter has no number that changes at rest: `energy_changes` is not expected."""
    watts_max: float | None = None
    """Highest mean power of any GPU over a fifth of the window, from its energy counter, which covers every burst."""
    unknown: tuple[str, ...] = ()
    """Codes that say why a unit's numbers do not prove that it is idle, sorted (`serving.accelerators`)."""
    implausible: tuple[str, ...] = ()
    """Codes that say why a number has another unit, or was not measured, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence of engine and GPUs over one window."""

    window: timedelta
    interval: timedelta
    """The longer scrape interval of both sources."""
    engine: EngineEvidence | None = None
    gpu: GpuEvidence | None = None
    reached: bool | None = None
    """Whether the engine has answered since boot; None if not looked up, because it answered in the window."""

    def is_new(self, side: EngineEvidence | GpuEvidence) -> bool:
        """Return whether the newest sample is recent enough for a source that still reports."""
        return side.newest_age is not None and side.newest_age <= STALE_AFTER * (side.interval or self.interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """The status that a node agent reports."""

    phase: Phase
    ready: bool
    draining: bool
    drained: bool
    drain_by: DrainOwner | None = None
    """Who requested its drain; None if there is no drain, or if an agent of release 0.1 does not report it."""
    reason: str | None = None
    """Why it drains, for people."""
    notice_at: datetime | None = None
    """When the cloud announced the preemption of the instance, whoever owns the drain."""
    requests_running: float | None = None
    phase_since: datetime | None = None
    error: str | None = None
    has_served: bool = False
    """Whether it was ready at least once since its launch. Agents of release 0.1 do not report it."""


def is_free_if_preempted(instance: Instance, now: datetime) -> bool:
    """Return whether a preemption now makes the instance free of charge. A termination by us is charged."""
    young = now - instance.launched_at < FREE_IF_PREEMPTED[instance.cloud]
    return young and instance.capacity_type is CapacityType.SPOT


def is_termination_left_to_cloud(instance: Instance, agent: AgentStatus | None, now: datetime) -> bool:
    """Return whether watchdogs leave the termination to the cloud: it is announced, and makes the instance free."""
    return agent is not None and agent.notice_at is not None and is_free_if_preempted(instance, now)
