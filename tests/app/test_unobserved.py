"""Instances that are kept because no metrics show whether they work: reported as waste in USD, with one
message each.
"""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, select
from typer.testing import CliRunner

from app import cost_pass, unobserved
from app.fleets import load_one
from app.ledgers import open_ledger_of
from cli.commands import build
from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.domain.model import CapacityType
from gpufleet.ledger import decisions, facts
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import CostPass
from gpufleet.ledger.tables import OUTBOX
from gpufleet.settings.document import FleetDocument
from tests.fixtures.small_fleet import FLEET, HOUR, T0, WINDOW, document, run

DAY, NOW = timedelta(days=1), T0 + 6 * HOUR
BLIND, SEEN = "i-blind", "i-seen"


@pytest.fixture
def fleet(tmp_path: Path) -> FleetDocument:
    made = load_one(str(document(tmp_path)))
    with writing(open_ledger_of(made)) as connection:
        alive = [run(name, -30, CapacityType.ON_DEMAND, last_seen_at=NOW) for name in (BLIND, SEEN)]
        facts.add_runs(connection, alive)
        for at in (T0 - 40 * HOUR, NOW):
            facts.add_pass(
                connection, CostPass(environment=FLEET, at=at, host="h", metrics_from=None, metrics_until=None)
            )
    return made


def decided(fleet: FleetDocument, instance: str, hours: float, reason: Reason, action: Action = Action.KEEP) -> None:
    made = Decision(resource=instance, pool="chat", action=action, reason=reason)
    decisions.record_decisions(open_ledger_of(fleet), FLEET, "idle", [made], T0 + hours * HOUR)


def messages(engine: Engine) -> dict[str, str]:
    with engine.connect() as connection:
        return {row.key: row.text for row in connection.execute(select(OUTBOX))}


def test_spans_continue_over_reasons_of_their_kind_and_end_with_others(fleet: FleetDocument) -> None:
    for hours, reason in ((-30, Reason.NEVER_REACHABLE), (-29, Reason.METRICS_MISSING), (-5, Reason.SERVING)):
        decided(fleet, BLIND, hours, reason)
    decided(fleet, BLIND, -4, Reason.METRICS_STALE)
    decided(fleet, SEEN, -20, Reason.SERVING)
    with open_ledger_of(fleet).connect() as connection:
        found = decisions.kept_unobserved(connection, FLEET, NOW)
    assert [(one.instance_id, one.since, one.until, one.reason) for one in found] == [
        (BLIND, T0 - 30 * HOUR, T0 - 5 * HOUR, Reason.METRICS_MISSING),
        (BLIND, T0 - 4 * HOUR, None, Reason.METRICS_STALE),
    ]


def test_time_without_metrics_is_waste_after_a_day(fleet: FleetDocument, tmp_path: Path) -> None:
    decided(fleet, BLIND, -25, Reason.METRICS_MISSING)
    decided(fleet, BLIND, 3, Reason.SERVING)
    decided(fleet, SEEN, -10, Reason.METRICS_MISSING)  # for less than a day
    arguments = ["report", "waste", *WINDOW, "--fleet", str(tmp_path / "fleet.json"), "--allow-unpriced"]
    (shown,) = json.loads(CliRunner().invoke(build("report"), [*arguments, "--json"]).stdout)
    (row,) = [one for one in shown["waste"] if one["cause"] == "kept without metrics"]
    assert (row["pool"], row["resources"], float(row["seconds"])) == ("chat", [BLIND], 3 * 3600)
    assert float(row["usd"]) == pytest.approx(3 * 0.8048)
    assert (
        "kept without metrics in chat: 1 instance kept for 3.0 h"
        in CliRunner().invoke(build("report"), arguments).output
    )


def test_people_are_notified_of_the_cost_once_and_after_a_day(fleet: FleetDocument) -> None:
    engine = open_ledger_of(fleet)
    decided(fleet, BLIND, -19, Reason.METRICS_MISSING)
    assert unobserved.enqueue_all(fleet, engine, T0 + 5 * HOUR) == 0
    assert unobserved.enqueue_all(fleet, engine, NOW) == 1
    (text,) = messages(engine).values()
    assert text.startswith("dev: 1 instances of pool chat are kept")
    assert "i-blind (g6.xlarge, on-demand) since 2026-11-19 11:00 UTC" in text
    assert "metrics missing, at 0.8048 USD/h, 20.12 USD so far" in text
    with writing(engine) as connection:
        facts.add_runs(connection, [run(BLIND, -30, CapacityType.ON_DEMAND, last_seen_at=NOW + 3 * DAY)])
    assert [unobserved.enqueue_all(fleet, engine, NOW + days * DAY) for days in (1, 2, 3)] == [0, 0, 0]


def test_one_daily_message_names_all_unobserved_instances_of_a_pool(fleet: FleetDocument) -> None:
    engine, names = open_ledger_of(fleet), [f"i-{number:02}" for number in range(12)]
    with writing(engine) as connection:
        runs = [run(name, -30, CapacityType.ON_DEMAND, last_seen_at=NOW + 2 * DAY) for name in names]
        facts.add_runs(connection, runs)
    for name in names:
        decided(fleet, name, -30, Reason.METRICS_MISSING)
    assert unobserved.enqueue_all(fleet, engine, NOW) == 1
    (text,) = messages(engine).values()
    assert "12 instances" in text and "i-00" in text and "and 2 others" in text
    assert unobserved.enqueue_all(fleet, engine, NOW + DAY) == 0
    decided(fleet, SEEN, 6, Reason.METRICS_MISSING)
    with writing(engine) as connection:
        facts.add_runs(connection, [run(SEEN, -30, CapacityType.ON_DEMAND, last_seen_at=NOW + 2 * DAY)])
    assert unobserved.enqueue_all(fleet, engine, NOW + DAY + HOUR) == 1, "one more, a day later"


def test_terminated_instance_is_not_reported(fleet: FleetDocument) -> None:
    decided(fleet, BLIND, -30, Reason.METRICS_MISSING)
    assert unobserved.enqueue_all(fleet, open_ledger_of(fleet), NOW + 2 * HOUR) == 0


def test_without_a_channel_no_message_is_enqueued(fleet: FleetDocument) -> None:
    decided(fleet, BLIND, -30, Reason.METRICS_MISSING)
    silent = fleet.model_copy(update={"notify": None})
    assert unobserved.enqueue_all(silent, open_ledger_of(fleet), NOW) == 0


def test_the_cost_pass_notifies(fleet: FleetDocument) -> None:
    decided(fleet, BLIND, -30, Reason.METRICS_MISSING)
    engine = open_ledger_of(fleet)
    cost_pass.notify(fleet, engine, NOW)
    assert any(key.startswith(f"{FLEET}/unobserved/chat/") for key in messages(engine))
