"""Hours of GPUs from CloudWatch, when an instance has more series than one request."""

from collections.abc import Iterator
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
