"""A report contains everything needed to recompute it. `report_arithmetic` does so without code of gpu-fleet."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet.domain.model import CapacityType
from gpufleet.ledger import facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import Reservation
from gpufleet.ledger.reservations import note_reservations, reservations
from gpufleet.ledger.rollups import roll_up
from gpufleet.ledger.schema import open_ledger
from gpufleet.ledger.teams import TeamReading, add_team_readings
from tests.fixtures.costs.report_arithmetic import faults
from tests.fixtures.small_fleet import FLEET, HOUR, T0, WINDOW, document, fill, read_json, run


def stated(sku: str, usd: str) -> dict[str, str]:
    return {"sku": sku, "usd_per_hour": usd, "source": "contract", "as_of": "2026-11-01"}


SPEND = {
    "name": "sp", "usd_per_hour": "0.5", "rates": {"g6.xlarge": "0.4"}, "starts": "2026-11-01T00:00:00Z",
    "ends": "2027-11-01T00:00:00Z", "source": "order", "as_of": "2026-11-01",
}  # fmt: skip


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A fleet with shared rows, a commitment, a reservation that others use, pools split by team, an undated end
    and a missing price."""
    engine = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(engine)
    with writing(engine) as connection:
        facts.add_runs(
            connection,
            [
                run("i-undated", 1, CapacityType.ON_DEMAND, last_seen_at=T0 + 3 * HOUR),
                run("i-unpriced", 2, CapacityType.ON_DEMAND, machine_type="x9.huge"),
                run("i-short", 3, CapacityType.SPOT, last_seen_at=T0 + 3.01 * HOUR),
            ],
        )
        facts.add_ends(
            connection,
            [
                ended("i-undated", 1, 6, facts.EndCause.ABSENT, exact=False),
                ended("i-short", 3, 3.01, facts.EndCause.ENDED, exact=True),
            ],
        )
        (paid,) = reservations(connection, FLEET, T0, T0 + 6 * HOUR)
        more: Reservation = replace(paid, reservation="cr-2", instances=4, elsewhere=1, seats=2, started_at=T0 + HOUR)
        note_reservations(connection, [more])
        add_team_readings(
            connection,
            [
                TeamReading(fleet=FLEET, router="r", team=team, model="m", pool="chat", at=T0 + hour * HOUR,
                            replica_ms=hour * rate, tokens_in=hour * 7, tokens_out=hour, unmetered=0)
                for hour in range(6)
                for team, rate in (("red", 1_000), ("blue", 2_345))
            ],
        )  # fmt: skip
    return document(
        tmp_path,
        shared=[
            {"name": "nat", "sku": "aws:vpc:nat-gateway", "units": "3"},
            {"name": "disk", "sku": "aws:ebs:gp3:gib", "units": "200", "per": "instance"},
        ],
        prices={"overrides": [stated("aws:vpc:nat-gateway", "0.045"), stated("aws:ebs:gp3:gib", "0.0001096")]},
        commitments={"spends": [SPEND]},
    )


def ended(name: str, start: float, end: float, cause: facts.EndCause, *, exact: bool) -> facts.RunEnd:
    began = run(name, start, CapacityType.SPOT)
    return facts.RunEnd(
        cloud=began.cloud, instance_id=name, started_at=began.started_at, ended_at=T0 + end * HOUR, cause=cause,
        exact=exact,
    )  # fmt: skip


WINDOWS = [
    WINDOW,
    ("--since", "2026-11-20T06:10", "--until", "2026-11-20T11:59:59"),
    ("--since", "2026-11-20T06:20", "--until", "2026-11-20T06:40"),
    ("--since", "2026-11-19", "--until", "2026-11-22"),
]


@pytest.mark.parametrize("window", WINDOWS)
def test_every_figure_follows_from_the_lines_of_its_report(fleet: Path, window: tuple[str, ...]) -> None:
    assert faults(read_json("cost", "--fleet", fleet, *window, "--allow-unpriced")) == []


def test_tokens_of_an_instance_that_is_not_in_the_ledger_do_not_lower_the_unit_costs(tmp_path: Path) -> None:
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    fill(ledger)
    path = document(tmp_path)
    before = read_json("cost", "--fleet", path, *WINDOW)
    served = facts.TokenReading(
        environment=FLEET, instance_id="i-unknown", engine="0", model="chat", at=T0 + 2 * HOUR, prompt=700_000,
        cached=0, generation=300_000, created_at=T0 + 1.9 * HOUR,
    )  # fmt: skip
    with writing(ledger) as connection:
        facts.add_readings(connection, [served])
        roll_up(connection, [served])
    found = read_json("cost", "--fleet", path, *WINDOW)
    assert found["total"]["tokens"]["prompt"] == before["total"]["tokens"]["prompt"] + 700_000
    for basis in ("usd_per_million_tokens", "usd_per_million_tokens_usage"):
        assert found["total"][basis] == before["total"][basis]
    assert found["by"] == before["by"]
    assert any("1000000 tokens belong to instances that are not in the ledger" in note for note in found["notes"])
    assert faults(found) == []


def test_teams_follow_from_the_engine_seconds(fleet: Path) -> None:
    raw = fleet.read_text().replace('"watchdogs": {}', '"watchdogs": {}, "team_split": "engine-seconds"', 1)
    fleet.write_text(raw)
    found = read_json("cost", "--fleet", fleet, *WINDOW, "--allow-unpriced")
    assert {share["team"] for share in found["teams"]} == {"red", "blue"}
    assert faults(found) == []


def first(rows: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return next(row for row in rows if all(row[name] == value for name, value in fields.items()))


TAMPERED: list[tuple[str, Callable[[Any], Any]]] = [
    ("are not", lambda r: first(r["charges"], resource="i-idle").update(usd="9")),
    ("its price is another", lambda r: first(r["charges"], resource="i-idle").update(usd_per_hour="9")),
    ("total: usd is", lambda r: r["total"].update(usd="1")),
    ("by pool: usd of the parts", lambda r: r["by"]["pool"]["chat"].update(usd="1")),
    ("team research: usd_idle", lambda r: r["by"]["team"]["research"].update(usd_idle="1")),
    ("capacity-type spot: spot_saving", lambda r: r["by"]["capacity-type"]["spot"].update(spot_saving_usd="1")),
    ("total: at_least", lambda r: r["total"].update(at_least=False)),
    ("pool batch: usd_at_most", lambda r: r["by"]["pool"]["batch"].update(usd_at_most=None)),
    ("pool chat: usd_at_least", lambda r: first(r["unknown"], resource="i-undated").update(usd_at_least="-1")),
    ("total: seconds", lambda r: r["total"]["seconds"].update(idle="1")),
    ("total: coverage", lambda r: r["total"].update(coverage=0.5)),
    ("blended", lambda r: r["total"]["usd_per_million_tokens"].update(blended="1")),
    ("by model: models/batch is missing", lambda r: r["by"]["model"].pop("models/batch")),
    ("prompt is", lambda r: r["engines"][0]["tokens"].update(prompt=1)),
    ("reservation cr-2", lambda r: first(r["reservations"], reservation="cr-2").update(used_elsewhere=0)),
    ("collected", lambda r: r["collected"].update(share=0.25)),
    ("is outside the window", lambda r: r.update(since="2026-11-20T06:30:00Z")),
]  # fmt: skip


@pytest.mark.parametrize(("message", "tamper"), TAMPERED, ids=[message for message, _ in TAMPERED])
def test_figure_that_does_not_follow_from_the_lines_is_detected(
    fleet: Path, message: str, tamper: Callable[[Any], Any]
) -> None:
    report = copy.deepcopy(read_json("cost", "--fleet", fleet, *WINDOW, "--allow-unpriced"))
    tamper(report)
    assert message in "\n".join(faults(report))
