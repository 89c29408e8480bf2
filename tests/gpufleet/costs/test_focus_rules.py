"""Every MUST rule of FOCUS 1.2, on rows of a fleet with commitments, reservations, shared resources and teams.

tests.fixtures.costs.focus_rules holds the rules that the rows alone can prove. The tests here check the others
against the facts of the fleet, and name the ids of the rules.
"""

import json
from collections.abc import Iterable
from decimal import Decimal

import pytest

from gpufleet.costs.focus import COLUMNS
from gpufleet.domain import money
from gpufleet.domain.model import Cloud
from tests.fixtures.costs.focus_rows import ACCOUNT, FLEET, MACHINES, ROWS, Row, reports
from tests.fixtures.costs.focus_rules import Checker

ALL = [row for found in ROWS.values() for row in found]
TOTAL = {cloud: money.usd(money.total(r.total.allocation for r in reports(cloud))) for cloud in Cloud}


def sums(found: Iterable[Row], column: str, key: str) -> dict[str, Decimal]:
    result: dict[str, Decimal] = {}
    for row in found:
        if row[key] and row[column]:
            result[row[key]] = result.get(row[key], Decimal(0)) + Decimal(row[column])
    return result


@pytest.mark.parametrize("cloud", Cloud)
def test_rows_break_no_rule_of_the_table(cloud: Cloud) -> None:
    checker = Checker(ROWS[cloud])
    assert checker.broken() == {}
    assert len(checker.used) > 230


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        pytest.param({"ConsumedQuantity": "1.0", "ConsumedUnit": "Hours"}, "ConsumedQuantity-C-004-C", id="unused"),
        pytest.param({"CommitmentDiscountStatus": ""}, "CommitmentDiscountStatus-C-004-C", id="no status"),
        pytest.param({"CommitmentDiscountQuantity": ""}, "CommitmentDiscountQuantity-C-005-C", id="no quantity"),
        pytest.param({"ListCost": "3.0"}, "ListCost-C-009-C", id="another product"),
        pytest.param({"EffectiveCost": ""}, "EffectiveCost-C-003-M", id="no cost"),
        pytest.param({"ChargePeriodEnd": "2026-11-01"}, "ChargePeriodEnd-C-002-M", id="no time"),
        pytest.param({"CommitmentDiscountStatus": "Active"}, "CommitmentDiscountStatus-C-005-M", id="no such status"),
        pytest.param({"PricingCategory": "Reserved"}, "PricingCategory-C-007-M", id="not allowed"),
        pytest.param({"RegionName": "", "RegionId": "us-east-1"}, "RegionName-C-005-C", id="region without a name"),
        pytest.param({"ChargeFrequency": ""}, "ChargeFrequency-C-002-M", id="no frequency"),
        pytest.param({"Tags": '{"a": [1]}'}, "Tags-C-001-M", id="nested tags"),
        pytest.param({"CapacityReservationId": "cr-1"}, "CapacityReservationStatus-C-004-C", id="no state"),
        pytest.param({"ServiceName": "AWS Savings Plans", "ServiceCategory": "Storage"}, "ServiceName-C-005-C",
                     id="one service in two categories"),
    ],
)  # fmt: skip
def test_rule_table_detects_violations(fault: Row, rule: str) -> None:
    good = ROWS[Cloud.AWS]
    at = next(n for n, row in enumerate(good) if row["CommitmentDiscountStatus"] == "Unused")
    bad = [row | fault if n == at else row for n, row in enumerate(good)]
    assert at in Checker(bad).broken()[rule]


def test_columns_are_specified_or_begin_with_x() -> None:
    # ColumnHandling-A-001-M, -010-M, -013-O
    custom = [name.startswith("x_") for name in COLUMNS]
    assert custom == sorted(custom)
    assert all(tuple(row) == COLUMNS for row in ALL)


def test_only_commitment_rows_have_a_commitment_id() -> None:
    # CommitmentDiscountId-C-004-C, -005-C, DiscountHandling-A-006-M
    for row in ALL:
        of_commitment = "sp-1" in row["x_PriceSource"] or row["x_ChargeKind"].startswith("commit")
        split = of_commitment and row["PricingCategory"] == "Standard" and row["ChargeCategory"] == "Usage"
        assert bool(row["CommitmentDiscountId"]) == (of_commitment and not split)
    assert {row["CommitmentDiscountId"] for row in ALL} == {"", f"{ACCOUNT}/{FLEET}/sp-1"}
    types = {row["CommitmentDiscountType"] for row in ROWS[Cloud.GCP]}
    assert types == {"", "Committed Use Discount"}


def test_covered_usage_has_its_committed_rate_and_its_list_price() -> None:
    # ListUnitPrice, EffectiveCost, DiscountHandling-A-007-M: billed cost 0, effective cost amortised
    covered = [row for row in ROWS[Cloud.AWS] if row["CommitmentDiscountStatus"] == "Used"]
    hours = sum(Decimal(row["PricingQuantity"]) for row in covered)
    assert {row["ListUnitPrice"] for row in covered} == {"0.8048"}
    assert {row["BilledCost"] for row in covered} == {"0.0"}
    assert {row["PricingCategory"] for row in covered} == {"Committed"}
    effective = sum(Decimal(row["EffectiveCost"]) for row in covered)
    assert effective == pytest.approx(hours * Decimal("0.5"), abs=Decimal("1e-6"))
    # i-1 for 5.3 hours; half of i-2 for 4.3, all of it for 0.7; a quarter USD/h never pays half of i-3
    assert hours == pytest.approx(
        Decimal("5.3") + Decimal("0.5") * Decimal("4.3") + Decimal("0.7"), abs=Decimal("1e-6")
    )


def test_discount_on_a_part_of_a_charge_has_its_own_row() -> None:
    # DiscountHandling-A-002-C, -004-C
    second = [row for row in ROWS[Cloud.AWS] if row["ResourceId"] == "i-2"]
    by_kind = sums(second, "PricingQuantity", "PricingCategory")
    assert by_kind["Standard"] == pytest.approx(Decimal("0.5") * Decimal("4.3"), abs=Decimal("1e-6"))
    assert sum(by_kind.values()) == pytest.approx(Decimal(5), abs=Decimal("1e-6"))
    standard = [row for row in second if row["PricingCategory"] == "Standard"]
    assert all(row["EffectiveCost"] == row["BilledCost"] == row["ListCost"] for row in standard)


@pytest.mark.parametrize("cloud", Cloud)
def test_purchase_rows_bill_used_and_unused_parts(cloud: Cloud) -> None:
    # EffectiveCost-C-005-C, -012-C, -013-C
    found = ROWS[cloud]
    bought = [row for row in found if row["ChargeCategory"] == "Purchase"]
    used = [row for row in found if row["CommitmentDiscountStatus"]]
    assert {row["CommitmentDiscountStatus"] for row in used} == {"Used", "Unused"}
    assert {row["EffectiveCost"] for row in bought} == {"0.0"}
    assert sums(bought, "BilledCost", "BillingPeriodStart") == sums(used, "EffectiveCost", "BillingPeriodStart")
    assert sum(Decimal(row["BilledCost"]) for row in bought) == pytest.approx(
        Decimal("0.75") * 8, abs=Decimal("1e-6")
    )
    for row in bought:
        assert row["ResourceId"] == row["CommitmentDiscountId"]
        assert (row["PricingCategory"], row["ChargeFrequency"]) == ("Standard", "Recurring")


def test_unused_commitment_has_no_consumption_and_no_list_cost() -> None:
    unused = [row for row in ALL if row["CommitmentDiscountStatus"] == "Unused"]
    assert unused
    for row in unused:
        assert row["ConsumedQuantity"] == row["ConsumedUnit"] == ""
        assert row["ResourceId"] == row["CommitmentDiscountId"]
        assert row["CommitmentDiscountQuantity"] == row["EffectiveCost"]
        assert (row["ListCost"], row["BilledCost"]) == ("0.0", "0.0")


@pytest.mark.parametrize("cloud", Cloud)
def test_effective_and_billed_cost_match_the_report(cloud: Cloud) -> None:
    for column in ("EffectiveCost", "BilledCost"):
        assert sum(Decimal(row[column]) for row in ROWS[cloud]) == pytest.approx(TOTAL[cloud], abs=Decimal("1e-6"))


def test_sku_is_the_same_for_every_capacity_type() -> None:
    # SkuId-C-009-M, -010-M; SkuPriceId-C-008-M
    for cloud, (machine, _) in MACHINES.items():
        mine = [row for row in ROWS[cloud] if machine in row["SkuPriceDetails"] and row["SkuPriceId"]]
        assert len({row["SkuId"] for row in mine}) == 1
        assert {row["PricingCategory"] for row in mine} == {"Standard", "Dynamic", "Committed"}
        assert not [row for row in mine if "cr-" in row["SkuPriceId"] or "sp-1" in row["SkuPriceId"]]


DEFINED = {
    "CoreCount", "DiskMaxIops", "DiskSpace", "DiskType", "GpuCount", "InstanceSeries", "InstanceType", "MemorySize",
    "NetworkMaxIops", "NetworkMaxThroughput", "OperatingSystem", "Redundancy", "StorageClass",
}  # fmt: skip


def test_price_details_are_specified_or_begin_with_x_and_match_their_price() -> None:
    # SkuPriceDetails-C-007-M, -017-C, -020-M
    seen: dict[str, str] = {}
    for row in ALL:
        if row["SkuPriceId"]:
            assert seen.setdefault(row["SkuPriceId"], row["SkuPriceDetails"]) == row["SkuPriceDetails"]
            assert all(key in DEFINED or key.startswith("x_") for key in json.loads(row["SkuPriceDetails"]))


def test_list_prices_refer_to_one_unit_of_their_sku() -> None:
    # ListUnitPrice-C-001, SkuPriceId-C-014-C: one price at a time for each SkuPriceId
    prices: dict[str, set[str]] = {}
    for row in ALL:
        if row["ListUnitPrice"] and "committ" not in row["x_ChargeKind"]:
            prices.setdefault(row["SkuPriceId"], set()).add(row["ListUnitPrice"])
    assert all(len(found) == 1 for found in prices.values())
    disk = [row for row in ROWS[Cloud.AWS] if row["SkuId"] == "aws:ebs:gp3:gib"]
    assert {(row["ListUnitPrice"], row["PricingUnit"]) for row in disk} == {("0.00010959", "GiB-Hours")}


@pytest.mark.parametrize(
    ("sku", "service"),
    [
        ("aws:vpc:nat-gateway", ("Amazon Virtual Private Cloud", "Networking", "Network Infrastructure")),
        ("aws:route53:zone", ("Amazon Route 53", "Networking", "Network Infrastructure")),
        ("aws:elb:load-balancer", ("Elastic Load Balancing", "Networking", "Application Networking")),
        ("aws:ebs:gp3:gib", ("Amazon Elastic Block Store", "Storage", "Block Storage")),
        ("aws:ec2:t3.medium", ("Amazon Elastic Compute Cloud", "Compute", "Virtual Machines")),
        ("aws:ec2:g6.xlarge", ("Amazon Elastic Compute Cloud", "Compute", "Virtual Machines")),
        ("aws:quantum:annealer", ("aws:quantum", "Other", "Other (Other)")),
        ("gcp:disk:pd-ssd:gib", ("Persistent Disk", "Storage", "Block Storage")),
        ("gcp:network:nat-gateway", ("Cloud NAT", "Networking", "Network Infrastructure")),
        ("gcp:compute:g2-standard-4", ("Compute Engine", "Compute", "Virtual Machines")),
    ],
)
def test_each_row_names_the_service_that_sells_it(sku: str, service: tuple[str, str, str]) -> None:
    found = {
        (row["ServiceName"], row["ServiceCategory"], row["ServiceSubcategory"]) for row in ALL if row["SkuId"] == sku
    }
    assert found == {service}


@pytest.mark.parametrize("cloud", Cloud)
def test_teams_add_up_to_the_report_of_each_team(cloud: Cloud) -> None:
    expected: dict[str, Decimal] = {}
    tokens: dict[str, int] = {}
    for report in reports(cloud):
        for share in report.teams:
            expected[share.name] = expected.get(share.name, Decimal(0)) + money.usd(share.figure.allocation)
            tokens[share.name] = tokens.get(share.name, 0) + (share.figure.tokens.generation or 0)
    chat = [row for row in ROWS[cloud] if row["x_Pool"] == "chat"]
    assert set(expected) == {"search", "ads", "(no key)"} == set(sums(chat, "EffectiveCost", "x_Team"))
    for team, usd in sums(chat, "EffectiveCost", "x_Team").items():
        assert usd == pytest.approx(expected[team], abs=Decimal("1e-6"))
    assert sums(chat, "x_GeneratedTokens", "x_Team") == tokens
    # the tag belongs to the resource, whoever used it
    assert {json.loads(row["Tags"])["gpu-fleet:owner"] for row in chat if row["x_ChargeKind"] == "time"} == {"search"}


def test_tokens_of_an_unsplit_pool_are_on_one_row_of_their_instance() -> None:
    found = [(row["ResourceId"], row["x_PromptTokens"]) for row in ROWS[Cloud.AWS] if row["x_Pool"] == "batch"]
    assert [one for one in found if one[1]] == [("i-3", "700")]


def test_ids_of_resources_declared_by_name_are_unique_across_fleets() -> None:
    # ResourceId-C-007-M, CommitmentDiscountId-C-007-M
    for row in ALL:
        if row["x_ChargeKind"] == "shared":
            assert row["ResourceId"] == f"{ACCOUNT}/{FLEET}/{row['ResourceName']}"
