"""The validator of the FinOps Foundation reports no errors for the FOCUS 1.2 export."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow
import pytest
from pyarrow import parquet

from gpufleet.domain.model import Cloud
from gpufleet.toolchain.folders import find_folders
from scripts.setup import focus_validator
from tests.fixtures.costs.focus_rows import ROWS, Row

FOLDERS = find_folders(os.environ)
PACKAGE = next((focus_validator.environment_of(FOLDERS) / "lib").glob("python*/site-packages"), None)
MODEL = "model-1.2.0.1.json"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PACKAGE is None, reason=f"focus-validator {focus_validator.VERSION} is not installed: make setup-tests"
    ),
]


def _value(column: str, value: str | None, check: str = "CheckValue") -> dict[str, Any]:
    return {"CheckFunction": check, "ColumnName": column, "Value": value}


def _not_null(column: str) -> dict[str, Any]:
    return _value(column, None, "CheckNotValue")


def _usage(column: str) -> dict[str, Any]:
    return {"CheckFunction": "AND", "Items": [_not_null(column), _value("ChargeCategory", "Usage")]}


CONDITIONS: Final = {
    # the condition in the table has no check function, so it always applies
    "CapacityReservationStatus-C-003-C": _value("CapacityReservationId", None),
    "CapacityReservationStatus-C-004-C": _usage("CapacityReservationId"),
    # the table has the condition of the previous rule
    "CommitmentDiscountStatus-C-004-C": _usage("CommitmentDiscountId"),
    # the table has no condition; no column shows whether an invoice exists, and this export never has one
    "InvoiceId-C-005-C": _not_null("InvoiceId"),
}
"""Rules whose condition in the validator's table contradicts their text, with the condition that the text states.
An export with commitments, reservations and other charges cannot satisfy the rules as the table has them."""


def _rules(folder: Path) -> Path:
    """The validator's table with these conditions."""
    assert PACKAGE is not None
    model = json.loads((PACKAGE / "focus_validator" / "rules" / MODEL).read_text("utf-8"))
    rules = model["ModelRules"]
    for name, condition in CONDITIONS.items():
        criteria = rules[name]["ValidationCriteria"]
        assert criteria["Condition"] != condition, f"{name} is right in the table by now: drop it here"
        criteria["Condition"] = condition
    folder.mkdir()
    (folder / MODEL).write_text(json.dumps(model), "utf-8")
    return folder


def _write(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows as Parquet. In a CSV file the validator reads AWS account ids as numbers."""

    def column(name: str) -> Any:
        values = [row[name] or None for row in rows]
        if name.endswith(("Cost", "UnitPrice", "Quantity")):
            return pyarrow.array([None if value is None else float(value) for value in values], pyarrow.float64())
        return pyarrow.array(values, pyarrow.string())

    parquet.write_table(pyarrow.table({name: column(name) for name in rows[0]}), path)


def _broken(folder: Path, rows: Sequence[Row]) -> set[str]:
    """The rules that the validator reports as violated."""
    _write(folder / "export.parquet", rows)
    python = focus_validator.environment_of(FOLDERS) / "bin" / "python"
    found = folder / "found.xml"
    options = {
        "--data-file": folder / "export.parquet",
        "--validate-version": "1.2",
        "--rule-set-path": _rules(folder / "rules"),
        "--applicability-criteria": "ALL",
        "--output-type": "unittest",
        "--output-destination": found,
    }
    done = subprocess.run(
        [python, "-c", "from focus_validator.main import main; main()", "--block-download",
         *(str(word) for pair in options.items() for word in pair)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(PACKAGE)}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert found.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    text = found.read_text("utf-8")
    counts = re.search(r'tests="(\d+)" failures="\d+" errors="0"', text)
    assert counts is not None and int(counts[1]) > 500
    return set(re.findall(r'<failure name="([^"]+)"', text))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working directory of the validator. It searches for one of its own files below this folder."""
    assert PACKAGE is not None
    (tmp_path / "focus_validator").symlink_to(PACKAGE / "focus_validator")
    return tmp_path


@pytest.mark.parametrize("cloud", Cloud)
def test_validator_reports_no_violation(folder: Path, cloud: Cloud) -> None:
    assert _broken(folder, ROWS[cloud]) == set()


def test_validator_reports_violations_of_wrong_rows(folder: Path) -> None:
    bad = [row | {"EffectiveCost": ""} if number == 0 else row for number, row in enumerate(ROWS[Cloud.AWS])]
    assert "EffectiveCost-C-003-M" in _broken(folder, bad)
