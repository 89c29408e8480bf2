"""Bills of the clouds with more than plain usage: each row is read correctly, or the file is refused."""

import csv
import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from gpufleet.costs.bills import Bill, BillError, BillFormat, read_bill
from gpufleet.toolchain.folders import ROOT
from tests.fixtures.costs.bill_rows import as_csv, cur_row

NAME = "gpu-chat-x1"
PLACE = "//compute.googleapis.com/projects/1/zones/us-central1-a/instances"


def google(usd: str, **more: Any) -> dict[str, Any]:
    """A row of Google's detailed export, with its nested columns."""
    return {
        "billing_account_id": "0", "service": {"id": "6F81-5844-456A", "description": "Compute Engine"},
        "sku": {"id": "1", "description": "Nvidia L4 GPU attached to Spot Preemptible VMs running in Iowa"},
        "usage_start_time": "2026-11-21 06:00:00 UTC", "usage_end_time": "2026-11-21 07:00:00 UTC",
        "cost": float(usd), "currency": "USD", "currency_conversion_rate": 1.0, "cost_type": "regular",
        "usage": {"amount": 3600.0, "unit": "seconds", "amount_in_pricing_units": 1.0, "pricing_unit": "hour"},
        "credits": [], "resource": {"name": NAME, "global_name": f"{PLACE}/{NAME}"}, "invoice": {"month": "202611"},
    } | more  # fmt: skip


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def of(bill: Bill) -> dict[str, Decimal]:
    """USD by resource, followed by the amounts that are compared with nothing."""
    found: dict[str, Decimal] = {"": bill.others}
    for line in bill.lines:
        found[line.resource or line.sku or "unused"] = found.get(line.resource or line.sku or "unused", 0) + line.usd
    return {name: usd for name, usd in found.items() if usd or name}


def kind(name: str, usd: str, **more: str) -> dict[str, str]:
    return cur_row("i-1", 1, usd, line_item_line_item_type=name, identity_line_item_id=name) | more


EXTRA = {
    "reservation_unused_amortized_upfront_fee_for_billing_period": "0.25", "reservation_unused_recurring_fee": "0.5",
    "split_line_item_parent_resource_id": "", "savings_plan_total_commitment_to_date": "0",
    "savings_plan_used_commitment": "0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param(kind("DiscountedUsage", "9", reservation_effective_cost="0.4"), {"i-1": "0.4"}, id="reserved"),
        pytest.param(
            kind("SavingsPlanCoveredUsage", "9", savings_plan_savings_plan_effective_cost="0.4"), {"i-1": "0.4"},
            id="covered by a plan",
        ),
        pytest.param(kind("SavingsPlanNegation", "-9"), {}, id="the plan's discount on the list price"),
        pytest.param(kind("SavingsPlanUpfrontFee", "900"), {}, id="paid ahead for a plan"),
        pytest.param(kind("RIFee", "900", line_item_resource_id=""), {"": "0.75"}, id="unused part of a reservation"),
        pytest.param(kind("EdpDiscount", "-0.1"), {"i-1": "-0.1"}, id="a discount on an instance"),
        pytest.param(kind("PrivateRateDiscount", "-0.1"), {"i-1": "-0.1"}, id="a private rate"),
        pytest.param(kind("Credit", "-0.1"), {"i-1": "-0.1"}, id="a credit"),
        pytest.param(kind("Refund", "-0.1"), {"i-1": "-0.1"}, id="a refund"),
        pytest.param(kind("Tax", "0.1", line_item_resource_id="", line_item_usage_type=""), {"": "0.1"}, id="a tax"),
        pytest.param(
            kind("Usage", "", split_line_item_parent_resource_id="i-1"), {}, id="a container's part of an instance"
        ),
    ],
)  # fmt: skip
def test_aws_bill_lines(tmp_path: Path, row: dict[str, str], expected: dict[str, str]) -> None:
    found = read_bill(as_csv(tmp_path / "bill.csv", [EXTRA | row]))
    assert of(found) == {name: Decimal(usd) for name, usd in expected.items()}
    assert all(line.hours is None for line in found.lines if line.usd < 0)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param(google("0.3"), {NAME: "0.3"}, id="an instance"),
        pytest.param(
            google("0.3", resource={"name": NAME, "global_name": f"{PLACE}/4567890123456789012"}), {NAME: "0.3"},
            id="a number in one of its names",
        ),
        pytest.param(
            google("0.3", resource={"name": "projects/1/instances/" + NAME, "global_name": ""}), {NAME: "0.3"},
            id="a long name",
        ),
        pytest.param(
            google("0.3", credits=[{"name": "c", "amount": -0.1}, {"name": "d", "amount": -0.05}]), {NAME: "0.15"},
            id="credits",
        ),
        pytest.param(google("-0.3", cost_type="adjustment"), {NAME: "-0.3"}, id="a correction"),
        pytest.param(google("0.01", cost_type="rounding_error", resource=None), {"": "0.01"}, id="a rounding error"),
        pytest.param(
            google("0.02", cost_type="tax", resource=None, service={"description": "Invoice"}), {"": "0.02"}, id="tax"
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_parquet", [False, True], ids=["JSON lines", "Parquet"])
def test_google_bill_rows(tmp_path: Path, row: dict[str, Any], expected: dict[str, str], as_parquet: bool) -> None:
    path = lines(tmp_path / "bill.jsonl", row)
    if as_parquet:
        path = tmp_path / "bill.parquet"
        parquet.write_table(pyarrow.Table.from_pylist([row]), path)  # pyright: ignore[reportUnknownMemberType]
    assert of(read_bill(path)) == {name: Decimal(usd) for name, usd in expected.items()}


def test_folder_holds_the_parts_of_one_bill(tmp_path: Path) -> None:
    parts = tmp_path / "data" / "BILLING_PERIOD=2026-11"
    parts.mkdir(parents=True)
    (tmp_path / "manifest.json.txt").write_text("{}")
    as_csv(parts / "part-1.csv", [cur_row("i-1", 0, "1")])
    body = b"\xef\xbb\xbf" + as_csv(tmp_path / "x.txt", [cur_row("i-1", 1, "2")]).read_bytes()
    (parts / "part-2.csv.gz").write_bytes(gzip.compress(body))
    found = read_bill(tmp_path)
    assert [(line.resource, line.usd) for line in found.lines] == [("i-1", Decimal(1)), ("i-1", Decimal(2))]
    assert found.lines[1].start - found.lines[0].start == timedelta(hours=1)
    as_csv(parts / "part-3.csv", [cur_row("i-1", 0, "1")])
    with pytest.raises(BillError, match="part-3.csv: row 1: occurs twice in the bill"):
        read_bill(tmp_path)


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        pytest.param("b.csv.gz", gzip.compress(b"a,b\n")[:-6], "cannot be read completely", id="truncated gzip"),
        pytest.param("b.csv.gz", b"\x1f\x8b\x08 and no more", "cannot be read completely", id="no gzip"),
        pytest.param(
            "b.csv", b'a,b\n"' + b"x" * 140_000 + b'",1\n', "is not a valid CSV table", id="an unclosed field"
        ),
        pytest.param("b.jsonl", b'{"cost": 1\n', "line 1: expected a JSON object", id="truncated JSON"),
        pytest.param("b.jsonl", b"[1]\n", "line 1: expected a JSON object", id="a list"),
        pytest.param("none/b.txt", b"x", "contains no bill", id="a folder without a bill"),
    ],
)
def test_unreadable_files_are_named_in_the_error(tmp_path: Path, name: str, body: bytes, message: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(body)
    with pytest.raises(BillError, match=message):
        read_bill(path if "/" not in name else path.parent)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        pytest.param(
            google("1", sku="none"),
            "row 1: a column contains a value of another type",
            id="text instead of an object",
        ),
        pytest.param(
            google("1", resource=[NAME]),
            "row 1: a column contains a value of another type",
            id="a list instead of an object",
        ),
        pytest.param(google("1", cost="NaN"), "row 1: expected an amount, got 'NaN'", id="no cost"),
        pytest.param(google("1", usage_start_time=5), "row 1: ", id="a number instead of a time"),
    ],
)
def test_rows_with_unexpected_columns_are_named_in_the_error(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(BillError, match=message):
        read_bill(lines(tmp_path / "b.jsonl", row))


def test_hours_that_are_not_a_number_are_named_in_the_error(tmp_path: Path) -> None:
    bill = as_csv(tmp_path / "b.csv", [kind("Usage", "1", line_item_usage_amount="NaN")])
    with pytest.raises(BillError, match="row 1: expected an amount, got 'NaN'"):
        read_bill(bill)


def test_credits_in_a_cell_are_read_exactly(tmp_path: Path) -> None:
    flat = {"service_description": "Compute Engine", "resource_name": NAME, "cost": "1", "currency": "USD",
            "usage_start_time": "2026-11-21 06:00:00 UTC", "usage_end_time": "2026-11-21 07:00:00 UTC",
            "credits": '[{"name": "c", "amount": -0.12345678901234567891}]'}  # fmt: skip
    assert of(read_bill(as_csv(tmp_path / "b.csv", [flat]))) == {NAME: Decimal("0.87654321098765432109")}


SAMPLE = ROOT / "tests" / "recorded" / "billing" / "focus_1_0_sample_gpu_rows.csv"


def test_real_focus_bill_of_gpu_instances_is_read() -> None:
    found = read_bill(SAMPLE)
    assert (found.form, len(found.lines), found.others) == (BillFormat.FOCUS, 8, 0)
    first = found.lines[0]
    assert (first.resource, first.hours) == ("i-006flle71l19b488a", 1)
    assert (first.start, first.end - first.start) == (datetime(2024, 9, 27, 15, tzinfo=UTC), timedelta(hours=1))
    assert sum(line.hours or 0 for line in found.lines) == Decimal("6.283056")


def varied(path: Path, change: Callable[[str], str]) -> Path:
    path.write_text(change(SAMPLE.read_text("utf-8")), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda text: text.replace('","', '";"'), "separated by commas, got ';'", id="semicolon"),
        pytest.param(lambda text: text.replace('","', '"\t"'), r"separated by commas, got '\\t'", id="tabs"),
        pytest.param(lambda text: text[:-300], "is not a valid CSV table: unexpected end of data",
                     id="truncated in a field"),
        pytest.param(lambda text: text[: text.rindex('"')], "is not a valid CSV table: unexpected",
                     id="truncated in the last field"),
        pytest.param(lambda text: text.replace('"SkuId"', '"EffectiveCost"'),
                     "the column 'EffectiveCost' occurs twice",
                     id="a column twice"),
        pytest.param(lambda text: text.replace('"2024-09-27 16:00:00"', '"2024-09-27 14:00:00"'),
                     r"row 1: ends \(2024-09-27T14:00Z\) before it starts", id="an end before its start"),
        pytest.param(lambda text: text.replace('"2024-09-27 16:00:00"', '"9999-12-31T23:59:59-10:00"'),
                     "row 1: an amount or a time is out of range", id="after the last possible time"),
        *(pytest.param(lambda text, usd=usd: text.replace('2.00000000000","Amazon', f'{usd}","Amazon'),
                       message, id=usd)
          for usd, message in (("1e400", "expected an amount below 10{15},"), ("1E+30",
                     "expected an amount below 10{15},"),
                            *((usd, "expected an amount, got")
                              for usd in ("1e999999999", "1_000", "1,5", "٣", "Infinity")))),
        pytest.param(lambda text: text.replace('"USD"', '"EUR"', 1), "row 1: expected the currency USD, got 'EUR'",
                     id="one row in euros"),
        pytest.param(lambda text: text + text[text.index("\n") + 1 :], "every row occurs twice in the bill",
                     id="rows twice"),
        pytest.param(lambda text: text[: text.index("\n") + 1], "has no rows", id="only the header"),
        pytest.param(lambda text: "", "has no rows", id="nothing"),
    ],
)  # fmt: skip
def test_corrupted_real_bill_is_refused_with_the_cause(
    tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    with pytest.raises(BillError, match=message):
        read_bill(varied(tmp_path / "bill.csv", change))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: "\ufeff" + text, id="a byte order mark"),
        pytest.param(lambda text: text.replace("\n", "\r\n"), id="Windows line endings"),
        pytest.param(lambda text: text.replace('"2024-09-27 15:00:00"', '"2024-09-27T17:00:00+02:00"'), id="a zone"),
        pytest.param(lambda text: text + "\n\n", id="empty lines"),
    ],
)  # fmt: skip
def test_real_bill_in_another_format_is_read_as_the_same_bill(tmp_path: Path, change: Callable[[str], str]) -> None:
    real, found = read_bill(SAMPLE), read_bill(varied(tmp_path / "bill.csv", change))
    assert (found.lines, found.others) == (real.lines, real.others)
    rows = list(csv.DictReader(SAMPLE.read_text("utf-8").splitlines()))
    turned = [dict(reversed(row.items())) for row in rows]
    assert read_bill(as_csv(tmp_path / "turned.csv", turned)).lines == real.lines
    packed = tmp_path / "bill.csv.gz"
    packed.write_bytes(gzip.compress((tmp_path / "bill.csv").read_bytes()))
    assert read_bill(packed).lines == real.lines


def test_corrections_and_credits_of_a_real_bill_reduce_it(tmp_path: Path) -> None:
    rows = list(csv.DictReader(SAMPLE.read_text("utf-8").splitlines()))
    more = [
        rows[0] | {"ChargeClass": "Correction", "EffectiveCost": "-0.5", "ConsumedQuantity": "-0.25"},
        rows[0] | {"ChargeCategory": "Credit", "EffectiveCost": "-1", "ConsumedQuantity": "NULL"},
        rows[0] | {"ChargeCategory": "Tax", "EffectiveCost": "3"},
    ]
    found, real = read_bill(as_csv(tmp_path / "bill.csv", [*rows, *more])), read_bill(SAMPLE)
    assert of(found)[rows[0]["ResourceId"]] == of(real)[rows[0]["ResourceId"]] - Decimal("1.5")
    assert found.others == 3
    hours, billed = (sum(line.hours or 0 for line in bill.lines) for bill in (real, found))
    assert hours - billed == Decimal("0.25")


def focus(**more: str) -> dict[str, str]:
    """A row for one hour of an instance, with the FOCUS 1.2 columns that the reader uses and some AWS columns."""
    return {
        "BilledCost": "1.006", "BillingAccountId": "1", "BillingCurrency": "USD", "CapacityReservationId": "",
        "CapacityReservationStatus": "", "ChargeCategory": "Usage", "ChargeDescription": "$1.006 per hour",
        "ChargePeriodEnd": "2026-11-21T07:00:00.000Z", "ChargePeriodStart": "2026-11-21T06:00:00.000Z",
        "CommitmentDiscountStatus": "", "ConsumedQuantity": "1", "ConsumedUnit": "Hrs", "EffectiveCost": "1.006",
        "ProviderName": "AWS", "ResourceId": "arn:aws:ec2:us-east-1:1:instance/i-1", "ResourceName": "",
        "ResourceType": "instance", "ServiceCategory": "Compute", "x_UsageType": "USE1-BoxUsage:g5.xlarge",
    } | more  # fmt: skip


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param(focus(), ("i-1", "aws:ec2:g5.xlarge:on-demand", 1, "1.006", False), id="on demand"),
        pytest.param(
            focus(EffectiveCost="0.7", BilledCost="0", CommitmentDiscountStatus="Used"),
            ("i-1", "aws:ec2:g5.xlarge:on-demand", 1, "0.7", False), id="covered: at its effective cost",
        ),
        pytest.param(
            focus(CommitmentDiscountStatus="Unused", ResourceId="arn:aws:savingsplans::1:savingsplan/7",
                  x_UsageType="ComputeSP:1yrNoUpfront", ConsumedQuantity="", ConsumedUnit=""),
            ("", "", None, "1.006", True), id="unused part of a plan",
        ),
        pytest.param(
            focus(CapacityReservationId="arn:aws:ec2:us-east-1:1:capacity-reservation/cr-1",
                  CapacityReservationStatus="Unused", x_UsageType="USE1-UnusedBox:g5.xlarge"),
            ("cr-1", "", 1, "1.006", False), id="an unused reservation",
        ),
        pytest.param(
            focus(ResourceId="nat-1", ServiceCategory="Networking", x_UsageType="USE1-NatGateway-Hours"),
            ("", "aws:vpc:nat-gateway", 1, "1.006", False), id="a gateway",
        ),
        pytest.param(
            focus(ProviderName="Google Cloud", ResourceId="//compute/projects/1/zones/z/instances/456",
                  ResourceName="projects/1/instances/gpu-chat-1", ConsumedUnit="seconds", ConsumedQuantity="3600",
                  x_UsageType="NULL", ChargeDescription="Nvidia L4 GPU running in Iowa"),
            ("gpu-chat-1", "", None, "1.006", False), id="Google: by its name, in seconds of GPUs",
        ),
        pytest.param(
            focus(ProviderName="Google Cloud", ChargeDescription="Balanced PD Capacity in Iowa", x_UsageType="",
                  ResourceId="//compute/projects/1/zones/z/disks/d", ConsumedUnit="gibibyte month"),
            ("", "gcp:disk:pd-balanced:gib", None, "1.006", False), id="a disk of Google",
        ),
    ],
)  # fmt: skip
def test_rows_of_focus_1_2(tmp_path: Path, row: dict[str, str], expected: tuple[Any, ...]) -> None:
    (line,) = read_bill(as_csv(tmp_path / "bill.csv", [row])).lines
    assert (line.resource, line.sku, line.hours, str(line.usd), line.unused) == expected


@pytest.mark.parametrize(
    ("usage", "kind_of_line", "sku"),
    [
        ("USE1-BoxUsage:p5.48xlarge", "Usage", "aws:ec2:p5.48xlarge:on-demand"),
        ("BoxUsage:g5.xlarge", "Usage", "aws:ec2:g5.xlarge:on-demand"),
        ("EUC1-SpotUsage:g6e.12xlarge", "Usage", "aws:ec2:g6e.12xlarge:spot"),
        ("USE2-BoxUsage:p4d.24xlarge", "SavingsPlanCoveredUsage", "aws:ec2:p4d.24xlarge:on-demand"),
        ("UnusedBox:p5.48xlarge", "Usage", ""),
    ],
)
def test_gpu_instances_of_cur_2_0_with_nested_columns(
    tmp_path: Path, usage: str, kind_of_line: str, sku: str
) -> None:
    row = cur_row(
        "arn:aws:ec2:us-east-1:1:instance/i-7", 3, "98.32", line_item_usage_type=usage,
        line_item_line_item_type=kind_of_line, savings_plan_savings_plan_effective_cost="98.32",
    )  # fmt: skip
    nested: dict[str, Any] = row | {
        "product": [("instance_type", "p5.48xlarge"), ("gpu", "8")],
        "resource_tags": [("user_name", "chat")],
        "discount": [],
        "line_item_usage_start_date": datetime(2026, 11, 20, 9, tzinfo=UTC).replace(tzinfo=None),
        "line_item_usage_end_date": datetime(2026, 11, 20, 10, tzinfo=UTC).replace(tzinfo=None),
        "line_item_unblended_cost": 98.32,
        "line_item_usage_amount": 1.0,
    }
    pairs = pyarrow.map_(pyarrow.string(), pyarrow.string())
    table: Any = pyarrow.Table.from_pylist([nested])  # pyright: ignore[reportUnknownMemberType]
    for name in ("product", "resource_tags", "discount"):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pyarrow.array([nested[name]], pairs))
    parquet.write_table(table, tmp_path / "cur.snappy.parquet")  # pyright: ignore[reportUnknownMemberType]
    (line,) = read_bill(tmp_path / "cur.snappy.parquet").lines
    assert (line.resource, line.usd, line.hours, line.sku) == ("i-7", Decimal("98.32"), 1, sku)


def test_cost_of_a_google_gpu_instance_is_the_sum_of_its_rows(tmp_path: Path) -> None:
    labels = [{"key": "compute.googleapis.com/machine_spec", "value": "g2-standard-4"}]
    skus = ("G2 Instance Core running in Iowa", "G2 Instance Ram running in Iowa", "Nvidia L4 GPU running in Iowa")
    rows = [
        google(usd, sku={"id": str(n), "description": sku}, system_labels=labels, project={"id": "p", "number": "1"},
               labels=[], location={"location": "us-central1-a", "zone": "us-central1-a"}, cost_type="regular",
               price={"effective_price": 0.1, "unit": "hour"}, transaction_type="GOOGLE", cost_at_list=float(usd))
        for n, (sku, usd) in enumerate(zip(skus, ("0.1", "0.05", "0.56"), strict=True))
    ]  # fmt: skip
    found = read_bill(lines(tmp_path / "bill.jsonl", *rows))
    assert of(found) == {NAME: Decimal("0.71")}
    assert {line.sku for line in found.lines} == {"gcp:compute:g2-standard-4:on-demand"}


def test_equal_rows_without_an_id_count_as_separate_charges(tmp_path: Path) -> None:
    assert of(read_bill(lines(tmp_path / "g.jsonl", google("0.3"), google("0.3")))) == {NAME: Decimal("0.6")}
    rows = [focus(), focus(), focus(ResourceId="i-2"), focus(ResourceId="i-3")]
    assert of(read_bill(as_csv(tmp_path / "f.csv", rows))) == {
        "i-1": Decimal("2.012"), "i-2": Decimal("1.006"), "i-3": Decimal("1.006"),
    }  # fmt: skip


def test_bill_with_every_row_twice_is_refused(tmp_path: Path) -> None:
    rows = [google("0.3"), google("0.4"), google("0.5")]
    with pytest.raises(BillError, match="every row occurs twice in the bill"):
        read_bill(lines(tmp_path / "g.jsonl", *rows, *rows))
    (tmp_path / "parts").mkdir()
    for name in ("a", "b"):
        lines(tmp_path / "parts" / f"{name}.jsonl", google("0.3"))
    with pytest.raises(BillError, match=r"b\.jsonl: is equal to .*a\.jsonl; remove one"):
        read_bill(tmp_path / "parts")
