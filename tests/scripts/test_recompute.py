"""Tests that the demo's independent recalculation detects a report with wrong totals."""

import copy
from typing import Any

import pytest

from scripts.demo.recompute import recompute

REPORT: dict[str, Any] = {
    "charges": [
        {"resource": "i-1", "state": "used", "kind": "time", "seconds": "90", "usd_per_hour": "0.8", "usd": "0.02"},
        {"resource": "i-1", "state": "idle", "kind": "time", "seconds": "45", "usd_per_hour": "0.8", "usd": "0.01"},
        {
            "resource": "i-1",
            "state": "idle",
            "kind": "interrupted by the cloud",
            "seconds": "0",
            "usd_per_hour": "0.8",
            "usd": "-0.005",
        },
    ],
    "engines": [
        {
            "machine_type": "g6.xlarge",
            "base": {"prompt": 100, "generation": 10},
            "last": {"prompt": 350, "generation": 60},
            "tokens": {"prompt": 250, "generation": 50, "resets": 0},
        },
        {
            "machine_type": "g6.xlarge",
            "base": None,
            "last": {"prompt": 5, "generation": 5},
            "tokens": {"prompt": 105, "generation": 95, "resets": 1},
        },
    ],
    "total": {
        "usd": "0.025",
        "tokens": {"prompt": 355, "generation": 145},
        "usd_per_million_tokens": {"blended": "50.0000"},
    },
    "by": {"pool": {"chat": {"usd": "0.015"}, "batch": {"usd": "0.010"}}},
}


def test_a_correct_report_is_confirmed_with_the_same_numbers() -> None:
    again = recompute(REPORT)
    assert (str(again.usd), again.charges) == ("0.025", 3)
    assert (again.prompt, again.generation) == (355, 145)


def test_tokens_of_an_instance_without_a_machine_type_do_not_divide_the_cost() -> None:
    found = copy.deepcopy(REPORT)
    found["engines"].append(
        {
            "machine_type": None,
            "base": None,
            "last": {"prompt": 400, "generation": 100},
            "tokens": {"prompt": 400, "generation": 100, "resets": 0},
        }
    )
    found["total"]["tokens"] = {"prompt": 755, "generation": 245}
    assert recompute(found).blended == 50


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        pytest.param(("charges", 0, "seconds"), "91", "i-1", id="seconds x price is another amount"),
        pytest.param(("total", "usd"), "0.026", "the total", id="charges make another total"),
        pytest.param(("by", "pool", "batch", "usd"), "0.011", "by pool", id="a partition has another sum"),
        pytest.param(("engines", 0, "last", "prompt"), 351, "counters", id="counters make other tokens"),
        pytest.param(("total", "usd_per_million_tokens", "blended"), "51", "million", id="another unit cost"),
    ],
)
def test_one_wrong_number_is_found(path: tuple[Any, ...], value: object, complaint: str) -> None:
    wrong = copy.deepcopy(REPORT)
    at: Any = wrong
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(ValueError, match=complaint):
        recompute(wrong)
