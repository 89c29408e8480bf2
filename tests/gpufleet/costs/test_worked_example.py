"""The figures of docs/money.md equal those of the report."""

import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.domain.model import CapacityType
from gpufleet.domain.prices import Price
from gpufleet.ledger import facts, rollups
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import ActivityHour, CostPass, EndCause, Reservation, RunEnd, TokenReading
from gpufleet.ledger.schema import open_ledger
from gpufleet.toolchain.folders import ROOT
from tests.fixtures.small_fleet import FLEET, HOUR, T0, WINDOW, document, read_json, run

PAGE = (ROOT / "docs" / "money.md").read_text()
STATES = {"unmeasured": "used"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("money")
    engine = open_ledger(f"sqlite:///{folder}/ledger.db")
    runs = [
        run("i-spot", 0, CapacityType.SPOT),
        run("i-fallback", 0.5, CapacityType.ON_DEMAND),
        run("i-idle", 0, CapacityType.ON_DEMAND, "batch", model="models/batch", owner="research"),
        run("i-paid", 1, CapacityType.RESERVED, reservation="cr-1"),
    ]
    ends = [
        RunEnd(
            cloud=runs[0].cloud, instance_id=name, started_at=T0, ended_at=T0 + hours * HOUR, cause=cause, exact=True
        )
        for name, hours, cause in (("i-spot", 0.5, EndCause.PREEMPTED), ("i-idle", 2.0, EndCause.ENDED))
    ]
    readings = [
        TokenReading(
            environment=FLEET, instance_id="i-fallback", engine="0", model="chat", at=T0 + timedelta(minutes=minute),
            prompt=1_000 * (minute - 40), cached=100 * (minute - 40), generation=250 * (minute - 40),
            created_at=T0 + timedelta(minutes=40),
        )
        for minute in range(40, 360, 5)
    ]  # fmt: skip
    with writing(engine) as connection:
        facts.add_runs(connection, runs)
        facts.add_ends(connection, ends)
        facts.add_readings(connection, readings)
        rollups.roll_up(connection, readings)
        idle = [(T0 + n * HOUR, (1 << 360) - 1) for n in range(2)]
        facts.add_activity(
            connection,
            [ActivityHour(environment=FLEET, instance_id="i-idle", hour=at, busy=0, idle=bits) for at, bits in idle],
        )
        facts.add_prices(
            connection,
            [
                Price(
                    sku=f"aws:ec2:g6.xlarge:{kind}", region="us-east-1", zone=None, source="test",
                    valid_from=T0 + hours * HOUR, usd_per_hour=Decimal(usd), as_of=T0 + 6 * HOUR,
                )
                for kind, hours, usd in (("spot", 0, "0.36"), ("on-demand", 0, "0.72"), ("on-demand", 3, "0.9"))
            ],
        )  # fmt: skip
        facts.add_reservations(
            connection,
            [
                Reservation(
                    cloud=runs[0].cloud, reservation="cr-1", started_at=T0, instances=1, environment=FLEET,
                    region="us-east-1", zone="us-east-1a", machine_type="g6.xlarge", last_seen_at=T0 + 6 * HOUR,
                    pool="chat", model=runs[0].model, owner="search",
                )
            ],
        )  # fmt: skip
        for at in (T0 - 10 * HOUR, T0 + 6 * HOUR):
            facts.add_pass(
                connection, CostPass(environment=FLEET, at=at, host="h", metrics_from=None, metrics_until=None)
            )
    engine.dispose()
    return read_json("cost", "--fleet", document(folder), *WINDOW)


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("*") for cell in line.strip("|").split("|")] for line in lines[2:]]


def charge(found: Any) -> tuple[Any, ...]:
    credited = found["kind"] == "interrupted by the cloud"
    return (
        found["resource"],
        "credit" if credited else STATES.get(found["state"], found["state"]),
        found["start"][11:16],
        found["end"][11:16],
        Decimal(found["seconds"]),
        Decimal(found["usd_per_hour"]),
        Decimal(found["usd"]),
    )


def test_charges_of_the_page_match_the_report(report: Any) -> None:
    expected = [(*row[:4], *map(Decimal, row[4:])) for row in rows("Seconds times price")]
    assert sorted(expected) == sorted(charge(found) for found in report["charges"])


def test_sums_of_the_page_match_the_report(report: Any) -> None:
    total = report["total"]
    names = {
        "used": "usd_used", "idle": "usd_idle", "starting": "usd_starting",
        "unused reservation": "usd_unused_reservation", "cost": "usd",
    }  # fmt: skip
    assert {name: Decimal(usd) for name, usd in rows("The sums")} == {
        name: Decimal(total[key]) for name, key in names.items()
    }


def test_token_prices_of_the_page_match_the_report(report: Any) -> None:
    total, pools = report["total"], report["by"]["pool"]
    whole = total["usd_per_million_tokens"]
    expected = [Decimal(number) for number in re.findall(r"\*\*(\d+\.\d{6})\*\*", PAGE)]
    assert [round(Decimal(value), 6) for value in (
        whole["blended"],
        pools["chat"]["usd_per_million_tokens"]["blended"],
        whole["input"],
        whole["output"],
        total["usd_per_million_tokens_usage"]["blended"],
    )] == expected  # fmt: skip
    assert pools["batch"]["usd_per_million_tokens"]["blended"] is None
    assert whole["method"] in PAGE
    tokens = total["tokens"]
    assert all(f"{tokens[name]:,}" in PAGE for name in ("prompt", "cached", "generation"))
