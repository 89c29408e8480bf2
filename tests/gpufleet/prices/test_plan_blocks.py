"""Capacity Blocks in a plan: the fee computed by hand, and the effect on the other capacity of the pool."""

import json
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.prices.plan.cost import PlanCost, PlanCostError, plan_cost
from gpufleet.prices.plan.preview import parse
from gpufleet.prices.plan.rates import rates_of
from gpufleet.prices.plan.render import as_json, markdown
from tests.fixtures.prices.previews import G6, NOW, group, preview, resource, tags, urn

TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
TWO_WEEKS = {"starts": "2026-12-01T11:30:00Z", "ends": "2026-12-15T11:30:00Z"}
TWO_MONTHS = {"starts": "2026-12-01T11:30:00Z", "ends": "2027-01-30T11:30:00Z"}
OVER = {"starts": "2026-11-01T11:30:00Z", "ends": "2026-11-20T11:30:00Z"}
FEE = {
    **TWO_WEEKS,
    "reservation": "cr-1",
    "instances": 2,
    "upfront_usd": "21000",
    "source": "bill",
    "as_of": "2026-11-01",
}
SPOT = {"target": 2, "min": 1, "max": 3}


def block_group(count: int = 2) -> list[dict[str, Any]]:
    """The group of a block as the component declares it: desired size 0 at creation, and a template that targets
    the block."""
    target = {"capacityReservationTarget": {"capacityReservationId": "cr-1"}}
    template = resource(
        TEMPLATE,
        "t",
        {
            "instanceType": "p5.48xlarge",
            "capacityReservationSpecification": target,
            "instanceMarketOptions": {"marketType": "capacity-block"},
        },
    )
    inputs = {"desiredCapacity": 0, "maxSize": count, "tags": tags("reserved")}
    made = resource(
        "aws:autoscaling/group:Group",
        "block",
        inputs,
        propertyDependencies={"launchTemplate": [urn(TEMPLATE, "t")]},
    )
    return [template, made]


def google_group() -> list[dict[str, Any]]:
    kind = "gcp:compute/instanceTemplate:InstanceTemplate"
    labels = {"gpu-fleet-pool": "chat", "gpu-fleet-capacity-type": "reserved"}
    affinity = {"specificReservation": {"values": ["cr-1"]}}
    template = resource(
        kind, "t", {"machineType": "a3-highgpu-8g", "labels": labels, "reservationAffinity": affinity}
    )
    made = resource(
        "gcp:compute/instanceGroupManager:InstanceGroupManager",
        "block",
        {"targetSize": 0},
        propertyDependencies={"versions": [urn(kind, "t")]},
    )
    return [template, made]


def priced(
    resources: list[dict[str, Any]],
    block: dict[str, str],
    machine: str = "p5.48xlarge",
    **fleet: Any,
) -> PlanCost:
    text = json.loads(preview(*resources, pools={"chat": SPOT}))
    settings = json.loads(text["config"]["gpu-fleet:fleet"])
    settings["prices"] += fleet.pop("prices", [])
    reserved = {"zone": "us-east-1a", "machine_type": machine, "count": 2, "existing": "cr-1", "block": block}
    settings["pools"][0]["capacity"]["reserved"] = [reserved]
    cloud = fleet.get("cloud", "aws")
    text["config"] = {f"{cloud}:region": "us-east-1", "gpu-fleet:fleet": json.dumps(settings | fleet)}
    plan = parse(json.dumps(text))
    return plan_cost(plan, plan.after, rates_of(plan.config, NOW))


def stated(sku: str, usd: str) -> dict[str, str]:
    return {"sku": sku, "usd_per_hour": usd, "source": "list", "as_of": "2026-11-01"}


@pytest.mark.parametrize(
    ("block", "fleet", "hour", "month"),
    [
        # 21,000 USD for 2 × 14 × 24 h = 672 instance hours: 31.25 each, 62.50 an hour; the month holds all of it
        pytest.param(TWO_WEEKS, {"commitments": {"blocks": [FEE]}}, "62.50", "21000", id="fee for two weeks"),
        # 60 days = 1,440 h; 90,000 USD / 2,880 = 31.25; the month holds 730 of them
        pytest.param(
            TWO_MONTHS, {"commitments": {"blocks": [FEE | {"upfront_usd": "90000"}]}}, "62.50", "45625", id="longer"
        ),
        # 31.464 × 2 = 62.928 an hour, for 336 hours
        pytest.param(
            TWO_WEEKS, {"prices": [stated("aws:ec2:p5.48xlarge:capacity-block", "31.464")]}, "62.928", "21143.808",
            id="stated price",
        ),
        pytest.param(OVER, {}, "0", "0", id="ended: nothing is charged"),
    ],
)  # fmt: skip
def test_cost_of_a_block_by_hand(block: dict[str, str], fleet: dict[str, Any], hour: str, month: str) -> None:
    # in addition, spot for the whole pool, since the block ends: 1, 2 and 3 × 0.40
    cost = priced([*block_group(), group("a", "spot", G6, 2)], block, **fleet)
    assert cost.usd_per_hour_low == Decimal(hour) + Decimal("0.40")
    assert cost.usd_per_hour == Decimal(hour) + Decimal("0.80")
    assert cost.usd_per_hour_high == Decimal(hour) + Decimal("1.20")
    assert cost.usd_per_month == Decimal(month) + Decimal("0.80") * 730


def test_plan_shows_the_term_of_a_block_and_charges_its_root_disks_for_that_term() -> None:
    template, made = block_group()
    disk = {"blockDeviceMappings": [{"ebs": {"volumeSize": 100, "volumeType": "gp3"}}]}
    template["newState"]["inputs"] |= disk
    cost = priced([template, made, group("a", "spot", G6, 1)], TWO_WEEKS, commitments={"blocks": [FEE]})
    assert "block cr-1, 2026-12-01 to 2026-12-15, prepaid" in markdown(cost, cost)
    (line,) = [line for line in as_json(cost, cost)["lines"] if "block" in line["note"]]
    assert Decimal(line["usd_per_month"]) == 21_000
    # 100 GiB × 0.0001: one for the spot instance's month, two for the block's 336 hours
    disks = [line.usd_per_month for line in cost.lines if line.what == "root disks"]
    assert disks == [Decimal("0.01") * 730, Decimal("0.02") * 336]


def test_cost_of_a_google_cloud_block() -> None:
    price = stated("gcp:compute:a3-highgpu-8g:capacity-block", "40")
    cost = priced(google_group(), TWO_WEEKS, "a3-highgpu-8g", cloud="gcp", prices=[price])
    assert cost.usd_per_month == 2 * 40 * 336


def test_block_without_a_price_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(PlanCostError) as caught:
        priced(block_group(), TWO_WEEKS)
    assert caught.value.problems == (
        "block: the block cr-1 has no price: declare its fee under commitments.blocks of the settings, or state "
        "aws:ec2:p5.48xlarge:capacity-block under prices, with source and as_of",
    )


def test_fee_with_an_invalid_date_is_an_error_that_names_it() -> None:
    with pytest.raises(
        PlanCostError, match="the fee of the block cr-1: as_of: expected a date such as 2026-06-01, got 'soon'"
    ):
        priced(block_group(), TWO_WEEKS, commitments={"blocks": [FEE | {"as_of": "soon"}]})
