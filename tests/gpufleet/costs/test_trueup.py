"""Reconciliation of bills with the ledger: CUR 2.0, FOCUS and Google rows, in CSV and Parquet. Incomplete bills
are refused."""

import gzip
import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from app.errors import AppError
from gpufleet.costs.bills import BillError, BillFormat, read_bill
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.costs.bill_rows import WINDOW, as_csv, complete_bill, cur_row, google_row, run_report, trueup
from tests.fixtures.small_fleet import document, fill


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    engine.dispose()
    return document(tmp_path)


def as_gzip(path: Path, rows: list[dict[str, str]]) -> Path:
    plain = as_csv(path, rows)
    plain.write_bytes(gzip.compress(plain.read_bytes()))
    return plain


def as_parquet(path: Path, rows: list[dict[str, str]]) -> Path:
    typed = [
        row
        | {
            name: datetime.fromisoformat(row[name]).replace(tzinfo=None)
            for name in ("line_item_usage_start_date", "line_item_usage_end_date")
        }
        | {"line_item_unblended_cost": float(row["line_item_unblended_cost"])}
        for row in rows
    ]
    parquet.write_table(pyarrow.Table.from_pylist(typed), path)  # pyright: ignore[reportUnknownMemberType]
    return path


def as_old_cur(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write the rows with the column names of the CUR before 2.0."""

    def old(name: str) -> str:
        for group in ("identity", "line_item", "reservation", "savings_plan"):
            if name.startswith(group):
                arguments = group.split("_")
                rest = name.removeprefix(group + "_").split("_")
                first = arguments[0] + "".join(word.title() for word in arguments[1:])
                return f"{first}/{''.join(word.title() for word in rest)}"
        return name

    return as_csv(path, [{old(name): value for name, value in row.items()} for row in rows])


@pytest.mark.parametrize("write", [as_csv, as_gzip, as_parquet, as_old_cur])
def test_bill_that_agrees_closes_the_period(
    fleet: Path, tmp_path: Path, write: Callable[[Path, list[dict[str, str]]], Path]
) -> None:
    assert json.loads(run_report("cost", "--fleet", fleet, *WINDOW, "--json").stdout)["state"] == "estimated"
    found = trueup(fleet, write(tmp_path / "bill", complete_bill()), *WINDOW)
    assert (found["differences"], found["resources_that_agree"]) == ([], 4)
    assert Decimal(found["bill"]["not_compared_usd"]) == Decimal("0.02")
    report = json.loads(run_report("cost", "--fleet", fleet, *WINDOW, "--json").stdout)
    assert report["state"] == "final"
    assert any("billed 10.80 USD, computed 10.80 USD" in note for note in report["notes"])
    longer = run_report(
        "cost", "--fleet", fleet, "--since", "2026-11-20T05:00", "--until", "2026-11-20T12:00", "--json"
    )
    assert json.loads(longer.stdout)["state"] == "estimated"


def changed(resource: str, hour: int, **fields: str) -> list[dict[str, str]]:
    name = f"{resource}-{hour}"
    return [row | (fields if row["identity_line_item_id"] == name else {}) for row in complete_bill()]


@pytest.mark.parametrize(
    ("rows", "resource", "parts"),
    [
        pytest.param(
            changed("i-idle", 1, line_item_unblended_cost="0.80"), "i-idle", {"price": "0.08"}, id="another price"
        ),
        pytest.param(
            changed("i-idle", 1, line_item_unblended_cost="0.36", line_item_usage_amount="0.5"),
            "i-idle",
            {"hours": "-0.36"},
            id="fewer hours",
        ),
        pytest.param(
            changed("i-idle", 1, line_item_unblended_cost="0.40", line_item_usage_amount="0.5"),
            "i-idle",
            {"hours": "-0.36", "price": "0.04"},
            id="both",
        ),
        pytest.param(
            [*complete_bill(), cur_row("i-unknown", 3, "5")], "i-unknown", {"unknown resource": "5"}, id="unknown"
        ),
        pytest.param(
            [row for row in complete_bill() if row["line_item_resource_id"] != "i-idle"],
            "i-idle",
            {"not in the bill": "-1.44"},
            id="not billed",
        ),
        pytest.param(
            [row for row in complete_bill() if row["identity_line_item_id"] != "i-idle-1"],
            "i-idle",
            {"hours": "-0.72"},
            id="an hour without a line",
        ),
        pytest.param(
            changed("i-idle", 1, line_item_line_item_type="SavingsPlanCoveredUsage",
                    savings_plan_savings_plan_effective_cost="0.50"),
            "i-idle",
            {"price": "-0.22"},
            id="savings plan",
        ),
    ],
)  # fmt: skip
def test_each_difference_has_a_resource_and_causes_that_add_up(
    fleet: Path, tmp_path: Path, rows: list[dict[str, str]], resource: str, parts: dict[str, str]
) -> None:
    found = trueup(fleet, as_csv(tmp_path / "bill.csv", rows), *WINDOW)
    (one,) = found["differences"]
    assert one["resource"] == resource
    assert {cause: Decimal(usd) for cause, usd in one["parts"].items() if Decimal(usd)} == {
        cause: Decimal(usd) for cause, usd in parts.items()
    }
    gap = Decimal(one["billed_usd"]) - Decimal(one["computed_usd"])
    assert sum(Decimal(usd) for usd in one["parts"].values()) == gap
    # The price of this fleet changes a fraction of a second next to the full hour, so it agrees only to half a
    # cent.
    assert abs(gap - Decimal(found["billed_usd"]) + Decimal(found["computed_usd"])) < Decimal("0.0001")


def test_own_focus_export_agrees_with_the_ledger(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "focus.csv"
    assert run_report("cost", "--fleet", fleet, *WINDOW, "--format", "focus", "--out", out).exit_code == 0
    found = trueup(fleet, out, *WINDOW)
    assert found["bill"]["form"] == BillFormat.FOCUS
    assert found["differences"] == []


def test_credits_of_google_rows_are_subtracted(tmp_path: Path) -> None:
    rows = [google_row("a", "1.5", credits='[{"name": "x", "amount": -0.25}]'), google_row("a", "0.5")]
    bill = read_bill(as_csv(tmp_path / "bill.csv", rows))
    assert [(line.resource, line.usd, line.hours) for line in bill.lines] == [
        ("a", Decimal("1.25"), None), ("a", Decimal("0.5"), None),
    ]  # fmt: skip
    assert bill.lines[0].end - bill.lines[0].start == timedelta(hours=1)
    assert bill.lines[0].start == datetime(2026, 11, 20, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param([*complete_bill(), *complete_bill()], "occurs twice", id="occurs twice"),
        pytest.param([cur_row("i-1", 0, "1", line_item_currency_code="EUR")], "'EUR'", id="another currency"),
        pytest.param([cur_row("i-1", 0, "NaN")], "expected an amount, got 'NaN'", id="expected an amount"),
        pytest.param([cur_row("i-1", 0, "much")], "expected an amount", id="text instead of an amount"),
        pytest.param([cur_row("i-1", 0, "")], "empty", id="no amount"),
        pytest.param([cur_row("i-1", 0, "1", line_item_usage_start_date="soon")], "row 1", id="no time"),
        pytest.param([{"a": "b"}], "is not a supported bill", id="no bill"),
    ],
)
def test_invalid_bill_is_refused_and_names_the_row(tmp_path: Path, rows: list[dict[str, str]], message: str) -> None:
    with pytest.raises(BillError, match=message):
        read_bill(as_csv(tmp_path / "bill.csv", rows))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"", "has no rows", id="empty"),
        pytest.param(b"PAR1 and nothing more", "not a complete Parquet", id="truncated Parquet"),
        pytest.param(b"\xff\xfe\x00a,b\n", "UTF-8", id="binary"),
        pytest.param(b"line_item_usage_start_date,cost\n2026\n", "incomplete", id="truncated line"),
    ],
)
def test_broken_file_is_named_in_the_error(tmp_path: Path, body: bytes, message: str) -> None:
    path = tmp_path / "bill"
    path.write_bytes(body)
    with pytest.raises(BillError, match=message):
        read_bill(path)


def test_incomplete_bill_is_refused_and_closes_nothing(fleet: Path, tmp_path: Path) -> None:
    short = as_csv(tmp_path / "bill.csv", [cur_row("i-idle", 7 * 24, "1")])
    days = ("--since", "2026-11-20", "--until", "2026-11-30")
    refused = run_report("trueup", "--fleet", fleet, "--bill", short, *days)
    assert isinstance(refused.exception, AppError) and "it is incomplete" in str(refused.exception)
    assert json.loads(run_report("cost", "--fleet", fleet, *days, "--json").stdout)["state"] == "estimated"


def test_cost_without_a_price_is_named_and_makes_the_computed_sum_a_lower_bound(tmp_path: Path, fleet: Path) -> None:
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("update runs set machine_type = 'x9.large' where instance_id = 'i-idle'")
    connection.close()
    bill = as_csv(tmp_path / "cur.csv", complete_bill())
    found = trueup(fleet, bill, *WINDOW)
    assert (found["computed_at_least"], found["unpriced"]) == (True, ["x9.large on-demand in us-east-1a"])
    (one,) = [one for one in found["differences"] if one["resource"] == "i-idle"]
    assert one["parts"] == {"price": "1.440000000", "hours": "0.000000000"}
    shown = run_report("trueup", "--fleet", fleet, "--bill", bill, *WINDOW).stdout
    assert "computed at least 9.36 USD" in shown and "no price for x9.large on-demand in us-east-1a" in shown
