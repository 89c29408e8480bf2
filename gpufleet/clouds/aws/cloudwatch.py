"""GPU utilization from CloudWatch, as the CloudWatch agent reports it (`nvidia_smi`, namespace CWAgent).

The client lists the series once (500 per page), then requests values for 500 series per call. AWS charges each series
of a `GetMetricData` call: 0.01 USD per 1,000 (CloudWatch pricing, us-east-1, 2026), so 20,000 GPUs with two
metrics each cost 0.40 USD per watchdog run. Storing metrics in a custom namespace costs more than that.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.domain.activity import CloudError
from gpufleet.domain.gpu_hours import HoursOfInstances, HourUse

NAMESPACE: Final = "CWAgent"
UTILIZATION: Final = "nvidia_smi_utilization_gpu"
"""Percentage of time in which a kernel ran, 0 to 100."""
POWER: Final = "nvidia_smi_power_draw"
"""Power in watts."""
SERIES_AT_ONCE: Final = 500
POINTS_AT_ONCE: Final = 100_800
"""Maximum values in one response (CloudWatch, GetMetricData)."""
PERIOD: Final = timedelta(seconds=60)
"""The agent's collection interval. CloudWatch keeps data of this resolution for 15 days."""
HOUR: Final = timedelta(hours=1)
DELAY: Final = 2 * PERIOD
"""Maximum delay of a value: the agent collects once a minute and sends once a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Utilization of the GPUs of one instance in a time window."""

    gpus: int
    """Number of GPUs that reported values."""
    coverage: float
    """Share of the expected periods with a value, 0 to 1; the minimum over the GPUs."""
    missed: int
    """Difference in reported periods between the GPU with the most and the GPU with the fewest."""
    newest: datetime
    """End of the last reported period; the earliest over the GPUs."""
    utilization_max: float
    """Highest utilization of any GPU in percent, 0 to 100."""
    watts_max: float | None
    """Highest power of any GPU in watts; None: not reported."""


@dataclass(frozen=True, slots=True)
class _Series:
    """One metric series and its values."""

    instance: str
    gpu: str
    metric: str
    dimensions: Sequence[Mapping[str, str]]
    values: dict[datetime, float] = field(default_factory=dict[datetime, float])


class CloudWatch:
    """The metrics of one account and region."""

    def __init__(self, calls: AwsCalls) -> None:
        self._calls = calls
        self.requested = 0
        """Series of which `gpu_hours` requested values: AWS charges each of them."""

    def gpu_use(self, instance_ids: Sequence[str], window: timedelta, now: datetime) -> dict[str, GpuUse]:
        """GPU use by instance id. Instances without values are absent. Raises CloudError for incomplete responses."""
        wanted = frozenset(instance_ids)
        series = [s for metric in (UTILIZATION, POWER) for s in self._listed(metric) if s.instance in wanted]
        periods = max(1, round(window / PERIOD))
        at_once = max(1, min(SERIES_AT_ONCE, POINTS_AT_ONCE // periods))
        for start in range(0, len(series), at_once):
            self._fill(series[start : start + at_once], now - window, now)
        return _uses(series, periods)

    def gpu_hours(self, instance_ids: Collection[str], since: datetime, until: datetime) -> HoursOfInstances:
        """Use of GPUs by the hour. `since` and `until` are whole hours. Raises CloudError for incomplete responses.

        Power is requested for instances without utilization, and for those with an hour of 0 %. The number of series
        is added to `requested`.
        """
        wanted = frozenset(instance_ids)
        series = [one for one in self._listed(UTILIZATION) if one.instance in wanted]
        measured = {one.instance for one in series}
        power = [one for one in self._listed(POWER) if one.instance in wanted]
        series += [one for one in power if one.instance not in measured]
        found = self._counted_hours(series, since, until)
        quiet = {name for name, hours in found.items() if any(use.utilization_max == 0 for use in hours.values())}
        drawn = [one for one in power if one.instance in quiet]
        at_once = _series_at_once(since, until)
        for start in range(0, len(drawn), at_once):
            part = drawn[start : start + at_once]
            self._fill(part, since, until, HOUR)
            self.requested += len(part)
            for one in part:
                _add_watts(found[one.instance], one)
                one.values.clear()  # 10,000 instances have millions
        return found

    def _counted_hours(
        self, series: list[_Series], since: datetime, until: datetime
    ) -> dict[str, dict[datetime, HourUse]]:
        at_once = max(1, _series_at_once(since, until) // 2)
        # the series of an instance are together, so that its hours are complete after a few requests
        series.sort(key=lambda one: one.instance)
        found: dict[str, dict[datetime, HourUse]] = {}
        open_series: list[tuple[_Series, _Series]] = []
        for start in range(0, len(series), at_once):
            part = series[start : start + at_once]
            counted = [_Series(one.instance, one.gpu, one.metric, one.dimensions) for one in part]
            self._fill(part, since, until, HOUR)
            self._fill(counted, since, until, HOUR, "SampleCount")
            self.requested += 2 * len(part)
            open_series += zip(part, counted, strict=True)
            last = part[-1].instance if start + at_once < len(series) else None
            found |= _hours([pair for pair in open_series if pair[0].instance != last])
            open_series = [pair for pair in open_series if pair[0].instance == last]
        return found

    def _listed(self, metric: str) -> Iterator[_Series]:
        """Series of the last two weeks. They are listed because the agent's dimensions are not known in advance."""
        found = self._calls.pages("cloudwatch", "list_metrics", "Metrics", Namespace=NAMESPACE, MetricName=metric)
        listed: set[frozenset[tuple[str, str]]] = set()
        for raw in found:
            dimensions = {one["Name"]: one["Value"] for one in raw["Dimensions"]}
            name = frozenset(dimensions.items())
            # a series may be on two pages if the list changes between the requests
            if "InstanceId" in dimensions and name not in listed:
                listed.add(name)
                yield _Series(
                    instance=dimensions["InstanceId"],
                    gpu=dimensions.get("index", dimensions.get("uuid", "0")),
                    metric=metric,
                    dimensions=raw["Dimensions"],
                )

    def _fill(  # noqa: PLR0913, PLR0917
        self,
        series: Sequence[_Series],
        since: datetime,
        until: datetime,
        period: timedelta = PERIOD,
        # the maximum of a period, because an average would hide a burst
        stat: str = "Maximum",
    ) -> None:
        queries = [
            {
                "Id": f"s{number}",
                "MetricStat": {
                    "Metric": {"Namespace": NAMESPACE, "MetricName": one.metric, "Dimensions": list(one.dimensions)},
                    "Period": int(period.total_seconds()),
                    "Stat": stat,
                },
            }
            for number, one in enumerate(series)
        ]
        answer = self._calls.pages(
            "cloudwatch",
            "get_metric_data",
            "MetricDataResults",
            MetricDataQueries=queries,
            StartTime=since,
            EndTime=until,
        )
        # a series may span several pages; its last status code counts
        statuses: dict[str, str] = {}
        for result in answer:
            statuses[result["Id"]] = result.get("StatusCode", "Complete")
            values: dict[Any, Any] = dict(zip(result["Timestamps"], result["Values"], strict=True))
            series[int(result["Id"][1:])].values.update(values)
        for name, status in statuses.items():
            if status != "Complete":
                raise CloudError(f"cloudwatch:get_metric_data: {name} is {status}")
        if len(statuses) < len(queries):
            raise CloudError(f"cloudwatch:get_metric_data answered for {len(statuses)} of {len(queries)} series")


def _uses(series: Sequence[_Series], periods: int) -> dict[str, GpuUse]:
    found: dict[str, dict[str, dict[str, dict[datetime, float]]]] = {}
    for one in series:
        known = found.setdefault(one.instance, {}).setdefault(one.metric, {}).setdefault(one.gpu, {})
        # a reinstalled agent creates a second series for the same GPU; use the higher value
        known.update({at: max(value, known.get(at, value)) for at, value in one.values.items()})
    uses: dict[str, GpuUse] = {}
    for instance, metrics in found.items():
        by_gpu = {gpu: values for gpu, values in metrics.get(UTILIZATION, {}).items() if values}
        if not by_gpu:
            continue
        watts = [value for values in metrics.get(POWER, {}).values() for value in values.values()]
        uses[instance] = GpuUse(
            gpus=len(by_gpu),
            coverage=min(1.0, min(len(values) for values in by_gpu.values()) / periods),
            missed=max(map(len, by_gpu.values())) - min(map(len, by_gpu.values())),
            newest=min(max(values) for values in by_gpu.values()) + PERIOD,
            utilization_max=max(value for values in by_gpu.values() for value in values.values()),
            watts_max=max(watts, default=None),
        )
    return uses


def _series_at_once(since: datetime, until: datetime) -> int:
    """Maximum number of series with hourly values in one request."""
    hours = max(1, round((until - since) / HOUR))
    return max(1, min(SERIES_AT_ONCE, POINTS_AT_ONCE // hours))


def _add_watts(hours: dict[datetime, HourUse], power: _Series) -> None:
    """Add the power of one GPU to the hours of its instance."""
    for at, value in power.values.items():
        hour = at.astimezone(UTC)
        if hour in hours and _is_measured(value, POWER):
            hours[hour] = hours[hour]._replace(watts_max=max(value, hours[hour].watts_max or 0.0))


def _is_measured(value: float, metric: str) -> bool:
    """Whether a value is in the range of its metric. An agent may report -1 for a GPU that it cannot read."""
    return math.isfinite(value) and value >= 0 and (metric != UTILIZATION or value <= 100)


def _hours(pairs: Sequence[tuple[_Series, _Series]]) -> dict[str, dict[datetime, HourUse]]:
    """`pairs`: maximum and number of samples of each series."""
    found: dict[str, dict[datetime, dict[str, tuple[float, float, str]]]] = {}
    for values, counts in pairs:
        for at, value in values.values.items():
            hour = found.setdefault(values.instance, {}).setdefault(at.astimezone(UTC), {})
            if not _is_measured(value, values.metric):
                continue
            known, samples, _ = hour.get(values.gpu, (value, 0.0, ""))
            # a reinstalled agent creates a second series for the same GPU: neither hides what the other reports
            hour[values.gpu] = max(known, value), max(samples, counts.values.get(at, 0.0)), values.metric
    return {
        instance: {at: _hour(list(gpus.values())) for at, gpus in sorted(hours.items())}
        for instance, hours in found.items()
    }


def _hour(gpus: Sequence[tuple[float, float, str]]) -> HourUse:
    utilization = [value for value, _, metric in gpus if metric == UTILIZATION]
    watts = [value for value, _, metric in gpus if metric == POWER]
    return HourUse(
        gpus=len(gpus),
        samples=min((samples for _, samples, _ in gpus), default=0.0),
        utilization_max=max(utilization, default=None),
        watts_max=max(watts, default=None),
    )
