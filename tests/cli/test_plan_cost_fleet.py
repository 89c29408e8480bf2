"""`gpufleet plan-cost --fleet`: prices that the environment's ledger observed apply to its plan."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.errors import AppError
from cli.commands import build
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.schema import open_ledger
from tests.fixtures.prices.previews import G6, group, preview
from tests.fixtures.small_fleet import document


def plan(folder: Path, environment: str = "dev") -> str:
    """A plan of two spot instances in one zone, whose settings state no spot price."""
    spot = group("a", "spot", G6, 2)
    spot["newState"]["inputs"]["availabilityZones"] = ["us-east-1a"]
    text = json.loads(preview(spot, pools={"chat": {"target": 2, "min": 0, "max": 3}}))
    fleet = json.loads(text["config"]["gpu-fleet:fleet"]) | {"environment": environment, "prices": []}
    text["config"]["gpu-fleet:fleet"] = json.dumps(fleet)
    path = folder / f"{environment}.json"
    path.write_text(json.dumps(text))
    return str(path)


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    path = document(tmp_path)
    now = datetime.now(UTC)
    seen = [
        Price(
            sku="aws:ec2:g6.xlarge:spot",
            region="us-east-1",
            zone=None,
            valid_from=now - timedelta(days=days),
            source="DescribeSpotPriceHistory",
            usd_per_hour=Decimal(usd),
            as_of=now - timedelta(days=days),
        )
        for days, usd in ((40, "0.30"), (10, "0.40"))
    ]
    with writing(open_ledger(f"sqlite:///{tmp_path}/ledger.db")) as connection:
        facts.add_prices(connection, seen)
    return str(path)


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    done = CliRunner().invoke(
        build("plan_cost"), ["plan-cost", *arguments], env={"GPUFLEET_FLEET": "", **environment}
    )
    output = str(done.exception) if isinstance(done.exception, AppError) else done.stdout
    return done.exit_code, f"{done.stderr}{output}" if done.exit_code else done.stdout


def test_spot_is_priced_by_what_was_observed(tmp_path: Path, fleet: str) -> None:
    code, output = run(plan(tmp_path), "--json", "--fleet", fleet)
    assert code == 0, output
    (line,) = json.loads(output)["lines"]
    # two thirds of thirty days at 0.30, the last ten days at 0.40
    assert [Decimal(line["usd_per_hour_each"][key]) for key in ("low", "now", "high")] == [
        Decimal("0.30"), Decimal("0.40"), Decimal("0.40"),
    ]  # fmt: skip
    assert Decimal(line["usd_per_hour"]) == Decimal("0.80")


@pytest.mark.parametrize(
    ("environment", "named"),
    [pytest.param("dev", False, id="no fleet named"), pytest.param("staging", True, id="the fleet of another one")],
)
def test_prices_of_other_environments_are_ignored(tmp_path: Path, fleet: str, environment: str, named: bool) -> None:
    more: tuple[Any, ...] = ("--fleet", fleet) if named else ()
    code, output = run(plan(tmp_path, environment), *more)
    assert code == 1
    assert "no price for aws:ec2:g6.xlarge:spot" in " ".join(output.split())


def test_missing_fleet_of_the_shell_is_reported_and_ignored(tmp_path: Path, fleet: str) -> None:
    missing = str(tmp_path / "gone.json")
    code, output = run(plan(tmp_path), GPUFLEET_FLEET=missing)
    assert code == 1
    assert "without observed prices" in output and "no price for" in output
    code, output = run(plan(tmp_path), "--fleet", missing)
    assert code == 1
    assert "without observed prices" not in output and "No such file" in output
