"""The cost of a plan compared with calculations by hand."""

import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.domain.prices import Price, Rank
from gpufleet.prices.plan.cost import PlanCost, PlanCostError, plan_cost
from gpufleet.prices.plan.preview import PreviewError, parse
from gpufleet.prices.plan.rates import rates_of
from gpufleet.prices.plan.render import as_json, headline, markdown
from tests.fixtures.prices.previews import BOTH, G6, NOW, group, preview, resource
from tests.fixtures.stacks.settings_files import a_pool

FLEX_START = {"max": 3, "machine_type": "a2-highgpu-1g", "zone": "us-central1-a", "run": "1d"}
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
PRICED: dict[str, Any] = {"sku": "aws:ec2:g6.xlarge:spot", "source": "s", "as_of": "2026-11-01"}


def reservation(name: str, machine: str, count: int, pool: str = "chat") -> dict[str, Any]:
    inputs = {"instanceType": machine, "instanceCount": count, "tags": {"gpu-fleet:pool": pool}}
    return resource("aws:ec2/capacityReservation:CapacityReservation", name, inputs)


def template(**ebs: Any) -> dict[str, Any]:
    return resource("aws:ec2/launchTemplate:LaunchTemplate", "t", {"blockDeviceMappings": [{"ebs": ebs}]})


def flex_start(desired: int) -> list[dict[str, Any]]:
    """A flex-start group on Google Cloud and its template."""
    labels = {"gpu-fleet-pool": "chat", "gpu-fleet-capacity-type": "flex-start"}
    made = resource("gcp:compute/instanceTemplate:InstanceTemplate", "t", {"machineType": "a2-highgpu-1g"})
    made["newState"]["inputs"]["labels"] = labels
    inputs = {"targetSize": desired, "zone": "us-central1-a", "versions": [{"instanceTemplate": "t"}]}
    depends = {"versions": [made["urn"]]}
    group = resource(
        "gcp:compute/instanceGroupManager:InstanceGroupManager", "f", inputs, propertyDependencies=depends
    )
    return [made, group]


def cost_of(text: str) -> PlanCost:
    plan = parse(text)
    return plan_cost(plan, plan.after, rates_of(plan.config, NOW))


CHAT = {"target": 3, "min": 1, "max": 5, "on_demand": 2}


@pytest.mark.parametrize(
    ("text", "least", "desired", "most"),
    [
        pytest.param(
            preview(
                reservation("r", "g6.xlarge", 1),
                group("res", "reserved", G6, 1),
                group("a", "spot", BOTH, 1),
                group("b", "spot", BOTH, 1),
                group("od", "on-demand", BOTH, 0),
                pools={"chat": CHAT},
            ),
            # least: min 1 is the reserved one, 0.80; desired: 0.80 + 2 × 0.40;
            # most: 0.80 + 2 on-demand × 1.00 + 2 spot × 0.50
            "0.80", "1.60", "3.80", id="reserved, spot, on-demand",
        ),
        pytest.param(
            preview(group("a", "spot", G6, 2), pools={"chat": {"target": 2, "min": 0, "max": 3}}),
            "0", "0.80", "1.20", id="spot only, to zero",
        ),
        pytest.param(
            preview(group("od", "on-demand", G6, 2), pools={"chat": CHAT | {"min": 2, "max": 4, "on_demand": 4}}),
            "1.60", "1.60", "3.20", id="on-demand only",
        ),
        pytest.param(
            preview(
                reservation("r", "p5.48xlarge", 2),
                group("res", "reserved", (), 2),
                pools={"chat": {"target": 2, "min": 2, "max": 2}},
            ),
            "110.08", "110.08", "110.08", id="reserved only",
        ),
        pytest.param(
            preview(
                group("a", "spot", G6, 1),
                template(volumeSize=100, iops=4000, volumeType="gp3"),
                resource("aws:ec2/natGateway:NatGateway", "nat", {}),
                resource("aws:ec2/eip:Eip", "ip", {}),
                resource(ENDPOINT, "s3", {"vpcEndpointType": "Gateway"}),
                resource(ENDPOINT, "e", {"vpcEndpointType": "Interface", "subnetIds": ["a", "b"]}),
                resource("aws:ec2/instance:Instance", "control", {"instanceType": "t3.medium"}),
                resource("aws:ebs/volume:Volume", "data", {"size": 50, "type": "gp3"}),
                resource("aws:s3/bucket:Bucket", "models", {}),
                pools={"chat": {"target": 1, "min": 0, "max": 2}},
            ),
            # shared 0.045 + 0.005 + 2 × 0.01 + 0.0416 + 50 × 0.0001 = 0.1166;
            # an instance 0.40 and its disk 100 × 0.0001 + 1000 × 0.000007 = 0.017
            "0.1166", "0.5336", "0.9506", id="other resources",
        ),
        pytest.param(
            preview(
                group("a", "spot", G6, 1),
                group("x", "spot", ("g5.xlarge",), 3, pool="batch"),
                pools={"chat": {"target": 1, "min": 1, "max": 1}, "batch": {"target": 3, "min": 0, "max": 3}},
            ),
            "0.40", "1.90", "1.90", id="two pools",
        ),
    ],
)  # fmt: skip
def test_cost_of_six_fleets_by_hand(text: str, least: str, desired: str, most: str) -> None:
    cost = cost_of(text)
    assert cost.usd_per_hour_low == Decimal(least)
    assert cost.usd_per_hour == Decimal(desired)
    assert cost.usd_per_hour_high == Decimal(most)
    assert cost.usd_per_month == Decimal(desired) * 730


def test_lost_spot_is_replaced_up_to_the_on_demand_limit() -> None:
    (fallback,) = cost_of(
        preview(group("a", "spot", G6, 3), group("od", "on-demand", G6, 0), pools={"chat": CHAT})
    ).fallbacks
    assert (fallback.on_demand, fallback.missing, fallback.usd_per_hour) == (2, 1, Decimal("1.60"))


def google(desired: int, price: str | None) -> PlanCost:
    """The cost of a pool with flex-start only, at most three instances."""
    stated = [{"sku": "gcp:compute:a2-highgpu-1g:flex-start", "usd_per_hour": price, "source": "by hand"}]
    fleet = {
        "cloud": "gcp",
        "pools": [a_pool("chat", target=2, min=1, max=3, capacity={"flex_start": FLEX_START})],
        "prices": [{**one, "as_of": "2026-11-01"} for one in stated if price],
    }
    steps = [{"op": "create", **one} for one in flex_start(desired)]
    config = {"gcp:region": "us-central1", "gpu-fleet:fleet": json.dumps(fleet)}
    return cost_of(json.dumps({"config": config, "steps": steps}))


def test_flex_start_has_its_own_price() -> None:
    cost = google(2, "2.20")
    assert [line.what for line in cost.lines] == ["flex-start"]
    assert (cost.usd_per_hour_low, cost.usd_per_hour, cost.usd_per_hour_high) == tuple(
        map(Decimal, ("2.20", "4.40", "6.60"))
    )


def test_flex_start_without_a_price_does_not_use_the_on_demand_price() -> None:
    with pytest.raises(PlanCostError, match="no price for gcp:compute:a2-highgpu-1g:flex-start in us-central1"):
        google(2, None)


def test_spot_cost_is_the_range_of_its_price_history() -> None:
    text = preview(group("a", "spot", G6, 1), pools={"chat": {"target": 1, "min": 1, "max": 1}})
    plan = parse(text)
    config = dict(plan.config)
    fleet = json.loads(config["gpu-fleet:fleet"]) | {"prices": []}
    observed = [
        Price(
            sku="aws:ec2:g6.xlarge:spot", region="us-east-1", usd_per_hour=Decimal(usd), source="history",
            as_of=NOW, valid_from=NOW - timedelta(days=days), rank=Rank.LIVE,
        )
        for days, usd in ((40, "0.30"), (20, "0.35"), (1, "0.90"), (0.5, "0.41"))
    ]  # fmt: skip
    rates = rates_of(config | {"gpu-fleet:fleet": json.dumps(fleet)}, NOW, observed)
    (line,) = plan_cost(plan, plan.after, rates).lines
    # 0.90 applied for half a day of thirty, which is less than 5 %; so did 0.41, but it is the current price
    assert (line.price.low, line.price.usd_per_hour, line.price.high) == tuple(map(Decimal, ("0.30", "0.41", "0.41")))


def test_group_size_is_that_of_the_cloud_and_not_of_the_program() -> None:
    same = group("a", "spot", G6, 1)
    same["newState"]["outputs"] = {"desiredCapacity": 3}
    assert cost_of(preview(same, pools={"chat": CHAT})).usd_per_hour == Decimal("1.20")


def test_change_against_now_includes_deleted_resources() -> None:
    deleted = group("old", "spot", G6, 2)
    deleted["oldState"] = deleted.pop("newState")
    text = json.loads(preview(group("new", "spot", G6, 1), pools={"chat": CHAT}))
    text["steps"].append({"op": "delete", **deleted})
    plan = parse(json.dumps(text))
    rates = rates_of(plan.config, NOW)
    before, after = plan_cost(plan, plan.before, rates), plan_cost(plan, plan.after, rates)
    assert (before.usd_per_hour, after.usd_per_hour) == (Decimal("0.80"), Decimal("0.40"))
    assert "(-292.00 against now)" in headline(before, after)
    assert as_json(before, after)["usd_per_month_change"] == str(Decimal("-0.40") * 730)
    assert "| chat | spot |" in markdown(before, after)


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        pytest.param([group("a", "spot", ("g6.2xlarge",), 1)], "no price for aws:ec2:g6.2xlarge:spot", id="no price"),
        pytest.param([group("a", "spot", (), 1)], "a: has no machine type", id="no machine type"),
        pytest.param(
            [group("a", "spot", G6, 1, pool="other")], "pool other: the settings do not have", id="unknown pool"
        ),
        pytest.param(
            [resource("aws:rds/instance:Instance", "db", {})],
            "db: no price is defined for the type",
            id="unknown type",
        ),
        pytest.param(
            [resource("aws:lb/loadBalancer:LoadBalancer", "lb", {})], "lb: no price for aws:elb", id="extra"
        ),
    ],
)
def test_resource_without_a_price_is_an_error_and_never_zero(resources: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(PlanCostError) as caught:
        cost_of(preview(*resources, pools={"chat": CHAT}))
    assert any(message in problem for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "is empty", id="empty"),
        pytest.param("[1]", "no `steps`", id="a list"),
        pytest.param('{"steps": [], "changeSummary": {"same": 4}}', "--show-sames", id="unchanged resources omitted"),
        pytest.param(
            '{"steps": [], "diagnostics": [{"severity": "error", "message": "boom"}]}', "failed: boom", id="failed"
        ),
        pytest.param('{"steps": [{"op": "create", "newState": {"type": "t"}}]}', "has no 'urn'", id="no urn"),
        pytest.param(
            '{"steps": [{"op": "create", "urn": "u", "newState": {"x": 1}}]}', "has no 'type'", id="no type"
        ),
        pytest.param('{"steps": [], "changeSummary": {"same": "x"}}', "--show-sames", id="text instead of a count"),
    ],
)
def test_invalid_preview_is_refused(text: str, message: str) -> None:
    with pytest.raises(PreviewError, match=message):
        parse(text)


def test_preview_of_another_program_is_refused() -> None:
    plan = parse('{"steps": [], "config": {}}')
    with pytest.raises(PlanCostError, match="not a plan of gpu-fleet: gpu-fleet:fleet: is missing"):
        rates_of(plan.config, NOW)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param("{", "is not JSON", id="truncated"),
        pytest.param({"pools": [{"name": "chat"}]}, r"pools\.0\.target: is missing", id="a pool without a target"),
        pytest.param(
            {"pools": [a_pool("chat", target="x")]}, r"pools\.0\.target: .*'x'", id="text instead of a size"
        ),
        pytest.param(
            {"commitments": {"blocks": [{"reservation": "r"}]}},
            r"blocks\.0\.upfront_usd: is missing",
            id="an incomplete block",
        ),
        pytest.param({"prices": [PRICED | {"usd_per_hour": -1}]}, r"prices\.0\.usd_per_hour: .*-1", id="below zero"),
        pytest.param({"prices": [PRICED | {"usd_per_hour": "x"}]}, r"prices\.0\.usd_per_hour: .*'x'", id="text"),
    ],
)
def test_settings_that_the_program_refuses_are_named(settings: Any, message: str) -> None:
    inside = settings if isinstance(settings, str) else {"cloud": "aws", "environment": "e", **settings}
    plan = parse(json.dumps({"steps": [], "config": {"gpu-fleet:fleet": inside, "aws:region": "us-east-1"}}))
    with pytest.raises(PlanCostError, match=message):
        plan_cost(plan, plan.after, rates_of(plan.config, NOW))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(
            resource("aws:autoscaling/group:Group", "g", {"tags": [{"key": "gpu-fleet:pool"}]}),
            id="an incomplete tag",
        ),
        pytest.param(group("g", "cheap", G6, 1), id="an unknown capacity type"),
        pytest.param(reservation("r", "g6.xlarge", "many"), id="text instead of a count"),  # pyright: ignore[reportArgumentType]
        pytest.param(resource("aws:ebs/volume:Volume", "v", {"size": "large"}), id="text instead of a size"),
    ],
)
def test_resources_that_the_program_does_not_declare_are_named(found: dict[str, Any]) -> None:
    with pytest.raises(PlanCostError, match="a resource of the preview was not written by the Pulumi program"):
        cost_of(preview(found, pools={"chat": CHAT}))
