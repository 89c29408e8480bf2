"""What the ledger's history of boots decides: machines that never boot, engines that crash, boots that take long."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.boots import Boot
from gpufleet.domain.decisions import Action, PastAction, Reason, Target
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import CapacityType, Instance, Phase
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet
from tests.fixtures.watchdogs.plain import READY, START, document, instance, left_booting, spot_pool
from tests.fixtures.watchdogs.spot import OD, A, B, make_watchdog, spread_fleet
from watchdogs import boots
from watchdogs.policy import digests
from watchdogs.spot import lifecycle
from watchdogs.spot.decide import decide
from watchdogs.spot.pool_view import Crash, GroupView, PoolMember
from watchdogs.spot.watchdog import SpotWatchdog

MINUTE = timedelta(minutes=1)
BOOT = 6 * MINUTE
CRASHED = replace(READY, phase=Phase.FAILED, ready=False, error="the engine ended again after 3 starts")


# machines that never boot


@pytest.mark.parametrize("kind", [ActivityKind.PREEMPTED, ActivityKind.ENDED_UNSTATED], ids=["taken", "unstated"])
def test_repeated_boot_failures_close_a_group_and_notify(kind: ActivityKind) -> None:
    """Their agent never comes, so they power off after 15 minutes, and behind a launch hook no launch is reported."""
    fake = spread_fleet()
    fake.capacity = {A: 0, B: 0, OD: 10_000}
    report = fake.happened

    def happened(group: str, kind: ActivityKind, key: str | None) -> None:
        if kind is not ActivityKind.LAUNCHED:
            report(group, kind if group == OD and kind is ActivityKind.PREEMPTED else kind, key)

    fake.happened = happened  # pyright: ignore[reportAttributeAccessIssue]
    fake.lose(instance(1).id)
    fake.lose(instance(2).id)
    hours = 4
    for _ in range(hours * 60):
        make_watchdog(fake).apply()
        fake.now += MINUTE
        for key in list(fake.alive(OD)):
            fake.agents.pop(key, None)
            if fake.now - fake.instances[key].launched_at >= 15 * MINUTE:
                fake.lose(key)
    alerts = [text for key, text in fake.messages.items() if key.startswith("spot:alert:")]
    assert len(alerts) == 1 and OD in alerts[0] and "console log" in alerts[0]
    assert fake.launched <= 6 * hours, "three fail, two were on their way, one is launched by the group itself"


# why an instance left


def looks(*seen: tuple[AgentStatus | None, float], left: float, **facts: Any) -> Boot:
    """The boot of an instance launched at START that looks saw at these minutes, and that had left at `gone`."""
    one = instance(1, launched_at=START)
    known: list[Boot] = []
    nothing = boots.EndFacts(by_watchdogs={}, stated={}, events=(), spot={A})
    for status, minute in seen:
        kind = {} if status is None else {one.id: status}
        known = boots.observe(known, [(one, "batch")], kind, nothing, START + minute * MINUTE)
    (boot,) = boots.observe(known, [], {}, replace(nothing, **facts), START + left * MINUTE)
    return boot


def reports(*kinds: ActivityKind, group: str = A) -> dict[str, Any]:
    one = instance(1).id
    at = START + 4 * MINUTE
    return {"events": [Activity(id=kind, group=group, kind=kind, at=at, instance_id=one) for kind in kinds]}


def ended_by_us(reason: Reason, minute: float = 4) -> dict[str, Any]:
    one, at = instance(1).id, START + minute * MINUTE
    past = PastAction(resource=one, pool="batch", action=Action.END, reason=reason, at=at)
    return {"by_watchdogs": {one: past}}


POWERED_OFF = {"stated": {(instance(1).id, START): ActivityKind.ENDED_UNSTATED}}
BY_PERSON = {"stated": {(instance(1).id, START): ActivityKind.ENDED_BY_PERSON}}
LOADING = replace(READY, phase=Phase.CACHE, ready=False)
TAKEN = replace(LOADING, draining=True, drain_by=DrainOwner.CLOUD, notice_at=START)
K = ActivityKind


@pytest.mark.parametrize(
    ("boot", "why", "failed"),
    [
        pytest.param(looks((None, 1), (None, 4), left=5), None, False, id="no stated cause: it may be reclaimed"),
        pytest.param(looks((LOADING, 4), left=5, **reports(K.ENDED_UNSTATED)), K.ENDED_UNSTATED, False, id="so"),
        pytest.param(
            looks((LOADING, 4), left=5, **POWERED_OFF, **reports(K.ENDED_UNSTATED)),
            K.FAILED_BOOT, True, id="it powered itself off",
        ),
        pytest.param(
            looks((LOADING, 1), left=30, **POWERED_OFF), K.ENDED_UNSTATED, False, id="it may have served before that"
        ),
        pytest.param(looks((READY, 4), left=5, **POWERED_OFF), K.ENDED_UNSTATED, False, id="it had served"),
        pytest.param(
            looks((TAKEN, 4), left=5, **POWERED_OFF), K.PREEMPTED, False, id="it powered itself off under notice"
        ),
        pytest.param(looks((LOADING, 1), (READY, 4), left=5), None, False, id="it was ready"),
        pytest.param(looks((LOADING, 1), left=5, **reports(K.FAILED_BOOT)), K.FAILED_BOOT, True, id="its group"),
        pytest.param(looks((LOADING, 1), left=5, **reports(K.PREEMPTED)), K.PREEMPTED, False, id="taken"),
        pytest.param(
            looks((LOADING, 1), left=5, spot=set[str](), **reports(K.PREEMPTED)), None, False, id="not spot"
        ),
        pytest.param(looks((TAKEN, 4), left=5), K.PREEMPTED, False, id="under notice"),
        pytest.param(looks((TAKEN, 1), (LOADING, 4), left=5), None, False, id="the notice was no more"),
        pytest.param(looks((LOADING, 1), left=5, **reports(K.ENDED)), K.ENDED, False, id="through its group"),
        pytest.param(
            looks((LOADING, 1), left=5, **BY_PERSON),
            K.ENDED_BY_PERSON, False, id="by a person",
        ),
        pytest.param(
            looks((LOADING, 1), left=5, **BY_PERSON, **reports(K.FAILED_BOOT)),
            K.FAILED_BOOT, True, id="a group that gives a boot up ends it as a person does",
        ),
        pytest.param(
            looks((replace(LOADING, draining=True, drain_by=DrainOwner.PERSON), 4), left=5),
            K.ENDED_BY_PERSON, False, id="a person drained it",
        ),
        pytest.param(
            looks((LOADING, 1), left=5, **ended_by_us(Reason.SURPLUS), **reports(K.FAILED_BOOT)),
            K.ENDED, False, id="by us",
        ),
        pytest.param(
            looks((LOADING, 1), left=5, **ended_by_us(Reason.BOOT_FAILED)), K.FAILED_BOOT, True, id="by us, for that"
        ),
        pytest.param(
            looks((LOADING, 1), left=5, **ended_by_us(Reason.SURPLUS, -60)), None, False,
            id="we ended an earlier one of that name",
        ),
        pytest.param(looks((LOADING, 1), left=12), None, False, id="no look for so long that it may have served"),
        pytest.param(
            looks((LOADING, 1), left=30, **reports(K.FAILED_BOOT)), K.FAILED_BOOT, True, id="its group does"
        ),
        pytest.param(looks((LOADING, 1), left=5, **reports(K.UNHEALTHY)), K.UNHEALTHY, True, id="unhealthy"),
    ],
)  # fmt: skip
def test_end_cause_of_a_departed_instance(boot: Boot, why: ActivityKind | None, *, failed: bool) -> None:
    assert (boot.ended_why, boots.failed(boot, spot=True)) == (why, failed)


@pytest.mark.parametrize("why", [None, K.ENDED_UNSTATED, K.FAILED_BOOT])
def test_later_and_more_precise_end_cause_is_kept(why: ActivityKind | None) -> None:
    left = looks((LOADING, 1), left=5)
    facts = boots.EndFacts(by_watchdogs={}, stated={}, spot={A}, **reports(K.PREEMPTED))
    (known,) = boots.observe([replace(left, ended_why=why)], [], {}, facts, START + 6 * MINUTE)
    assert known == replace(left, ended_why=K.PREEMPTED)
    (later,) = boots.observe([known], [], {}, replace(facts, events=()), START + 7 * MINUTE)
    assert later == known, "what is known once stays"


def test_instance_that_is_listed_again_has_not_ended() -> None:
    one = instance(1, launched_at=START)
    left = looks((LOADING, 1), left=5)
    nothing = boots.EndFacts(by_watchdogs={}, stated={}, events=(), spot={A})
    (back,) = boots.observe([left], [(one, "batch")], {}, nothing, START + 6 * MINUTE)
    assert (back.left_at, back.last_seen_at, back.first_seen_at) == (None, START + 6 * MINUTE, START + MINUTE)


def test_a_clock_set_back_never_dates_an_end_before_its_observation() -> None:
    left = looks((LOADING, 4), left=-10)
    assert left.left_at == left.last_seen_at == START + 4 * MINUTE


def test_pass_writes_only_changed_boots() -> None:
    fake = spread_fleet()
    make_watchdog(fake).apply()
    wrote: list[str] = []
    fake.before = lambda name: wrote.append(name)
    before = dict(fake.boots)
    make_watchdog(fake).apply()
    assert wrote.count("note_boots") == wrote.count("boots") == 1
    assert fake.boots == before, "they are ready"
    make_watchdog(fake).dry()
    assert wrote.count("note_boots") == 1, "a dry run writes nothing"


# how long boots take


def booted(number: int, minutes: float, **changes: Any) -> Boot:
    at = START + number * MINUTE
    plain = left_booting(A, 1, instance_id=f"i-{number}", launched_at=at, ready_at=at + minutes * MINUTE)[0]
    return replace(plain, **changes)


def test_boot_times_are_remembered_by_machine_type() -> None:
    old = [booted(number, 4) for number in range(20)]
    new = [booted(100 + number, 9) for number in range(4)]
    large = [booted(200, 30, machine_type="p5.48xlarge")]
    switched, never = booted(300, 24 * 60), booted(301, 0, ready_at=None)
    found = boots.by_machine_type([*new, *old, *large, switched, never])
    assert found == {"g6.xlarge": 9 * MINUTE, "p5.48xlarge": 30 * MINUTE}, "the newest count, in whatever order"


def wanting(target: int) -> tuple[FakeFleet, Callable[[], SpotWatchdog]]:
    """A pool of four at its first start, spot plentiful."""
    fake = idle_fleet(0)
    zones = {A: "us-east-1a", B: "us-east-1b", OD: None}
    groups = [
        {
            "type": "spot" if zone else "on-demand",
            "zone": zone,
            "name": name,
            "max": 4,
            "machine_types": ["g6.xlarge"],
        }
        for name, zone in zones.items()
    ]
    fleet = document(target=target, max=target, groups=groups, watchdogs={"idle": {}, "spot": {}})
    fake.seen.add(("spot", "batch", digests(fleet, "spot")["batch"]))
    fake.targets["batch"] = Target(pool="batch", value=target, version=1)
    fake.capacity = {A: 99, B: 99, OD: 99}
    return fake, lambda: SpotWatchdog(fleet, fake.ports())


@pytest.mark.parametrize("minutes", [5, 12, 20, 40])
def test_instances_with_boot_progress_are_not_bought_twice(minutes: float) -> None:
    fake, watchdog = wanting(4)
    for _ in range(90):
        for key, one in fake.instances.items():
            if fake.now - one.launched_at >= minutes * MINUTE and fake.agents[key].phase is Phase.CACHE:
                fake.agents[key] = replace(READY, phase_since=fake.now)
        watchdog().apply()
        fake.now += MINUTE
        assert not fake.alive(OD) and len(fake.alive(A)) + len(fake.alive(B)) <= 4
    assert fake.launched == 4


@pytest.mark.parametrize(
    ("silent", "minutes", "more"),
    [
        pytest.param(True, 7, False, id="no status"),
        pytest.param(True, 10, True, id="no status, and its boot should be over"),
        pytest.param(False, 47, False, id="it reports progress"),
        pytest.param(False, 55, True, id="for longer than any boot may take"),
    ],
)
def test_how_long_a_silent_boot_counts_as_capacity(minutes: int, *, silent: bool, more: bool) -> None:
    fake, watchdog = wanting(4)
    for _ in range(minutes):
        if silent:
            fake.agents.clear()
        watchdog().apply()
        fake.now += MINUTE
    assert (fake.launched > 4) == more


def test_boots_of_the_ledger_set_the_expectation_when_none_is_ready() -> None:
    fake, watchdog = wanting(1)
    for _ in range(40):
        fake.agents.clear()
        watchdog().apply()
        fake.now += MINUTE
    first = fake.launched
    fake, watchdog = wanting(1)
    fake.boots = {boot.key: boot for boot in (booted(-500, 35), booted(-400, 35))}
    for _ in range(35):
        fake.agents.clear()
        watchdog().apply()
        fake.now += MINUTE
    assert (first > 1, fake.launched) == (True, 1)


# engines that crash


def crash(fake: FakeFleet, *keys: str, after: timedelta = timedelta()) -> None:
    for key in keys:
        fake.agents[key] = replace(CRASHED, phase_since=fake.now - after)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_engines_that_crash_together_are_replaced_at_once(count: int) -> None:
    fake = idle_fleet(count)
    make_watchdog(fake).apply()
    fake.now += MINUTE
    crash(fake, *fake.agents)
    fake.capacity = {A: 99, B: 0, OD: 0}
    began = fake.now
    while not any(fake.agents[key].ready for key in fake.alive(A)):
        for key in fake.alive(A):
            if fake.now - fake.instances[key].launched_at >= BOOT and fake.agents[key].phase is not Phase.FAILED:
                fake.agents[key] = replace(READY, phase_since=fake.now)
        make_watchdog(fake).apply()
        fake.now += MINUTE
        assert fake.now - began < 10 * MINUTE, "after the time of one boot"
    alerts = [text for key, text in fake.messages.items() if "engine_crashed" in key]
    assert len(alerts) == 1 and "the engine ended again after 3 starts" in alerts[0]
    assert not any(boots.failed(boot, spot=False) for boot in fake.boots.values()), "a crash is not a failed boot"


def test_an_engine_that_crashes_again_and_again_is_replaced_less_and_less_often() -> None:
    """Each instance of a pool of one serves for two minutes."""
    fake = idle_fleet(1)
    make_watchdog(fake).apply()
    fake.capacity = {A: 99, B: 0, OD: 0}
    ended: list[float] = []
    for _ in range(6 * 60):
        fake.now += MINUTE
        for key in fake.alive(A):
            age = fake.now - fake.instances[key].launched_at
            if fake.agents[key].ready and age >= BOOT + 2 * MINUTE:
                crash(fake, key)
            elif fake.agents[key].phase is Phase.CACHE and age >= BOOT:
                fake.agents[key] = replace(READY, phase_since=fake.now)
        before = len(fake.ended)
        make_watchdog(fake).apply()
        ended += [(fake.now - START) / MINUTE] * (len(fake.ended) - before)
    waits = [later - earlier - 8 for earlier, later in zip(ended, ended[1:], strict=False)]
    assert waits[:6] == [0, 1, 2, 4, 8, 16], "the first is replaced at once"
    assert set(waits[6:]) == {30}
    assert any("engines crash repeatedly" in d.detail for plan in fake.plans for d in plan.decisions)


@pytest.mark.parametrize(
    ("crashes", "fixed", "waits"),
    [
        pytest.param([0], None, [], id="the first"),
        pytest.param([2, 1, 0], None, [], id="three within minutes are one"),
        pytest.param([20, 0], None, [1], id="the second"),
        pytest.param([40, 20, 0], None, [2], id="the third"),
        pytest.param([*range(200, -1, -20)], None, [30, 10], id="the eleventh, and the tenth waits, too"),
        pytest.param([80, 20, 0], None, [1], id="after an hour without crashes"),
        pytest.param([40, 20, 0], 10, [], id="a person has fixed it since"),
    ],
)
def test_replacement_delay_after_crashes(crashes: list[float], fixed: float | None, waits: list[float]) -> None:
    pool = spot_pool(
        [],
        [],
        crashes=[Crash(at=START - ago * MINUTE) for ago in crashes],
        retry_requested_at=None if fixed is None else START - fixed * MINUTE,
    )
    found = sorted(lifecycle.crash_waits(pool, START), reverse=True)
    assert [(due - START) / MINUTE for due in found] == waits


@pytest.mark.parametrize(("name", "kind"), [(A, CapacityType.SPOT), (OD, CapacityType.ON_DEMAND)])
def test_a_crash_does_not_close_a_group(name: str, kind: CapacityType) -> None:
    group = GroupView(name=name, capacity_type=kind, zone=None, desired=4, max=9)
    plain = PoolMember(id="", group=name, launched_at=START - 60 * MINUTE, failed=True, crashed_at=START)
    members = [replace(plain, id=f"i-{n}") for n in range(4)]
    found = {d.resource: d for d in decide([spot_pool([group], members, target=4)], START).decisions}
    assert {(found[m.id].action, found[m.id].reason) for m in members} == {(Action.END, Reason.ENGINE_CRASHED)}
    assert found[name].reason is not Reason.BOOTS_FAILING


def test_reserved_capacity_waits_in_place() -> None:
    """It is paid for, used or not; its group launches the next one when the crashed one is ended."""
    group = GroupView(name="res", capacity_type=CapacityType.RESERVED, zone=None, desired=1, max=1)
    spot = GroupView(name=A, capacity_type=CapacityType.SPOT, zone="us-east-1a", desired=0, max=9)
    member = PoolMember(id="i-1", group="res", launched_at=START - 60 * MINUTE, failed=True, crashed_at=START)
    for earlier, action in (([], Action.REPLACE), ([Crash(at=START - 20 * MINUTE, replaced=True)], Action.KEEP)):
        pool = spot_pool([group, spot], [member], target=1, crashes=earlier)
        found = {d.resource: d for d in decide([pool], START).decisions}
        assert (found["i-1"].action, found["i-1"].reason) == (action, Reason.ENGINE_CRASHED)


@pytest.mark.parametrize(
    ("changes", "ready_at", "age", "crashed"),
    [
        pytest.param({}, None, 10, False, id="a boot"),
        pytest.param({"has_served": True}, None, 10, True, id="its agent reports that it served"),
        pytest.param({}, 6, 10, True, id="the ledger does"),
        pytest.param({}, None, 300, True, id="no boot takes that long"),
        pytest.param({"phase_since": START - 290 * MINUTE}, None, 300, False, id="it failed long ago, as it booted"),
        pytest.param({"phase": Phase.DRAINED, "has_served": True}, 6, 10, False, id="it has not failed"),
    ],
)
def test_which_failures_are_crashes(
    changes: dict[str, Any], ready_at: float | None, age: float, *, crashed: bool
) -> None:
    one: Instance = instance(1, launched_at=START - age * MINUTE)
    known = None if ready_at is None else booted(0, 0, ready_at=one.launched_at + ready_at * MINUTE)
    assert boots.has_crashed(known, one, replace(CRASHED, **changes), 48 * MINUTE, START) == crashed
