"""Hours of GPUs from CloudWatch: instances with more series than one request, and values that measure nothing."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from gpufleet.clouds.aws import cloudwatch
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.cloudwatch import CloudWatch
from gpufleet.domain.gpu_hours import HourUse

UNTIL = datetime(2026, 11, 26, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class FakeCalls:
    """Three instances with two GPUs each, listed GPU by GPU. Each request gets one series."""

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        if operation == "list_metrics":
            if arguments["MetricName"] != cloudwatch.UTILIZATION:
                return
            for gpu in ("0", "1"):
                for name in ("i-a", "i-b", "i-c"):
                    pairs = {"InstanceId": name, "index": gpu}
                    yield {"Dimensions": [{"Name": one, "Value": value} for one, value in pairs.items()]}
            return
        (query,) = arguments["MetricDataQueries"]
        values = {one["Name"]: one["Value"] for one in query["MetricStat"]["Metric"]["Dimensions"]}
        is_busy = values == {"InstanceId": "i-b", "index": "1"}
        number = 60.0 if query["MetricStat"]["Stat"] == "SampleCount" else 40.0 * is_busy
        yield {"Id": query["Id"], "Timestamps": [UNTIL - HOUR], "Values": [number]}


def test_gpus_of_an_instance_in_different_requests_are_one_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudwatch, "SERIES_AT_ONCE", 2)
    store = CloudWatch(cast(AwsCalls, FakeCalls()))
    found = store.gpu_hours(["i-a", "i-b", "i-c"], UNTIL - HOUR, UNTIL)
    rest, busy = HourUse(gpus=2, samples=60, utilization_max=0), HourUse(gpus=2, samples=60, utilization_max=40)
    assert found == {"i-a": {UNTIL - HOUR: rest}, "i-b": {UNTIL - HOUR: busy}, "i-c": {UNTIL - HOUR: rest}}
    assert store.requested == 12


class Reported:
    """The same values in one hour, by instance, metric and GPU."""

    def __init__(self, values: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        self._values = values
        self.asked: list[tuple[str, str, str]] = []
        """Instance, metric and statistic."""

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        if operation == "list_metrics":
            for name, metrics in self._values.items():
                for gpu in range(len(metrics.get(arguments["MetricName"], ()))):
                    pairs = {"InstanceId": name, "index": str(gpu)}
                    yield {"Dimensions": [{"Name": one, "Value": value} for one, value in pairs.items()]}
            return
        for query in arguments["MetricDataQueries"]:
            stat = query["MetricStat"]
            of = {one["Name"]: one["Value"] for one in stat["Metric"]["Dimensions"]}
            name, metric = of["InstanceId"], stat["Metric"]["MetricName"]
            self.asked.append((name, metric, stat["Stat"]))
            value = self._values[name][metric][int(of["index"])]
            number = 60.0 if stat["Stat"] == "SampleCount" else value
            yield {"Id": query["Id"], "Timestamps": [UNTIL - HOUR], "Values": [number]}


def hour_of(values: Mapping[str, Sequence[float]]) -> HourUse:
    """The hour of one instance with these values."""
    store = CloudWatch(cast(AwsCalls, Reported({"i-a": values})))
    return store.gpu_hours(["i-a"], UNTIL - HOUR, UNTIL)["i-a"][UNTIL - HOUR]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([-1, -1, -1, 0], HourUse(gpus=1, samples=60, utilization_max=0), id="one of four is measured"),
        pytest.param([-1, -1], HourUse(gpus=0, samples=0, utilization_max=None), id="none is measured"),
        pytest.param([-1, 40], HourUse(gpus=1, samples=60, utilization_max=40), id="work is seen"),
        pytest.param([float("nan"), 0], HourUse(gpus=1, samples=60, utilization_max=0), id="no number"),
        pytest.param([float("inf"), 0], HourUse(gpus=1, samples=60, utilization_max=0), id="infinite"),
        pytest.param([101, 0], HourUse(gpus=1, samples=60, utilization_max=0), id="more than 100 %"),
    ],
)
def test_a_gpu_with_values_out_of_range_is_not_measured(values: Sequence[float], expected: HourUse) -> None:
    assert hour_of({cloudwatch.UTILIZATION: values}) == expected


def test_power_out_of_range_is_not_measured() -> None:
    assert hour_of({cloudwatch.POWER: [-1, 20]}) == HourUse(gpus=1, samples=60, utilization_max=None, watts_max=20)
    both = {cloudwatch.UTILIZATION: [0, 0], cloudwatch.POWER: [float("nan"), 20]}
    assert hour_of(both) == HourUse(gpus=2, samples=60, utilization_max=0, watts_max=20)


def test_the_power_of_gpus_with_a_utilization_of_0_is_read_too() -> None:
    calls = Reported(
        {
            "i-rest": {cloudwatch.UTILIZATION: [0, 0], cloudwatch.POWER: [60, 690]},
            "i-work": {cloudwatch.UTILIZATION: [0, 9], cloudwatch.POWER: [60, 690]},
        }
    )
    store = CloudWatch(cast(AwsCalls, calls))
    found = store.gpu_hours(["i-rest", "i-work"], UNTIL - HOUR, UNTIL)
    assert found["i-rest"] == {UNTIL - HOUR: HourUse(gpus=2, samples=60, utilization_max=0, watts_max=690)}
    assert found["i-work"] == {UNTIL - HOUR: HourUse(gpus=2, samples=60, utilization_max=9)}
    assert [one for one in calls.asked if one[1] == cloudwatch.POWER] == [
        ("i-rest", cloudwatch.POWER, "Maximum"), ("i-rest", cloudwatch.POWER, "Maximum")
    ]  # fmt: skip
    assert store.requested == len(calls.asked) == 10
