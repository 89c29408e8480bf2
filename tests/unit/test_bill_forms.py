"""What clouds write into their bills beside plain usage: read right or refused, never silently wrong."""

import gzip
import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from costs.bills import Bill, BillError, read_bill
from tests.unit.test_trueup import as_csv, cur

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
    """USD by resource, and of what nothing is compared with."""
    found: dict[str, Decimal] = {"": bill.others}
    for line in bill.lines:
        found[line.resource or line.sku or "unused"] = found.get(line.resource or line.sku or "unused", 0) + line.usd
    return {name: usd for name, usd in found.items() if usd or name}


def kind(name: str, usd: str, **more: str) -> dict[str, str]:
    return cur("i-1", 1, usd, line_item_line_item_type=name, identity_line_item_id=name) | more


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
        pytest.param(kind("SavingsPlanNegation", "-9"), {}, id="what the plan takes off the list price"),
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
def test_lines_of_aws(tmp_path: Path, row: dict[str, str], expected: dict[str, str]) -> None:
    found = read_bill(as_csv(tmp_path / "bill.csv", [EXTRA | row]))
    assert of(found) == {name: Decimal(usd) for name, usd in expected.items()}
    assert all(line.hours is None for line in found.lines if line.usd < 0)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param(google("0.3"), {NAME: "0.3"}, id="an instance"),
        pytest.param(
            google("0.3", resource={"name": NAME, "global_name": f"{PLACE}/4567890123456789012"}), {NAME: "0.3"},
            id="numbered in one of its names",
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
def test_rows_of_google(tmp_path: Path, row: dict[str, Any], expected: dict[str, str], as_parquet: bool) -> None:
    path = lines(tmp_path / "bill.jsonl", row)
    if as_parquet:
        path = tmp_path / "bill.parquet"
        parquet.write_table(pyarrow.Table.from_pylist([row]), path)  # pyright: ignore[reportUnknownMemberType]
    assert of(read_bill(path)) == {name: Decimal(usd) for name, usd in expected.items()}


def test_a_folder_holds_the_parts_of_one_bill(tmp_path: Path) -> None:
    parts = tmp_path / "data" / "BILLING_PERIOD=2026-11"
    parts.mkdir(parents=True)
    (tmp_path / "manifest.json.txt").write_text("{}")
    as_csv(parts / "part-1.csv", [cur("i-1", 0, "1")])
    body = b"\xef\xbb\xbf" + as_csv(tmp_path / "x.txt", [cur("i-1", 1, "2")]).read_bytes()
    (parts / "part-2.csv.gz").write_bytes(gzip.compress(body))
    found = read_bill(tmp_path)
    assert [(line.resource, line.usd) for line in found.lines] == [("i-1", Decimal(1)), ("i-1", Decimal(2))]
    assert found.lines[1].start - found.lines[0].start == timedelta(hours=1)
    as_csv(parts / "part-3.csv", [cur("i-1", 0, "1")])
    with pytest.raises(BillError, match="part-3.csv: row 1: stands in the bill twice"):
        read_bill(tmp_path)


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        pytest.param("b.csv.gz", gzip.compress(b"a,b\n")[:-6], "cannot be read whole", id="cut gzip"),
        pytest.param("b.csv.gz", b"\x1f\x8b\x08 and no more", "cannot be read whole", id="no gzip"),
        pytest.param("b.csv", b'a,b\n"' + b"x" * 140_000 + b'",1\n', "no table", id="an endless field"),
        pytest.param("b.jsonl", b'{"cost": 1\n', "line 1 is no JSON object", id="cut JSON"),
        pytest.param("b.jsonl", b"[1]\n", "line 1 is no JSON object", id="a list"),
        pytest.param("none/b.txt", b"x", "holds no bill", id="a folder without one"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, body: bytes, said: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(body)
    with pytest.raises(BillError, match=said):
        read_bill(path if "/" not in name else path.parent)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        pytest.param(google("1", sku="none"), "row 1: a column holds something else", id="a word for a map"),
        pytest.param(google("1", resource=[NAME]), "row 1: a column holds something else", id="a list for a map"),
        pytest.param(google("1", cost="NaN"), "row 1: a cost of NaN is none", id="no cost"),
        pytest.param(google("1", usage_start_time=5), "row 1: ", id="a number for a time"),
    ],
)
def test_rows_of_another_shape_are_named(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(BillError, match=said):
        read_bill(lines(tmp_path / "b.jsonl", row))


def test_hours_that_are_no_number_are_named(tmp_path: Path) -> None:
    bill = as_csv(tmp_path / "b.csv", [kind("Usage", "1", line_item_usage_amount="NaN")])
    with pytest.raises(BillError, match="row 1: NaN hours are none"):
        read_bill(bill)


def test_credits_in_a_cell_are_exact(tmp_path: Path) -> None:
    flat = {"service_description": "Compute Engine", "resource_name": NAME, "cost": "1", "currency": "USD",
            "usage_start_time": "2026-11-21 06:00:00 UTC", "usage_end_time": "2026-11-21 07:00:00 UTC",
            "credits": '[{"name": "c", "amount": -0.12345678901234567891}]'}  # fmt: skip
    assert of(read_bill(as_csv(tmp_path / "b.csv", [flat]))) == {NAME: Decimal("0.87654321098765432109")}
