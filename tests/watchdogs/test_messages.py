"""Messages before and after a machine is ended, and excluded dates of schedules."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from gpufleet.domain.decisions import Action, Decision, Reason
from gpufleet.domain.policies import OrphanAction, OrphanPolicy, ScalePolicy
from gpufleet.settings.document import DocumentError, FleetDocument
from tests.fixtures.watchdogs.plain import START, document, instance
from watchdogs.idle import messages as idle
from watchdogs.orphans import messages as orphans
from watchdogs.scale.decide import decide
from watchdogs.scale.hours import active
from watchdogs.scale.view import Pressure, ScalePoolView

LATER = START + timedelta(minutes=10)
MACHINE = instance(1, pool=None, group=None)


def decision(action: Action, usd: Decimal | None = Decimal("0.80")) -> Decision:
    return Decision(resource=MACHINE.id, pool="batch", action=action, reason=Reason.STILL_IDLE, usd_per_hour=usd)


def test_the_message_of_a_mark_states_the_cost_and_how_to_keep_the_instance() -> None:
    message = idle.marked(instance(1), decision(Action.MARK), LATER, LATER)
    assert (
        "Ending it loses its local copy of the model. A replacement starts cold and may not get capacity." in message
    )
    assert "It costs 0.8 USD/h." in message and "after 08:10:00 UTC" in message
    assert f"gpufleet keep {MACHINE.id}" in message and "expect about" not in message


def test_the_message_has_the_earliest_end_and_the_time_with_a_cold_start() -> None:
    message = idle.marked(instance(1), decision(Action.MARK), LATER, LATER + timedelta(hours=1))
    assert "after 08:10:00 UTC" in message and "Including the pool's cold start, expect about 09:10 UTC" in message


def test_an_unknown_price_is_shown_as_unknown() -> None:
    for message in (
        idle.marked(instance(1), decision(Action.MARK, None), LATER, LATER),
        idle.ended(decision(Action.END, None), 1),
        orphans.stopped(decision(Action.STOP, None)),
    ):
        assert "an unknown amount (no price)" in message and "0 USD" not in message


RULE = OrphanPolicy(name="forgotten", action=OrphanAction.STOP)


def test_the_message_of_an_orphan_mark_names_lost_disks_and_missing_capacity() -> None:
    message = orphans.marked(MACHINE, RULE, decision(Action.MARK), LATER, None)
    assert "Data on local disks is lost (a cache starts cold)" in message
    assert "A restart may not get capacity" in message and "gpufleet keep" in message


def test_message_of_a_mark_only_rule_announces_no_stop() -> None:
    message = orphans.marked(MACHINE, RULE, decision(Action.MARK), LATER, "its rule only marks")
    assert "Nothing will be stopped: its rule only marks." in message
    assert "capacity" not in message and "will be stopped after" not in message


def test_the_message_of_a_stop_names_disk_cost_and_missing_capacity() -> None:
    message = orphans.stopped(decision(Action.STOP))
    assert message.endswith("That saves 0.8 USD/h; its disks still cost money. A restart may not get capacity.")


OFFICE = {"days": ["mon", "tue", "wed", "thu", "fri"], "start": "08:00", "end": "18:00", "target": 4}


def fleet(*except_on: str) -> FleetDocument:
    rule = {**OFFICE, "timezone": "Europe/Berlin", "except_on": list(except_on)}
    return document(watchdogs={"scale": {"schedule": [rule]}})


def entry(*except_on: str) -> ScalePolicy:
    found = fleet(*except_on).pool("batch").watchdogs.scale
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("moment", "target"),
    [
        pytest.param("2026-12-24T10:00Z", 4, id="the day before"),
        pytest.param("2026-12-24T23:30Z", None, id="local midnight has passed"),
        pytest.param("2026-12-25T10:00Z", None, id="the holiday, a Friday"),
        pytest.param("2026-12-28T10:00Z", 4, id="the next working day"),
        pytest.param("2027-01-01T10:00Z", None, id="the other holiday"),
        pytest.param("2027-12-24T10:00Z", 4, id="a date, not a day of each year"),
    ],
)
def test_a_schedule_does_not_apply_on_excluded_dates(moment: str, target: int | None) -> None:
    policy = entry("2026-12-25", "2027-01-01")
    rule = active(policy.schedule, datetime.fromisoformat(moment))
    assert (None if rule is None else rule.target) == target


def test_schedule_raises_nothing_on_an_excluded_date() -> None:
    holiday = datetime(2026, 12, 25, 10, tzinfo=UTC)
    idle_load = Pressure(reporting=1, kv_cache=0.1, kv_cache_peak=0.1)
    plain = ScalePoolView(name="batch", policy=entry(), target=1, min=1, max=8, ready=1, pressure=idle_load)
    (working,) = decide([plain], holiday).decisions
    assert (working.action, working.reason, working.to_size) == (Action.RETARGET, Reason.SCHEDULE, 4)
    (decision_,) = decide([replace(plain, policy=entry("2026-12-25"))], holiday).decisions
    assert (decision_.action, decision_.reason) == (Action.KEEP, Reason.AS_WANTED)


def test_dates_survive_the_fleet_document() -> None:
    written = json.loads(fleet("2026-12-25").model_dump_json())
    (rule,) = written["pools"][0]["watchdogs"]["scale"]["schedule"]
    assert rule["except_on"] == ["2026-12-25"]
    assert entry("2026-12-25").schedule[0].except_on == (date(2026, 12, 25),)


@pytest.mark.parametrize("wrong", ["christmas", "2026-13-01", "25.12.2026"])
def test_an_invalid_excluded_date_is_rejected(wrong: str) -> None:
    with pytest.raises(DocumentError, match="except_on"):
        fleet(wrong)
