"""Passes of the orphan watchdog over a fake fleet: two phases, brakes, budgets, faults and kills."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Action, OutcomeKind, Reason
from gpufleet.domain.model import InstanceState
from gpufleet.settings.document.watchdogs import OrphanRule
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, KilledError
from tests.fixtures.watchdogs.fake_ports import FakeAccount, FakeInventory, FakeMetrics
from tests.fixtures.watchdogs.orphans import DAY, LONG_QUIET, ONE, RULE, make_watchdog, orphan, orphan_fleet, ruled
from tests.fixtures.watchdogs.plain import QUIET_ENGINE, START, FakePrices
from watchdogs.orphans.decide import decide
from watchdogs.orphans.watchdog import OrphanScope, OrphanWatchdog
from watchdogs.ports import LEASE_OVER


def test_an_orphan_is_marked_notified_and_stopped_after_its_grace() -> None:
    fake = orphan_fleet()
    watchdog = make_watchdog(fake)
    watchdog.apply()
    assert fake.instances[ONE].idle_since == START and fake.stopped == []
    (text,) = fake.messages.values()
    for word in (
        "notebook",
        "0.8 USD/h",
        "2026-11-22 08:00",
        "gpufleet keep",
        "not get capacity",
        "local disks is lost",
    ):
        assert word in text, word
    fake.now += timedelta(hours=23)
    assert {d.reason for d in watchdog.apply().plan.decisions} == {Reason.MARKED_WAITING}
    assert len(fake.messages) == 1
    fake.now += timedelta(hours=2)
    done = watchdog.apply()
    assert [outcome.kind for outcome in done.outcomes] == [OutcomeKind.DONE]
    assert fake.stopped == [ONE] and fake.ended == [] and fake.drains == []
    assert fake.instances[ONE].idle_since is None, "a restart begins without a mark"
    assert "was stopped" in list(fake.messages.values())[-1]
    assert watchdog.apply().plan.decisions == ()
    assert fake.with_button == {key for key in fake.messages if key.startswith("marked:")}


def test_a_machine_that_cannot_be_read_is_listed_and_stops_nothing_else() -> None:
    fake = orphan_fleet(2)
    odd = orphan(2).id
    fake.malformed[odd] = "it has no launch time"
    watchdog = make_watchdog(fake)
    for _ in range(2):
        done = watchdog.apply()
        kept = [(d.action, d.reason, d.detail) for d in done.plan.decisions if d.resource == odd]
        assert kept == [(Action.KEEP, Reason.NOT_LISTED, "it has no launch time")]
        fake.now += timedelta(hours=25)
    assert fake.stopped == [ONE]
    del fake.malformed[odd]
    watchdog.apply()
    assert fake.instances[odd].idle_since == fake.now, "its grace begins when it can be read"


def test_machine_with_the_name_of_an_unreadable_one_is_not_touched() -> None:
    """On Google Cloud a name is one zone's own: which of the two would be stopped is not known."""
    fake = orphan_fleet()
    watchdog = make_watchdog(fake)
    watchdog.apply()
    fake.now += timedelta(hours=25)
    seen = replace(watchdog.observe(fake.now), unreadable={ONE: "it has no launch time"})
    (decision,) = decide(seen, fake.now).decisions
    assert (decision.resource, decision.action, decision.reason) == (ONE, Action.KEEP, Reason.METRICS_IMPLAUSIBLE)


def test_a_dry_run_writes_nothing_and_lets_the_rule_act_afterwards() -> None:
    fake = orphan_fleet()
    watchdog = OrphanWatchdog(ruled(), fake.ports())
    assert {d.reason for d in watchdog.apply().plan.decisions} == {Reason.POLICY_UNSEEN}
    assert [d.action for d in watchdog.dry().plan.decisions] == [Action.MARK]
    assert fake.instances[ONE].idle_since is None and fake.messages == {}
    assert [d.action for d in watchdog.apply().plan.decisions] == [Action.MARK]


def test_a_filtered_list_is_not_a_dry_run() -> None:
    fake = orphan_fleet()
    OrphanWatchdog(ruled(), fake.ports(), OrphanScope(only=lambda one: one.tags.get("team") == "x")).dry()
    assert fake.seen == set()


def pause(fake: FakeFleet) -> None:
    fake.brakes.append(Brake(since=START, kind=BrakeKind.PAUSE, scope="all", owner="ana", reason="no", until=None))


def keep(fake: FakeFleet) -> None:
    fake.brakes.append(Brake(since=START, kind=BrakeKind.KEEP, scope=ONE, owner="ana", reason="mine", until=None))


def keep_by_tag(fake: FakeFleet) -> None:
    old = fake.instances[ONE]
    until = tags.write_time(fake.now + DAY)
    fake.instances[ONE] = replace(old, tags={**old.tags, tags.KEEP_UNTIL: until})


def adopt(fake: FakeFleet) -> None:
    fake.instances[ONE] = replace(fake.instances[ONE], environment="test", group="batch-spot-a")


def work(fake: FakeFleet) -> None:
    fake.evidence[ONE] = replace(LONG_QUIET, engine=replace(QUIET_ENGINE, running_max=2.0))


def unmark(fake: FakeFleet) -> None:
    fake.instances[ONE] = replace(fake.instances[ONE], tags={"team": "research"})


def retag(fake: FakeFleet) -> None:
    old = fake.instances[ONE]
    fake.instances[ONE] = replace(old, tags={**old.tags, "team": "sales"})


def lose_the_lease(fake: FakeFleet) -> None:
    fake.lease_is_ours = False


def pause_the_rule(fake: FakeFleet) -> None:
    fake.brakes.append(
        Brake(since=START, kind=BrakeKind.PAUSE, scope=RULE["name"], owner="ana", reason="no", until=None)
    )


def vanish(fake: FakeFleet) -> None:
    fake.instances.pop(ONE, None)


def halt(fake: FakeFleet) -> None:
    fake.instances[ONE] = replace(fake.instances[ONE], state=InstanceState.STOPPED)


def join_a_group(fake: FakeFleet) -> None:
    fake.instances[ONE] = replace(fake.instances[ONE], group="eks-nodes")


def silence_the_engine(fake: FakeFleet) -> None:
    fake.evidence[ONE] = replace(LONG_QUIET, engine=None)


CHANGES = [
    (pause, "paused by ana"),
    (pause_the_rule, "paused by ana"),
    (keep, "kept by ana"),
    (keep_by_tag, Reason.KEPT_BY_PEOPLE.sentence),
    (adopt, "it belongs to a pool now"),
    (work, Reason.SERVING.sentence),
    (unmark, "its mark was removed"),
    (retag, "the rule no longer matches it"),
    (lose_the_lease, LEASE_OVER),
    (vanish, "it is no longer running"),
    (halt, "it is no longer running"),
    (join_a_group, Reason.NOT_STOPPABLE.sentence),
    (silence_the_engine, Reason.METRICS_MISSING.sentence),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES, ids=[change.__name__ for change, _ in CHANGES])
@pytest.mark.parametrize("when", ["before the pass", "between plan and stop"])
def test_change_during_the_pass_blocks_a_stop(change: Callable[[FakeFleet], None], expected: str, when: str) -> None:
    fake = orphan_fleet()
    watchdog = make_watchdog(fake)
    watchdog.apply()
    fake.now += 2 * DAY
    if when == "before the pass":
        change(fake)
    else:
        fake.before = lambda name: change(fake) if name == "record" else None
    outcomes = watchdog.apply().outcomes
    assert fake.stopped == []
    if when == "between plan and stop":
        (outcome,) = outcomes
        assert outcome.kind is OutcomeKind.NO_LONGER_TRUE and expected in outcome.detail


@pytest.mark.parametrize("change", [pause, pause_the_rule, keep, lose_the_lease], ids=lambda change: change.__name__)
def test_change_during_the_pass_blocks_a_mark(change: Callable[[FakeFleet], None]) -> None:
    fake = orphan_fleet()
    fake.before = lambda name: change(fake) if name == "record" else None
    (outcome,) = make_watchdog(fake).apply().outcomes
    assert outcome.kind is OutcomeKind.NO_LONGER_TRUE
    assert fake.instances[ONE].idle_since is None and fake.messages == {}


@pytest.mark.parametrize(
    ("scope", "until"), [("batch", None), ("all", START + DAY)], ids=["of another scope", "that is over"]
)
def test_expired_or_unrelated_brake_does_not_block_a_stop(scope: str, until: datetime | None) -> None:
    fake = orphan_fleet()
    watchdog = make_watchdog(fake)
    watchdog.apply()
    fake.now += 2 * DAY
    fake.brakes.append(Brake(since=START, kind=BrakeKind.PAUSE, scope=scope, owner="ana", reason="no", until=until))
    watchdog.apply()
    assert fake.stopped == [ONE]


@pytest.mark.parametrize("fails", [False, True], ids=["it goes", "the cloud refuses"])
def test_work_removes_the_mark_and_notifies_once_it_is_removed(fails: bool) -> None:
    @dataclass
    class Refusing(FakeInventory):
        def untag(self, instance_ids: Sequence[str], keys: Sequence[str]) -> Mapping[str, str]:
            return dict.fromkeys(instance_ids, "throttled") if fails else super().untag(instance_ids, keys)

    fake = orphan_fleet()
    fleet = ruled()
    make_watchdog(fake, fleet).apply()
    sent = len(fake.messages)
    work(fake)
    (outcome,) = OrphanWatchdog(fleet, replace(fake.ports(), inventory=Refusing(fake))).apply().outcomes
    assert outcome.kind is (OutcomeKind.FAILED if fails else OutcomeKind.DONE)
    assert (fake.instances[ONE].idle_since is not None) is fails
    assert len(fake.messages) - sent == (0 if fails else 1)


def test_a_stop_that_an_earlier_pass_only_recorded_is_judged_again() -> None:
    fake = orphan_fleet()
    watchdog = make_watchdog(fake)
    (marked,) = watchdog.apply().plan.decisions
    fake.intents["orphans", ONE] = marked
    (outcome,) = watchdog.apply().outcomes
    assert outcome.kind is OutcomeKind.NO_LONGER_TRUE and "judged again" in outcome.detail
    assert fake.intents == {} and fake.stopped == []


@pytest.mark.parametrize(
    ("works", "called"),
    [
        pytest.param(False, "query", id="during the look before a stop"),
        pytest.param(True, "gpus", id="before a mark is taken away"),
    ],
)
def test_a_pass_whose_lease_is_over_stops_nothing_and_takes_no_mark_away(works: bool, called: str) -> None:
    fake = orphan_fleet()
    watchdog = make_watchdog(fake)
    watchdog.apply()
    fake.now += 2 * DAY
    if works:
        fake.evidence[ONE] = replace(LONG_QUIET, engine=replace(QUIET_ENGINE, running_max=3.0))
    plans = len(fake.plans)

    def over(name: str) -> None:
        if name == called and (works or len(fake.plans) > plans):
            fake.lease_is_ours = False

    fake.before = over
    done = watchdog.apply()
    assert [(o.kind, o.detail) for o in done.outcomes] == [(OutcomeKind.NO_LONGER_TRUE, LEASE_OVER)]
    assert fake.stopped == [] and tags.IDLE_SINCE in fake.instances[ONE].tags


@dataclass
class WorkedInBetween(FakeMetrics):
    """Shows work only in a longer window than that of the rule."""

    def query(self, expression: str, at: datetime) -> Sequence[tuple[Mapping[str, str], float]]:
        seen = self.fleet.evidence
        if any(int(seconds) > LONG_QUIET.window.total_seconds() for seconds in re.findall(r"\[(\d+)s\]", expression)):
            busy = replace(LONG_QUIET, engine=replace(QUIET_ENGINE, counter_changes=9.0))
            self.fleet.evidence = dict.fromkeys(seen, busy)
        try:
            return super().query(expression, at)
        finally:
            self.fleet.evidence = seen


def test_work_between_passes_restarts_the_grace_of_an_orphan() -> None:
    fake = orphan_fleet()
    fleet = ruled()
    make_watchdog(fake, fleet).apply()
    fake.now += timedelta(hours=25)
    watchdog = OrphanWatchdog(fleet, replace(fake.ports(), metrics=WorkedInBetween(fake)))
    (outcome,) = watchdog.apply().outcomes
    assert outcome.kind is OutcomeKind.NO_LONGER_TRUE and Reason.TOKENS_MOVED.sentence in outcome.detail
    assert fake.stopped == [] and fake.instances[ONE].idle_since is None
    assert "stays" in list(fake.messages)[-1]
    fake.now += timedelta(minutes=5)
    assert [d.action for d in make_watchdog(fake, fleet).apply().plan.decisions] == [Action.MARK]


def test_budgets_hold_over_passes() -> None:
    fake = orphan_fleet(5)
    watchdog = make_watchdog(fake)
    watchdog.apply()
    fake.now += 2 * DAY
    counts: list[int] = []
    for _ in range(4):
        watchdog.apply()
        counts.append(len(fake.stopped))
        fake.now += timedelta(minutes=10)
    assert counts == [1, 2, 2, 2], "one a run, two an hour"
    fake.now += timedelta(hours=1)
    watchdog.apply()
    assert len(fake.stopped) == 3


def test_a_rule_that_allows_more_a_run_may() -> None:
    fake = orphan_fleet(5)
    watchdog = make_watchdog(fake, ruled(max_stops_per_run=4, max_stops_per_hour=9))
    watchdog.apply()
    fake.now += 2 * DAY
    watchdog.apply()
    assert len(fake.stopped) == 4


def test_a_failed_stop_fails_alone_and_notifies_once() -> None:
    fake = orphan_fleet(2)
    watchdog = make_watchdog(fake, ruled(max_stops_per_run=2))
    watchdog.apply()
    fake.now += 2 * DAY

    def refuse(name: str) -> None:
        if name == "stop" and not fake.stopped:
            raise OSError("OperationNotPermitted: stop protection")

    fake.before = refuse
    for _ in range(2):
        kinds = [outcome.kind for outcome in watchdog.apply().outcomes]
        assert kinds.count(OutcomeKind.FAILED) == 2
    assert sum("stop protection" in text for text in fake.messages.values()) == 2, "once for each of the two"


@pytest.mark.parametrize("phase", ["mark", "stop"])
def test_after_a_kill_at_any_call_the_next_passes_continue(phase: str) -> None:
    """A kill before each call in turn; afterwards there is one mark or one stop, with one message."""
    for number in range(1, 60):
        fake = orphan_fleet()
        watchdog = make_watchdog(fake)
        if phase == "stop":
            watchdog.apply()
            fake.now += 2 * DAY
        sent = len(fake.messages)
        made = [0]

        def kill(name: str, fake: FakeFleet = fake, made: list[int] = made, number: int = number) -> None:
            made[0] += 1
            if made[0] == number:
                raise KilledError(name)

        fake.before = kill
        try:
            watchdog.apply()
            finished = True
        except KilledError:
            finished = False
        fake.before = lambda name: None
        watchdog.apply()
        watchdog.apply()
        assert len(fake.messages) - sent == 1, f"killed before call {number}"
        if phase == "stop":
            assert fake.stopped == [ONE] and fake.instances[ONE].idle_since is None
        else:
            assert fake.instances[ONE].idle_since is not None and fake.stopped == []
        assert fake.intents == {}
        if finished:
            return
    pytest.fail("a pass makes no end of calls")


@pytest.mark.parametrize("call", ["gpus", "query", "interval", "brakes", "done_since", "ended_since"])
def test_an_incomplete_observation_fails_the_pass(call: str) -> None:
    fake = orphan_fleet()
    watchdog = make_watchdog(fake)
    watchdog.apply()
    fake.now += 2 * DAY

    def broken(name: str) -> None:
        if name == call:
            raise OSError("half a page")

    fake.before = broken
    with pytest.raises(OSError, match="half a page"):
        watchdog.apply()
    assert fake.stopped == []


def test_a_dry_pass_without_metrics_lists_and_reports_it() -> None:
    fake = orphan_fleet()
    expected: list[str] = []

    def broken(name: str) -> None:
        if name == "interval":
            raise OSError("no route to host")

    fake.before = broken
    plan = OrphanWatchdog(ruled(), fake.ports(), OrphanScope(announce=expected.append)).dry().plan
    assert [(d.action, d.reason) for d in plan.decisions] == [(Action.KEEP, Reason.METRICS_MISSING)]
    assert expected == ["metrics of the GPUs cannot be read: no route to host"]


def test_a_machine_whose_gpu_the_catalogue_does_not_know_stops_no_pass() -> None:
    fake = orphan_fleet(2)
    fake.instances[ONE] = replace(fake.instances[ONE], machine_type="g7e.2xlarge")
    assert len(make_watchdog(fake).dry().plan.decisions) == 2


def test_prices_are_in_every_decision() -> None:
    fake = orphan_fleet()
    (decision,) = make_watchdog(fake).dry().plan.decisions
    assert decision.usd_per_hour == FakePrices().usd_per_hour(orphan())


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        pytest.param({"tags": {}}, "selects no instances", id="no conditions"),
        pytest.param({"evidence": "cloudwatch"}, "no engine", id="a stop by CloudWatch"),
    ],
)
def test_a_rule_that_could_do_harm_is_refused(rule: Mapping[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        TypeAdapter(OrphanRule).validate_python({**RULE, **rule})


def test_machine_that_cannot_be_stopped_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = orphan_fleet(3)
    watchdog = make_watchdog(fake)
    stop = FakeAccount.stop

    def refused(account: FakeAccount, instance_id: str) -> None:
        if instance_id == ONE:
            raise CloudError("OperationNotPermitted: its disableApiStop attribute is set")
        stop(account, instance_id)

    monkeypatch.setattr(FakeAccount, "stop", refused)
    watchdog.apply()
    for _ in range(4):
        fake.now += timedelta(hours=25)
        watchdog.apply()
    assert fake.stopped == [orphan(2).id, orphan(3).id]


def test_a_mark_of_another_fleet_restarts_the_grace_and_notifies() -> None:
    """Both fleets had marked it; the other one took the tag away when people kept it, and marked it after that."""
    fake = orphan_fleet()
    watchdog = make_watchdog(fake)
    watchdog.apply()
    mine = fake.instances[ONE]
    fake.now += timedelta(days=7)
    fake.instances[ONE] = replace(mine, tags={**mine.tags, tags.IDLE_SINCE: tags.write_time(fake.now)})
    for hours, reason in ((0, Reason.MARKED_WAITING), (23, Reason.MARKED_WAITING), (2, Reason.STILL_IDLE)):
        fake.now += timedelta(hours=hours)
        assert [d.reason for d in watchdog.apply().plan.decisions] == [reason]
    assert sum(key.startswith("marked:") for key in fake.messages) == 2


def test_a_mark_that_we_took_away_does_not_come_back_with_another_fleets_tag() -> None:
    fake = orphan_fleet()
    watchdog = make_watchdog(fake)
    watchdog.apply()
    fake.now += timedelta(hours=1)
    work(fake)
    assert [d.action for d in watchdog.apply().plan.decisions] == [Action.UNMARK]
    fake.evidence[ONE] = LONG_QUIET
    mine = fake.instances[ONE]
    fake.instances[ONE] = replace(mine, tags={**mine.tags, tags.IDLE_SINCE: tags.write_time(START)})
    fake.now += timedelta(days=2)
    assert [d.action for d in watchdog.apply().plan.decisions] == [Action.MARK]


def test_a_tag_of_the_future_holds_no_stop_up() -> None:
    fake = orphan_fleet()
    watchdog = make_watchdog(fake)
    watchdog.apply()
    later = tags.write_time(START + timedelta(days=365))
    mine = fake.instances[ONE]
    fake.instances[ONE] = replace(mine, tags={**mine.tags, tags.IDLE_SINCE: later})
    fake.now += timedelta(hours=25)
    watchdog.apply()
    assert fake.stopped == [ONE]


def test_an_unseen_rule_allows_the_removal_of_a_mark() -> None:
    fake = orphan_fleet()
    make_watchdog(fake).apply()
    fake.seen.clear()
    work(fake)
    fake.now += timedelta(hours=1)
    assert [d.action for d in OrphanWatchdog(ruled(), fake.ports()).apply().plan.decisions] == [Action.UNMARK]
