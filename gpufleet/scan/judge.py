"""Judges the use of an instance by hourly metrics. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Final

from gpufleet.domain.catalogue import working_watts
from gpufleet.domain.gpu_hours import HourUse
from gpufleet.domain.model import Instance, InstanceState
from gpufleet.scan.model import Verdict, VerdictReason

HOUR: Final = timedelta(hours=1)
DELAY: Final = timedelta(minutes=5)
"""An hour is complete once its last values have arrived."""
SAMPLES_PER_HOUR: Final = 60
"""The CloudWatch agent and the Ops Agent collect once a minute by default."""
COVERED: Final = 0.9
"""Minimum share of the samples of an hour."""
IDLE_POWER_SHARE: Final = 0.35
"""Highest power at rest as a share of the rated power. GPUs at rest with a loaded model draw 10 % to 30 %."""


class _Hour(Enum):
    WORKED = auto()
    IDLE = auto()
    LIKELY_IDLE = auto()
    UNKNOWN = auto()
    CONTRADICTED = auto()
    """The utilization is 0, but the power shows work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseVerdict:
    """The verdict about one instance."""

    verdict: Verdict
    reason: VerdictReason
    idle_hours: int = 0
    measured_hours: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanWindows:
    """`whole`: the time for which waste is computed. `idle`: how long an idle instance must have been idle."""

    now: datetime
    whole: timedelta = timedelta(days=7)
    idle: timedelta = timedelta(hours=24)

    @property
    def min_hours(self) -> int:
        """Number of complete hours that contain the idle window."""
        return -(-self.idle // HOUR)

    @property
    def end(self) -> datetime:
        """End of the last complete hour."""
        return _hour_of(self.now - DELAY)

    @property
    def start(self) -> datetime:
        return _hour_of(self.end - self.whole)


def judge(
    instance: Instance,
    use: Mapping[datetime, HourUse] | None,
    windows: ScanWindows,
    gpus: int | None,
    watts: float | None,
) -> UseVerdict:
    """Return the verdict about an instance.

    `use`: by the start of each hour, in UTC; None: the metrics store failed. `gpus`: GPUs of its machine type; None:
    unknown, then nothing proves that all of them are measured. `watts`: rated power of one GPU.
    """
    if not instance.alive or instance.state is InstanceState.STOPPED:
        return UseVerdict(verdict=Verdict.STOPPED, reason=VerdictReason.NOT_RUNNING)
    if use is None:
        return UseVerdict(verdict=Verdict.UNKNOWN, reason=VerdictReason.METRICS_FAILED)
    first = _hour_of(instance.launched_at + HOUR - timedelta(microseconds=1))
    start = max(windows.start, first)
    hours = [start + number * HOUR for number in range(max(0, (windows.end - start) // HOUR))]
    # an agent that collects more often than once a minute shows its interval in its most complete hour
    expected = max([SAMPLES_PER_HOUR, *(one.samples for one in use.values())])
    known = {hour: _judge_hour(use.get(hour), gpus, watts, COVERED * expected) for hour in hours}
    idle = sum(state is _Hour.IDLE for state in known.values())
    measured = idle + sum(state is _Hour.WORKED for state in known.values())
    recent = list(known.values())[-windows.min_hours :]
    verdict, reason = _verdict(recent, windows.min_hours, has_metric=bool(use))
    if reason is VerdictReason.TOO_YOUNG:
        return UseVerdict(verdict=verdict, reason=reason)  # it may still be prepared for its work
    return UseVerdict(verdict=verdict, reason=reason, idle_hours=idle, measured_hours=measured)


def _verdict(recent: list[_Hour], least: int, *, has_metric: bool) -> tuple[Verdict, VerdictReason]:
    if _Hour.WORKED in recent:
        return Verdict.IN_USE, VerdictReason.GPU_WORKED
    if not has_metric:
        return Verdict.UNKNOWN, VerdictReason.NO_METRIC
    if len(recent) < least:
        return Verdict.UNKNOWN, VerdictReason.TOO_YOUNG
    if _Hour.CONTRADICTED in recent:
        return Verdict.UNKNOWN, VerdictReason.METRICS_CONTRADICT
    if _Hour.UNKNOWN in recent:
        return Verdict.UNKNOWN, VerdictReason.METRIC_INCOMPLETE
    if _Hour.LIKELY_IDLE in recent:
        return Verdict.LIKELY_IDLE, VerdictReason.POWER_IDLE
    return Verdict.IDLE, VerdictReason.GPU_IDLE


def _judge_hour(use: HourUse | None, gpus: int | None, watts: float | None, samples: float) -> _Hour:
    """`samples`: least number of samples of each GPU."""
    if use is None:
        return _Hour.UNKNOWN
    # one sample of work is proof; the proof of rest needs all samples of all GPUs
    if use.utilization_max is not None and use.utilization_max > 0:
        return _Hour.WORKED
    if gpus is None or use.gpus < gpus or use.samples < samples:
        return _Hour.UNKNOWN
    if use.utilization_max is not None:
        if use.utilization_max != 0:
            return _Hour.UNKNOWN
        return _Hour.CONTRADICTED if _shows_work(use.watts_max, watts) else _Hour.IDLE
    if use.watts_max is None or watts is None or use.watts_max > IDLE_POWER_SHARE * watts or use.watts_max <= 0:
        return _Hour.UNKNOWN
    return _Hour.LIKELY_IDLE


def _shows_work(watts_max: float | None, rated: float | None) -> bool:
    """Whether a GPU drew more than at rest. The utilization can be 0 under load."""
    return watts_max is not None and rated is not None and watts_max >= working_watts(rated)


def combine(known: UseVerdict, other: UseVerdict) -> UseVerdict:
    """Return the verdict of two sources: `known` of the cloud, `other` of a store. Work wins over idleness."""
    if known.verdict in (Verdict.STOPPED, Verdict.IN_USE):
        return known
    if other.verdict is Verdict.IN_USE:
        # a store that sees work contradicts idle hours of the cloud
        return other if known.verdict is Verdict.IDLE else replace(known, verdict=other.verdict, reason=other.reason)
    if known.verdict is Verdict.IDLE or known.reason is VerdictReason.METRICS_CONTRADICT:
        return known
    hours = max(known, other, key=lambda one: one.idle_hours)
    if other.verdict is Verdict.IDLE:
        return replace(hours, verdict=other.verdict, reason=other.reason)
    if known.verdict is Verdict.UNKNOWN and other.verdict is Verdict.LIKELY_IDLE:
        return replace(known, verdict=other.verdict, reason=other.reason)
    return known


def _hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
