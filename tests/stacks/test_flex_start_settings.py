"""Tests of flex-start settings: accepted values, and messages for rejected ones."""

from typing import Any

import pytest

from stacks import reading
from stacks.pools import capacity
from tests.fixtures.stacks.settings_files import AWS, FLEET, GCP, REMOVED, TODAY, changed, problems

POOL, FLEX = f"{FLEET}.pools.1", f"{FLEET}.pools.1.capacity.flex_start"
ON_DEMAND = "pools.1.capacity.on_demand"
IN_RANGE = "write a value in the range, for example 1d"
GOOD = {"max": 2, "machine_type": "a2-ultragpu-2g", "zone": "us-central1-c", "run": "3d"}


def with_flex_start(**change: Any) -> dict[str, Any]:
    """Return the settings of gcp-prod with flex-start instead of on-demand in the second pool."""
    bought = {key: value for key, value in {**GOOD, **change}.items() if value is not REMOVED}
    return changed(GCP, {ON_DEMAND: REMOVED, "pools.1.capacity.flex_start": bought})


def test_flex_start_replaces_on_demand() -> None:
    assert problems(with_flex_start()) == []
    parsed = reading.parse(with_flex_start(), "file", TODAY)
    bought = capacity(parsed, parsed.pools[1]).ways.flex_start
    assert bought is not None
    assert (bought.max, bought.zone, bought.run.days) == (2, "us-central1-c", 3)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        pytest.param(
            {"run": "5m"},
            f"{FLEX}.run: is outside the range that Google allows, 10m to 7d (is '5m'); {IN_RANGE}",
            id="too short",
        ),
        pytest.param(
            {"run": "8d"},
            f"{FLEX}.run: is outside the range that Google allows, 10m to 7d (is '8d'); {IN_RANGE}",
            id="too long",
        ),
        pytest.param({"max": 5}, f"{FLEX}.max: is above the pool's max 4 (is 5); lower it, or raise the pool's max",
                     id="above max"),
        pytest.param(
            {"zone": "us-central1-f"},
            f"{FLEX}.zone: is not one of the environment's zones us-central1-a, us-central1-b, us-central1-c "
            "(is 'us-central1-f'); write one of them, or add it to zones",
            id="zone",
        ),
        pytest.param(
            {"machine_type": "g4-standard-96"},
            f"{FLEX}.machine_type: is not available with flex-start (is 'g4-standard-96'); "
            "choose a machine type of the families a2, a3, a4 or g2, or on_demand",
            id="not offered",
        ),
        pytest.param(
            {"machine_type": "a2-ultragpu-3g"},
            f"{FLEX}.machine_type: no gcp machine type 'a2-ultragpu-3g' in the catalogue (is 'a2-ultragpu-3g'); "
            "did you mean a2-ultragpu-8g or a2-ultragpu-4g or a2-ultragpu-2g?",
            id="unknown",
        ),
    ],
)  # fmt: skip
def test_each_mistake_is_one_line(change: dict[str, Any], line: str) -> None:
    assert problems(with_flex_start(**change)) == [line]


def test_a_missing_run_duration_is_an_error() -> None:
    (line,) = problems(with_flex_start(run=REMOVED))
    assert line.startswith(f"{FLEX}.run: is missing")


def test_a_run_must_be_long_enough_to_serve() -> None:
    slow = changed(with_flex_start(run="10m"), {"pools.1.drain_deadline": "5m"})
    assert problems(slow) == [
        f"{FLEX}.run: must be longer than twice the drain deadline, 5m, to serve (is '10m'); "
        "write 1d, or shorten drain_deadline"
    ]


def test_flex_start_with_on_demand_is_an_error() -> None:
    assert problems(changed(GCP, {"pools.1.capacity.flex_start": GOOD})) == [
        f"{FLEX}: is set together with on_demand, and only one can replace missing spot; "
        "remove one of them; a second pool of the same model may use the other"
    ]


def test_flex_start_on_aws_is_an_error() -> None:
    bought = {"max": 1, "machine_type": "p5.48xlarge", "zone": "us-east-1a", "run": "1d"}
    assert problems(changed(AWS, {ON_DEMAND: REMOVED, "pools.1.capacity.flex_start": bought})) == [
        f"{FLEX}: is only for Google Cloud; use on_demand; for an AWS Capacity Block use a reservation with a block"
    ]


def test_flex_start_may_be_the_only_capacity_of_a_pool() -> None:
    alone = changed(with_flex_start(), {"pools.1.capacity.spot": REMOVED, "pools.1.capacity.reserved": REMOVED})
    assert problems(alone) == []
    assert problems(changed(alone, {"pools.1.capacity.flex_start.max": 1, "pools.1.target": 2})) == [
        f"{POOL}.capacity: allows at most 1 instances, which is below target 2; "
        "raise flex_start.max, reserve more, or add spot"
    ]
