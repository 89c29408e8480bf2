"""After how long without work an instance is ended: the price of its stop, its cold start and a margin."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.ledgers import ledger_name
from cli.commands import build
from gpufleet.domain.boots import Boot
from gpufleet.domain.decisions import Action, Reason
from gpufleet.domain.policies import IdlePolicy
from gpufleet.ledger import decisions
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import render
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet, mark
from tests.fixtures.watchdogs.plain import READY, START, document, instance
from watchdogs.idle.timer import Timer
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests

MINUTE = timedelta(minutes=1)
POLICY = IdlePolicy()
FIRST = instance(1).id
PRICED = {"idle": {"stop_price": "30m"}, "spot": {}}


@pytest.mark.parametrize(
    ("policy", "cold_start", "after"),
    [
        pytest.param(POLICY, 6 * MINUTE, 51 * MINUTE, id="price, cold start and margin"),
        pytest.param(replace(POLICY, stop_price=60 * MINUTE), 6 * MINUTE, 81 * MINUTE, id="a higher price"),
        pytest.param(replace(POLICY, stop_price=timedelta(0)), 30 * MINUTE, 45 * MINUTE, id="a slow start alone"),
        pytest.param(replace(POLICY, grace=40 * MINUTE), 6 * MINUTE, 70 * MINUTE, id="window and grace are longer"),
        pytest.param(replace(POLICY, stop_price=None), 55 * MINUTE, 40 * MINUTE, id="stops have no price"),
    ],
)
def test_timer_is_at_least_stop_price_and_window_plus_grace(
    policy: IdlePolicy, cold_start: timedelta, after: timedelta
) -> None:
    assert Timer(policy=policy, cold_start=cold_start).after == after


def booted(fake: FakeFleet, minutes: int) -> None:
    """The ledger remembers a start of the pool that took so long."""
    launched = START - timedelta(days=1)
    boot = Boot(
        instance_id="i-before",
        pool="batch",
        group="batch-spot-a",
        machine_type="g6.xlarge",
        launched_at=launched,
        first_seen_at=launched,
        last_seen_at=launched,
        ready_at=launched + minutes * MINUTE,
    )
    fake.boots[boot.key] = boot


def make_watchdog(fake: FakeFleet, **pool: object) -> IdleWatchdog:
    """One whose policy was seen."""
    fleet = document(min=0, watchdogs=PRICED, **pool)
    fake.seen.add(("idle", "batch", digests(fleet, "idle")["batch"]))
    return IdleWatchdog(fleet, fake.ports())


@pytest.mark.parametrize(
    ("cold_start", "marked_ago", "action"),
    [
        pytest.param(4, 19, Action.END, id="price, 4 min of start and margin are over"),
        pytest.param(4, 18, Action.KEEP, id="a minute before"),
        pytest.param(10, 19, Action.KEEP, id="its pool starts slowly"),
        pytest.param(10, 25, Action.END, id="its pool starts slowly, and that is over, too"),
    ],
)
def test_the_measured_cold_start_is_part_of_the_price(cold_start: int, marked_ago: int, action: Action) -> None:
    fake = idle_fleet(1)
    booted(fake, cold_start)
    mark(fake, 1, START - marked_ago * MINUTE)
    assert [d.action for d in make_watchdog(fake).apply().plan.decisions] == [action]


def test_a_measured_boot_sets_the_cold_start() -> None:
    fake = idle_fleet(1)
    booted(fake, 4)
    launched = fake.instances[FIRST].launched_at
    fake.agents[FIRST] = replace(READY, phase_since=launched + 10 * MINUTE)
    mark(fake, 1, START - 19 * MINUTE)
    (decision,) = make_watchdog(fake).apply().plan.decisions
    assert decision.reason is Reason.MARKED_WAITING and decision.evidence["cold_start"] == "600 s"


def test_plan_and_message_name_the_time_the_price_and_the_cold_start() -> None:
    fake = idle_fleet(1)
    booted(fake, 4)
    (decision,) = make_watchdog(fake).apply().plan.decisions
    assert decision.action is Action.MARK
    assert "ends after 49 min without work (a stop costs 34 min: 30 min and a cold start of 4 min)" in decision.detail
    numbers = {"ends_after": "2940 s", "stop_price": "1800 s", "cold_start": "240 s", "margin": "900 s"}
    assert numbers.items() <= decision.evidence.items()
    (message,) = (text for key, text in fake.messages.items() if key.startswith("marked:"))
    # marked after a window of 30 min, at 08:00
    assert "ended after 08:15:00 UTC" in message and "about 08:19 UTC" in message and decision.detail in message


def test_a_new_cold_start_measurement_never_ends_an_instance_earlier() -> None:
    fake = idle_fleet(1)
    booted(fake, 20)
    watchdog = make_watchdog(fake)
    watchdog.apply()
    fake.boots.clear()
    booted(fake, 1)
    fake.now += 14 * MINUTE
    assert [d.action for d in watchdog.apply().plan.decisions] == [Action.KEEP]
    (message,) = (text for key, text in fake.messages.items() if key.startswith("marked:"))
    assert "ended after 08:15:00 UTC" in message


def test_watch_why_shows_the_numbers_of_the_timer(tmp_path: Path) -> None:
    fake = idle_fleet(1)
    booted(fake, 4)
    plan = make_watchdog(fake).apply().plan
    fleet = document(min=0, watchdogs=PRICED).model_copy(update={"ledger_url": f"sqlite:///{tmp_path}/ledger.db"})
    path = tmp_path / "fleet.json"
    path.write_text(render(fleet))
    engine = open_ledger(fleet.ledger_url)
    decisions.record_decisions(engine, ledger_name(fleet), "idle", plan.decisions, START)
    engine.dispose()
    arguments = ["watch", "why", FIRST, "--fleet", str(path)]
    output = CliRunner().invoke(build("watch"), arguments).stdout
    for line in ("ends_after = 2940 s", "stop_price = 1800 s", "cold_start = 240 s", "margin = 900 s"):
        assert f"    {line}\n" in output
    (row,) = json.loads(CliRunner().invoke(build("watch"), [*arguments, "--json"]).stdout)
    assert row["evidence"]["ends_after"] == "2940 s"
