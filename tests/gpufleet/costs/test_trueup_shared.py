"""Reconciliation of bills with shared costs and commitments: matched by sku, with causes, and parts that add up
to the bill."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.costs.allocation import LedgerFacts
from gpufleet.costs.bills import Bill, BillFormat, BillLine, read_bill
from gpufleet.costs.commitments import BlockCommitment, Coverage, DeclaredCosts, SharedCost, SpendCommitment
from gpufleet.costs.trueup import COMMITMENTS, DifferenceCause, TrueUp, true_up
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.ledger.facts import EndCause, Reservation, Run
from gpufleet.ledger.schema import open_ledger
from gpufleet.prices.book import PriceBook, parse_as_of
from tests.fixtures.costs.bill_rows import WINDOW, as_csv, complete_bill, cur_row, google_row, run_report, trueup
from tests.fixtures.costs.overrides import override
from tests.fixtures.small_fleet import FLEET, HOUR, T0, document, fill, run

AS_OF = "2026-11-01"
PRICES = {
    "aws:vpc:nat-gateway": "0.045",
    "aws:vpc:interface-endpoint": "0.01",
    "aws:ebs:gp3:gib": "0.0001",
    "aws:ec2:t3.medium:on-demand": "0.04",
    "aws:route53:zone": "0.0006",
}
SHARED = [
    {"name": "NAT gateway", "sku": "aws:vpc:nat-gateway", "units": "1"},
    {"name": "interface endpoints", "sku": "aws:vpc:interface-endpoint", "units": "6"},
    {"name": "root disk", "sku": "aws:ebs:gp3:gib", "units": "100", "per": "instance"},
    {"name": "control host", "sku": "aws:ec2:t3.medium:on-demand", "units": "1"},
    {"name": "control host's disks", "sku": "aws:ebs:gp3:gib", "units": "70"},
    {"name": "DNS zone", "sku": "aws:route53:zone", "units": "1"},
]


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    engine.dispose()
    stated = [{"sku": k, "usd_per_hour": v, "source": "list", "as_of": AS_OF} for k, v in PRICES.items()]
    return document(tmp_path, shared=SHARED, prices={"overrides": stated})


def other(resource: str, hour: int, usage: str, usd: str, amount: str = "1", **more: str) -> dict[str, str]:
    """A row of a resource that is not a GPU instance."""
    return cur_row(resource, hour, usd, amount, line_item_usage_type=usage, line_item_product_code="AmazonVPC") | more


def shared_rows() -> list[dict[str, str]]:
    """Rows of the shared resources of the fleet over six hours, equal to the computed costs to the cent."""
    hours = range(6)
    # GiB of root disks of all instances: i-spot half an hour, i-fallback 5.5, i-idle 2, i-paid 5 of 100 GiB each
    disk = Decimal("0.0001") * (100 * Decimal(13) + 70 * Decimal(6))
    zone = other("Z1", 0, "HostedZone", "0.0036", line_item_product_code="AmazonRoute53")
    zone["line_item_usage_end_date"] = "2026-11-20T12:00:00.000Z"
    return [
        *(other("nat-1", hour, "USE1-NatGateway-Hours", "0.045") for hour in hours),
        *(other(f"vpce-{n}", hour, "USE1-VpcEndpoint-Hours", "0.03", "3") for n in range(2) for hour in hours),
        *(cur_row("i-control", hour, "0.04", line_item_usage_type="USE1-BoxUsage:t3.medium") for hour in hours),
        other("vol-1", 0, "USE1-EBS:VolumeUsage.gp3", str(disk), "0.9", line_item_product_code="AmazonEC2"),
        zone,
        other("nat-1", 0, "USE1-NatGateway-Bytes", "7"),
    ]


def bill(*rows: dict[str, str]) -> list[dict[str, str]]:
    return [*complete_bill(), *rows]


def test_shared_costs_agree_with_a_bill_that_has_other_resource_ids(fleet: Path, tmp_path: Path) -> None:
    found = trueup(fleet, as_csv(tmp_path / "bill.csv", bill(*shared_rows())), *WINDOW)
    assert found["differences"] == []
    assert found["resources_that_agree"] == 4 + len(PRICES)
    # bytes of a gateway are billed by use
    assert Decimal(found["bill"]["not_compared_usd"]) == Decimal("7.02")


def without(resource: str) -> list[dict[str, str]]:
    return [row for row in shared_rows() if row["line_item_resource_id"] != resource]


def changed(resource: str, hour: int, **fields: str) -> list[dict[str, str]]:
    name = f"{resource}-{hour}"
    return [row | (fields if row["identity_line_item_id"] == name else {}) for row in shared_rows()]


@pytest.mark.parametrize(
    ("rows", "key", "parts"),
    [
        pytest.param(without("nat-1"), "aws:vpc:nat-gateway", {"not in the bill": "-0.27"}, id="not billed"),
        pytest.param(
            changed("nat-1", 1, line_item_unblended_cost="0.055"),
            "aws:vpc:nat-gateway", {"price": "0.01"}, id="another price",
        ),
        pytest.param(
            changed("vpce-1", 2, line_item_unblended_cost="0.01", line_item_usage_amount="1"),
            "aws:vpc:interface-endpoint", {"hours": "-0.02"}, id="two zones fewer for an hour",
        ),
        pytest.param(
            changed("vol-1", 0, line_item_unblended_cost="0.3"),
            "aws:ebs:gp3:gib", {"price or hours": "0.128"}, id="disks are billed by the month",
        ),
        pytest.param(without("i-control"), "aws:ec2:t3.medium:on-demand", {"not in the bill": "-0.24"}, id="host"),
        pytest.param(
            [*shared_rows(), cur_row("i-unknown", 0, "0.04", line_item_usage_type="USE1-BoxUsage:t3.small")],
            "i-unknown", {"unknown resource": "0.04"}, id="an undeclared machine",
        ),
    ],
)  # fmt: skip
def test_differences_of_shared_costs_have_causes(
    fleet: Path, tmp_path: Path, rows: list[dict[str, str]], key: str, parts: dict[str, str]
) -> None:
    found = trueup(fleet, as_csv(tmp_path / "bill.csv", bill(*rows)), *WINDOW)
    (one,) = found["differences"]
    assert one["resource"] == key
    assert {cause: Decimal(usd) for cause, usd in one["parts"].items() if Decimal(usd)} == {
        cause: Decimal(usd) for cause, usd in parts.items()
    }


def test_load_balancer_that_the_fleet_does_not_declare_is_not_compared(fleet: Path, tmp_path: Path) -> None:
    rows = bill(*shared_rows(), other("lb", 0, "USE1-LoadBalancerUsage", "3"))
    found = trueup(fleet, as_csv(tmp_path / "bill.csv", rows), *WINDOW)
    assert found["differences"] == []
    assert Decimal(found["bill"]["not_compared_usd"]) == Decimal("10.02")


def test_only_the_part_of_a_month_inside_the_window_is_compared(fleet: Path, tmp_path: Path) -> None:
    rows = shared_rows()
    zone = next(row for row in rows if row["line_item_resource_id"] == "Z1")
    month = {
        "line_item_usage_start_date": "2026-11-01T00:00:00.000Z",
        "line_item_usage_end_date": "2026-12-01T00:00:00.000Z",
        "line_item_unblended_cost": str(Decimal("0.0006") * 720),
    }
    found = trueup(fleet, as_csv(tmp_path / "bill.csv", bill(*[r for r in rows if r is not zone], zone | month)))
    assert (found["since"], found["differences"]) == ("2026-11-20T06:00:00Z", [])


def test_own_focus_export_agrees_with_shared_costs_and_commitments(tmp_path: Path) -> None:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    engine.dispose()
    stated = [{"sku": k, "usd_per_hour": v, "source": "list", "as_of": AS_OF} for k, v in PRICES.items()]
    term = {"starts": "2026-11-20T00:00:00Z", "ends": "2026-11-21T00:00:00Z", "source": "order", "as_of": AS_OF}
    spend = term | {"name": "sp-1", "usd_per_hour": "2", "rates": {"g6.xlarge": "0.6"}}
    block = term | {"reservation": "cr-1", "instances": 1, "upfront_usd": "24"}
    path = document(
        tmp_path, shared=SHARED, prices={"overrides": stated}, commitments={"spends": [spend], "blocks": [block]}
    )
    out = tmp_path / "focus.csv"
    assert run_report("cost", "--fleet", path, *WINDOW, "--format", "focus", "--out", out).exit_code == 0
    found = trueup(path, out, *WINDOW)
    assert (found["bill"]["form"], found["differences"]) == (BillFormat.FOCUS, [])
    assert Decimal(found["bill"]["not_compared_usd"]) == 0
    # one Capacity Block, three instances, five skus, one row of commitments
    assert found["resources_that_agree"] == 10


def savings(hour: int, paid: str, used: str) -> dict[str, str]:
    return cur_row(
        "arn:aws:savingsplans::0:savingsplan/7f", hour, paid, line_item_line_item_type="SavingsPlanRecurringFee",
        line_item_usage_type="ComputeSP:1yrNoUpfront", line_item_product_code="ComputeSavingsPlans",
        savings_plan_total_commitment_to_date=paid, savings_plan_used_commitment=used,
    )  # fmt: skip


@dataclass
class SimulatedFleet:
    """Two instances for four hours at 1 USD/h, one of them in a Capacity Block; a Savings Plan; a gateway."""

    block: bool = False
    spend: bool = False
    shared: bool = False

    def facts(self) -> LedgerFacts:
        term = {"starts": T0, "ends": T0 + 24 * HOUR, "source": "order", "as_of": T0}
        runs: list[Run] = [
            run("i-a", 0, CapacityType.ON_DEMAND, ended_at=T0 + 4 * HOUR, end_cause=EndCause.ENDED),
            run(
                "i-b", 0, CapacityType.RESERVED, reservation="cr-9", ended_at=T0 + 4 * HOUR, end_cause=EndCause.ENDED
            ),
        ]
        declared = DeclaredCosts(
            shared=[
                SharedCost(name="nat", sku="aws:vpc:nat-gateway", units=Decimal(1)),
                SharedCost(name="disk", sku="aws:ebs:gp3:gib", units=Decimal(10), per_instance=True),
            ]
            if self.shared
            else (),
            weights={"chat": 2, "batch": 1},
            blocks=[BlockCommitment(reservation="cr-9", instances=1, upfront_usd=Decimal(48), **term)]
            if self.block else (),
            spends=[
                SpendCommitment(name="sp", cloud=Cloud.AWS, usd_per_hour=Decimal("0.5"),
                      rates={"g6.xlarge": Decimal("0.4")}, **term)
            ] if self.spend else (),
        )  # fmt: skip
        return LedgerFacts(runs=runs, declared=declared, coverage=Coverage(declared, runs), known=(T0, T0 + 4 * HOUR))

    def compare(self, lines: list[BillLine]) -> TrueUp:
        overrides = [
            override(sku, usd, parse_as_of(AS_OF))
            for sku, usd in {**PRICES, "aws:ec2:g6.xlarge:on-demand": "1"}.items()
        ]
        made = Bill(form=BillFormat.CUR, digest="d", lines=tuple(lines), others=Decimal(0))
        book = PriceBook(region="us-east-1", overrides=overrides)
        return true_up(made, self.facts(), book, T0, T0 + 4 * HOUR)


def line(resource: str, hour: int, usd: str, hours: str | None = "1", **more: Any) -> BillLine:
    start = T0 + hour * HOUR
    return BillLine(
        resource=resource, start=start, end=start + HOUR, usd=Decimal(usd),
        hours=None if hours is None else Decimal(hours), **more,
    )  # fmt: skip


def hourly(resource: str, usd: str) -> Iterator[BillLine]:
    return (line(resource, hour, usd) for hour in range(4))


def parts_of(found: TrueUp) -> dict[str, dict[DifferenceCause, Fraction]]:
    return {one.resource: {c: u for c, u in one.parts.items() if u} for one in found.differences}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # computed: 2 USD/h for four hours
        pytest.param([*hourly("i-b", "0"), line("cr-9", 0, "48", None, fee=True)], {DifferenceCause.AHEAD: 40},
                     id="fee"),
        pytest.param(
            [*hourly("i-b", "0"), line("cr-9", 0, "50", None, fee=True)],
            {DifferenceCause.AHEAD: 40, DifferenceCause.PRICE: 2},
            id="another fee",
        ),
        pytest.param([*hourly("i-b", "0")], {DifferenceCause.AHEAD: -8}, id="paid before the window"),
        pytest.param([*hourly("i-b", "2.5")], {DifferenceCause.PRICE: 2}, id="spread by the bill"),
        pytest.param([*hourly("i-b", "2")], {}, id="spread as in the ledger"),
    ],
)  # fmt: skip
def test_capacity_block_and_its_instances_are_compared_together(
    lines: list[BillLine], expected: dict[DifferenceCause, int]
) -> None:
    found = SimulatedFleet(block=True).compare([*hourly("i-a", "1"), *lines])
    assert parts_of(found) == ({"cr-9": expected} if expected else {})


@pytest.mark.parametrize(
    ("covered", "unused", "expected"),
    [
        # i-a is covered wholly at 0.4 USD/h; 0.1 USD/h is not used
        pytest.param("0.4", "0.1", {}, id="the same hours as in the ledger"),
        pytest.param("0.4", "0.2", {COMMITMENTS: {DifferenceCause.COVERAGE: Fraction(4, 10)}}, id="less use"),
        pytest.param(
            "1", "0.5",
            {"i-a": {DifferenceCause.PRICE: Fraction(24, 10)},
             COMMITMENTS: {DifferenceCause.COVERAGE: Fraction(16, 10)}},
            id="another instance was covered",
        ),
    ],
)  # fmt: skip
def test_unused_part_of_commitments_is_compared(
    covered: str, unused: str, expected: dict[str, dict[DifferenceCause, Fraction]]
) -> None:
    rest = [line("", hour, unused, None, unused=True) for hour in range(4)]
    found = SimulatedFleet(spend=True).compare([*hourly("i-a", covered), *hourly("i-b", "1"), *rest])
    assert parts_of(found) == expected


def test_remainder_of_a_savings_plan_is_read_from_its_fee(tmp_path: Path) -> None:
    found = read_bill(as_csv(tmp_path / "bill.csv", [{**savings(0, "2", "1.25")}]))
    assert [(one.usd, one.unused, one.resource) for one in found.lines] == [(Decimal("0.75"), True, "")]


def test_remainder_without_a_declared_commitment_is_compared_with_nothing() -> None:
    found = SimulatedFleet().compare([*hourly("i-a", "1"), *hourly("i-b", "1"), line("", 0, "3", None, unused=True)])
    assert (found.differences, found.not_compared) == ([], 3)


def test_google_shared_costs_are_matched_by_description(tmp_path: Path) -> None:
    machine = '[{"key": "compute.googleapis.com/machine_spec", "value": "e2-medium"}]'
    rows = [
        google_row("control", "1", **{"sku.description": "E2 Instance Core in Americas", "system_labels": machine}),
        google_row("nat", "2", **{"service.description": "Networking", "sku.description": "Cloud NAT Gateway: Uptime",
                              "system_labels": ""}),
        google_row("d", "3", **{"sku.description": "Balanced PD Capacity in Iowa", "system_labels": ""}),
        google_row("c", "4", **{"sku.description": "Commitment v1: G2 Core in Iowa for 1 Year", "system_labels": ""}),
        google_row("t", "5", **{"service.description": "Networking", "sku.description": "Network Internet Egress",
                            "system_labels": ""}),
    ]  # fmt: skip
    found = read_bill(as_csv(tmp_path / "bill.csv", rows))
    assert [(one.resource, one.sku, one.unused) for one in found.lines] == [
        ("control", "gcp:compute:e2-medium:on-demand", False),
        ("", "gcp:network:nat-gateway", False),
        ("", "gcp:disk:pd-balanced:gib", False),
        ("", "", True),
    ]
    assert found.others == 5


amounts = st.decimals(0, 20, places=6).map(str)
quantities = st.none() | st.decimals(0, 3, places=4).map(str)
any_line = st.one_of(
    st.builds(
        line, st.sampled_from(["i-a", "i-b", "cr-9", "i-other"]), st.integers(0, 3), amounts, quantities,
        fee=st.booleans(), sku=st.sampled_from(["", "aws:ec2:t3.medium:on-demand"]),
    ),
    st.builds(
        line, st.just(""), st.integers(-2, 5), amounts, quantities,
        sku=st.sampled_from(["aws:vpc:nat-gateway", "aws:ebs:gp3:gib", "aws:elb:load-balancer"]),
    ),
    st.builds(line, st.just(""), st.integers(0, 3), amounts, st.none(), unused=st.just(True)),
)  # fmt: skip


@given(
    lines=st.lists(any_line, max_size=12), extension=st.integers(1, 40),
    block=st.booleans(), spend=st.booleans(), shared=st.booleans(),
)  # fmt: skip
def test_computed_cost_and_causes_add_up_to_the_bill(
    lines: list[BillLine], extension: int, block: bool, spend: bool, shared: bool
) -> None:
    # At least one line for each day, else the bill is incomplete. Some lines are longer than their hour.
    longer = [replace(one, end=one.end + timedelta(minutes=7 * extension * (n % 2))) for n, one in enumerate(lines)]
    found = SimulatedFleet(block=block, spend=spend, shared=shared).compare([line("i-a", 0, "1"), *longer])
    assert found.computed + sum(found.by_cause.values()) + found.agreeing == found.billed
    for one in found.differences:
        assert sum(one.parts.values()) == one.usd
    inside = sum((Fraction(one.usd) * _overlap(one) for one in (line("i-a", 0, "1"), *longer)), Fraction(0))
    assert found.billed + found.not_compared == inside


def _overlap(one: BillLine) -> Fraction:
    """The part of a line inside the window of four hours. A line of an instance counts where it starts."""
    if one.resource:
        return Fraction(int(T0 <= one.start < T0 + 4 * HOUR))
    inside = min(one.end, T0 + 4 * HOUR) - max(one.start, T0)
    second = timedelta(seconds=1)
    return max(Fraction(inside // second, (one.end - one.start) // second), Fraction(0))


def test_reservation_that_is_not_a_block_keeps_its_own_row() -> None:
    simulated = SimulatedFleet()
    reservation = Reservation(
        cloud=Cloud.AWS, reservation="cr-9", started_at=T0, instances=2, environment=FLEET, region="us-east-1",
        zone="us-east-1a", machine_type="g6.xlarge", pool="chat", model=None, owner="search", ends_at=None,
        last_seen_at=T0 + 4 * HOUR,
    )  # fmt: skip
    known = simulated.facts()
    known = LedgerFacts(runs=known.runs, reservations=[reservation], known=known.known)
    bill_ = Bill(form=BillFormat.CUR, digest="d", others=Decimal(0), lines=(*hourly("i-a", "1"), *hourly("i-b", "1")))
    overrides = [override("aws:ec2:g6.xlarge:on-demand", "1", T0)]
    found = true_up(bill_, known, PriceBook(region="us-east-1", overrides=overrides), T0, T0 + 4 * HOUR)
    assert parts_of(found) == {"cr-9": {DifferenceCause.UNBILLED: Fraction(-4)}}


def test_reservation_shared_by_fleets_is_compared_by_the_declared_instances_of_this_one() -> None:
    reservation = Reservation(
        cloud=Cloud.AWS, reservation="cr-9", started_at=T0, instances=4, environment=FLEET, region="us-east-1",
        zone="us-east-1a", machine_type="g6.xlarge", last_seen_at=T0 + 4 * HOUR, elsewhere=2, seats=1,
    )  # fmt: skip
    known = LedgerFacts(runs=[], reservations=[reservation], known=(T0, T0 + 4 * HOUR))
    unused = tuple(replace(one, usd=one.usd * 2, hours=Decimal(2)) for one in hourly("cr-9", "1"))
    bill_ = Bill(form=BillFormat.CUR, digest="d", others=Decimal(0), lines=unused)
    overrides = [override("aws:ec2:g6.xlarge:on-demand", "1", T0)]
    found = true_up(bill_, known, PriceBook(region="us-east-1", overrides=overrides), T0, T0 + 4 * HOUR)
    assert parts_of(found) == {}
