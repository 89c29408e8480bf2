"""CloudWatch responses in parts: a series may span several pages, or remain incomplete."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.cloudwatch import UTILIZATION, CloudWatch
from gpufleet.domain.activity import CloudError

NOW = datetime(2026, 11, 22, 15, 0, tzinfo=UTC)
WINDOW = timedelta(minutes=4)


def part(minutes: Sequence[int], status: str, value: float = 0.0) -> dict[str, Any]:
    return {
        "Id": "s0",
        "StatusCode": status,
        "Timestamps": [NOW - timedelta(minutes=n) for n in minutes],
        "Values": [value] * len(minutes),
    }


@dataclass
class Client:
    """One series of one GPU, with values on these pages."""

    parts: Sequence[Mapping[str, Any]]

    def get_paginator(self, operation: str) -> Any:
        return {"list_metrics": Listed, "get_metric_data": lambda: Answers(self.parts)}[operation]()


class Listed:
    def paginate(self, **asked: Any) -> Iterator[Mapping[str, Any]]:
        dimensions = [{"Name": "InstanceId", "Value": "i-1"}, {"Name": "index", "Value": "0"}]
        yield {"Metrics": [{"Dimensions": dimensions}] if asked["MetricName"] == UTILIZATION else []}


@dataclass
class Answers:
    parts: Sequence[Mapping[str, Any]]

    def paginate(self, **_: Any) -> Iterator[Mapping[str, Any]]:
        yield from ({"MetricDataResults": [one]} for one in self.parts)


def read(*parts: Mapping[str, Any]) -> Any:
    return CloudWatch(AwsCalls("us-east-1", lambda _: Client(parts))).gpu_use(["i-1"], WINDOW, NOW)["i-1"]


def test_parts_on_several_pages_are_one_series() -> None:
    found = read(part([1, 2], "PartialData"), part([3, 4], "Complete", value=80.0))
    assert (found.coverage, found.utilization_max) == (1.0, 80.0)


@pytest.mark.parametrize("status", ["PartialData", "InternalError", "Forbidden"])
def test_an_incomplete_series_is_an_error(status: str) -> None:
    with pytest.raises(CloudError, match=f"s0 is {status}"):
        read(part([1, 2], "PartialData"), part([3], status))
