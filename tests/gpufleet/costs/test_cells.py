"""CSV cells of owner-supplied text never become formulas in a spreadsheet."""

import csv
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest

from gpufleet.costs import focus
from gpufleet.costs.csv_cells import cell


@pytest.mark.parametrize(
    "text", ['=HYPERLINK("https://evil")', "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "-", "-1_0"]
)
def test_formula_is_escaped_as_text(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["team-a", "-1.50", "+3", "-1e-7", "1=1", "", -1.5, Decimal("-2.1"), 7, True])
def test_other_values_stay_unchanged(value: Any) -> None:
    assert cell(value) == value


def test_unknown_value_is_an_empty_cell() -> None:
    assert cell(None) == ""


def test_focus_export_escapes_formulas_in_owner_names() -> None:
    row = dict.fromkeys(focus.COLUMNS) | {"SubAccountName": "=1+1", "BilledCost": Decimal("-0.5")}
    (read,) = csv.DictReader(StringIO(focus.write_csv([row])))
    assert read["BilledCost"] == "-0.5"
    assert read["SubAccountName"] == "'=1+1"
