"""`gpufleet report cost` shows energy and CO2e in every format, and unknown values as unknown."""

import csv
import json
from datetime import timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path

import pytest

from gpufleet.ledger.database import writing
from gpufleet.ledger.energy import EnergyReading, add_energy_readings, roll_up_energy
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.small_fleet import FLEET, HOUR, T0, WINDOW, document, fill, read_json, stdout_of

CARBON = {"grams_per_kwh": "379", "source": "<a list>, 2025"}


def fleet_of(folder: Path, **more: object) -> Path:
    """The small fleet, in which one of four instances has an energy counter."""
    path = document(folder, **more)
    engine = open_ledger(f"sqlite:///{folder}/ledger.db")
    fill(engine)
    readings = [
        EnergyReading(
            environment=FLEET,
            instance_id="i-fallback",
            device="GPU-a",
            at=T0 + HOUR + timedelta(minutes=minute),
            millijoules=300_000 * 60 * minute,
        )
        for minute in (*range(0, 300, 5), 299)
    ]
    with writing(engine) as connection:
        add_energy_readings(connection, readings)
        roll_up_energy(connection, readings)
    engine.dispose()
    return path


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return fleet_of(tmp_path, carbon=CARBON)


def test_json_holds_energy_co2e_and_their_inputs(fleet: Path) -> None:
    found = read_json("cost", "--fleet", fleet, *WINDOW)
    (row,) = found["energy"]
    assert (row["instance"], row["pool"], row["grid_factor"]) == ("i-fallback", "chat", {**CARBON, "pue": None})
    energy = found["total"]["energy"]
    # 300 W from 07:00 to 11:59
    assert Decimal(energy["joules"]) == Decimal(row["joules_unknown_state"]) == Decimal("5382000")
    assert Decimal(energy["co2e_grams"]) == Decimal("566.605")  # 1.495 kWh
    # i-fallback ran for 5.5 hours, of which almost 5 were measured: enough to be compared with its tokens
    assert energy["compared_tokens"] == 315_000 + 78_750
    assert Decimal(energy["joules_per_million_tokens"]) == pytest.approx(Decimal("13668571.429"))
    assert found["by"]["pool"]["batch"]["energy"]["joules"] is None


def test_terminal_shows_joules_next_to_usd(fleet: Path) -> None:
    shown = stdout_of("cost", "--fleet", fleet, *WINDOW)
    assert "J/M" in shown and "13,668,571" in shown
    assert "accelerators only: without hosts, network and cooling" in " ".join(shown.split())
    assert "379 g/kWh" in shown


def test_page_escapes_the_source_and_shows_both_tables(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "cost.html"
    stdout_of("cost", "--fleet", fleet, *WINDOW, "--format", "html", "--out", out)
    page = out.read_text("utf-8")
    assert "<h2>Energy and CO2e</h2>" in page and "13,668,571" in page
    assert "&lt;a list&gt;, 2025" in page and "<a list>" not in page


def test_focus_rows_add_up_to_the_energy(fleet: Path) -> None:
    rows = list(csv.DictReader(StringIO(stdout_of("cost", "--fleet", fleet, *WINDOW, "--format", "focus"))))
    assert sum(Decimal(row["x_EnergyJoules"] or 0) for row in rows) == Decimal("5382000")
    assert {row["ResourceId"] for row in rows if row["x_CarbonGrams"]} == {"i-fallback"}


def test_csv_has_a_row_for_each_instance_with_energy(fleet: Path) -> None:
    rows = csv.DictReader(StringIO(stdout_of("cost", "--fleet", fleet, *WINDOW, "--format", "csv")))
    (row,) = [row for row in rows if row["kind"] == "energy"]
    assert (row["resource"], row["pool"], row["usd"]) == ("i-fallback", "chat", "")
    assert (row["joules"], row["joules_idle"], row["co2e_grams"]) == ("5382000.000", "0.000", "566.605000")
    assert row["measured_device_seconds"] == "17940.000000"


def test_fleet_without_a_grid_factor_has_no_co2e(tmp_path: Path) -> None:
    path = fleet_of(tmp_path)
    assert "carbon" not in json.loads(path.read_text())
    found = read_json("cost", "--fleet", path, *WINDOW)["total"]["energy"]
    assert (found["joules"], found["co2e_grams"]) == ("5382000.000", None)
    assert "the settings state no grid factor" in " ".join(stdout_of("cost", "--fleet", path, *WINDOW).split())
