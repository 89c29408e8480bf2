"""Parts of PromQL queries, and the numbers of their answers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from serving import metrics

STAT: Final = "stat"
"""Label that distinguishes the parts of a union."""
_SLOWEST: Final = timedelta(seconds=90)
"""A working exporter has new values by then: slow exporters collect every 30 or 60 s."""

Stats = Mapping[str, float]
"""The parts of a union for one instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesSelector:
    """Selects the series of instances."""

    labels: str
    """Matchers, as `environment="prod"`."""
    engine_job: str = metrics.Source.ENGINE
    gpu_job: str = metrics.Source.ACCELERATOR
    node_job: str = metrics.Source.NODE


def together(first: str, *others: str) -> str:
    """Several vectors as one. Each gets a label of its own: `or` drops series with equal labels."""
    labelled = (f'label_replace({other}, "gpufleet_part", "{n}", "", "")' for n, other in enumerate(others))
    return " or ".join((first, *labelled))


def sum_of(whole: str, *names: str) -> str:
    """Sum that is NaN where one sample is NaN: maximum and minimum ignore NaN."""
    return f"sum by (instance_id) ({together(*(f'sum_over_time({name}[{whole}])' for name in names))})"


def intervals_of(name: str, window: timedelta, interval: timedelta) -> str:
    """In how many scrape intervals of the window each series has a sample. Several samples in one count once."""
    # a scrape may come a little early or late
    near = milliseconds(1.5 * interval)
    return f"count_over_time(count_over_time({name}[{near}])[{seconds(window)}:{milliseconds(interval)}])"


def union(parts: Mapping[str, str]) -> str:
    return " or ".join(f'label_replace({part}, "{STAT}", "{name}", "", "")' for name, part in parts.items())


def recent(window: timedelta, interval: timedelta) -> timedelta:
    """Long enough for a working counter to change, also of exporters that collect every 30 s. At most the window."""
    return min(window, max(4 * interval, min(window / 4, _SLOWEST)))


def coverage_of(stats: Mapping[str, float], window: timedelta, interval: timedelta) -> float | None:
    """Coverage by number of samples and by time: the lower of the two."""
    reported = [stats.get(name, math.nan) for name in ("count", "intervals")]
    if any(math.isnan(number) for number in reported):
        return None
    return min(1.0, min(reported) / max(1.0, window / interval))


def unless_nan(value: float | None, total: float | None) -> float | None:
    """The value, or NaN if the sum over all samples is NaN: then one sample is NaN."""
    return total if value is not None and total is not None and math.isnan(total) else value


def age_of(stamp: float | None, now: datetime) -> timedelta | None:
    moment = moment_of(stamp)
    return None if moment is None else now - moment


def moment_of(stamp: float | None) -> datetime | None:
    """The time of a timestamp; None also for invalid ones: exporters report some of these values themselves."""
    if stamp is None:
        return None
    try:
        return datetime.fromtimestamp(stamp, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def whole_number(number: float | None) -> int | None:
    return None if number is None or not math.isfinite(number) else int(number)


def seconds(span: timedelta) -> str:
    return f"{max(1, round(span.total_seconds()))}s"


def milliseconds(span: timedelta) -> str:
    return f"{max(1, round(span / timedelta(milliseconds=1)))}ms"
