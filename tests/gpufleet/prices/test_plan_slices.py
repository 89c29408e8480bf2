"""The price of a slice in a plan's cost."""

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from gpufleet.domain.model import Cloud
from gpufleet.prices.plan.cost import PlanCost, plan_cost
from gpufleet.prices.plan.preview import parse
from gpufleet.prices.plan.rates import rates_of
from gpufleet.prices.plan.render import as_json, markdown
from gpufleet.prices.plan.slices import division
from gpufleet.settings.environment import Slices
from tests.fixtures.prices.previews import NOW, group, preview


def cost_of(**pool: Any) -> PlanCost:
    fields: dict[str, Any] = {"target": 1, "min": 0, "max": 1, **pool}
    text = preview(group("od", "on-demand", ["p5.48xlarge"], 1), pools={"chat": fields})
    plan = parse(text)
    return plan_cost(plan, plan.after, rates_of(plan.config, NOW))


def test_plan_states_the_price_of_a_slice_and_what_is_stranded() -> None:
    cost = cost_of(slices={"kind": "mig", "profile": "3g.40gb"})
    (found,) = cost.slices
    assert (found.division.slices, found.division.stranded) == (16, Fraction(1, 7))
    assert found.usd_per_slice_hour == Decimal("2.948571429")  # 55.04 / 8 × 3/7
    assert "16 slices of 3g.40gb, 2.9486 USD per slice-hour, 1/7 of the price stranded" in markdown(cost, cost)
    shown = json.loads(json.dumps(as_json(cost, cost)))["slices"]
    assert [(one["pool"], one["usd_per_slice_hour"], one["stranded_share"]) for one in shown] == [
        ("chat", "2.948571429", "1/7")
    ]


def test_plan_of_whole_gpus_has_no_slices() -> None:
    cost = cost_of()
    assert cost.slices == () and "slice" not in markdown(cost, cost)


@pytest.mark.parametrize(
    ("cloud", "machine", "slices", "expected"),
    [
        (Cloud.GCP, "a2-highgpu-1g", {"kind": "mig", "profile": "1g.5gb"}, (7, Fraction(1, 7), 0)),
        (Cloud.AWS, "p5.48xlarge", {"kind": "mig", "profile": "1g.20gb"}, (32, Fraction(1, 56), Fraction(3, 7))),
        (Cloud.AWS, "g6.12xlarge", {"kind": "time_slicing", "replicas": 4}, (16, Fraction(1, 16), 0)),
        (Cloud.AWS, "g6.xlarge", {"kind": "mig", "profile": "1g.10gb"}, None),
        (Cloud.AWS, "p5.48xlarge", {"kind": "mig", "profile": "1g.5gb"}, None),
        (Cloud.AWS, "p0.small", {"kind": "mps", "replicas": 2}, None),
    ],
    ids=lambda value: str(value),
)
def test_machine_is_divided_by_its_gpus_and_their_slices(
    cloud: Cloud, machine: str, slices: dict[str, Any], expected: tuple[object, ...] | None
) -> None:
    found = division(Slices(**slices), cloud, machine)
    assert (None if found is None else (found.slices, found.share, found.stranded)) == expected
