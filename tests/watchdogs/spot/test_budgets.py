"""How much the spot watchdog ends of its own choice, in a run and in an hour; what must go is not held up."""

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from gpufleet.domain.decisions import Action, ChangeBudget, PastAction, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType, Phase
from gpufleet.domain.policies import SpotPolicy
from tests.fixtures.watchdogs.fake_fleet import KilledError
from tests.fixtures.watchdogs.plain import READY, START, instance, spot_pool
from tests.fixtures.watchdogs.spot import THIRD, A, make_watchdog, with_on_demand
from watchdogs import boots
from watchdogs.spot.decide import decide
from watchdogs.spot.limits import chosen_ends
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView

LARGE = 100
"""Instances of which a twentieth is five, a fifth is twenty."""


def member(name: str, **changes: object) -> PoolMember:
    at = START - timedelta(hours=2)
    plain = PoolMember(id=name, group=name.rsplit("/", 1)[0], launched_at=at, ready_since=at, usd_per_hour=Decimal(1))
    return replace(plain, **changes)  # type: ignore[arg-type]


def pool(name: str = "chat", spot: int = 2, on_demand: int = 1, *extra: PoolMember, **more: object) -> SpotPoolView:
    """Spot for a target of two, ready for long, and on-demand that replaced it."""
    groups = [
        GroupView(name=f"{name}-a", capacity_type=CapacityType.SPOT, zone="us-east-1a", desired=spot, max=200),
        GroupView(name=f"{name}-od", capacity_type=CapacityType.ON_DEMAND, zone=None, desired=on_demand, max=9),
    ]
    members = [member(f"{name}-a/{n}") for n in range(spot)] + [member(f"{name}-od/{n}") for n in range(on_demand)]
    policy = SpotPolicy(max_stops_per_run=2, max_stops_per_hour=4)
    wanted = {"name": name, "target": spot, "max": 200, "policy": policy}
    return spot_pool(groups, [*members, *extra], **wanted | more)


def draining_member(name: str, **changes: object) -> PoolMember:
    return member(name, **{"ready_since": None, "leaving": True, "drain_by": DrainOwner.SPOT} | changes)


def about(pools: list[SpotPoolView]) -> dict[str, tuple[Action, Reason]]:
    """What is decided of instances."""
    return {d.resource: (d.action, d.reason) for d in decide(pools, START).decisions if "/" in d.resource}


@pytest.mark.parametrize(
    ("pools", "ends", "kept"),
    [
        pytest.param([pool()], 1, None, id="within the budget"),
        pytest.param([pool(ended_this_hour=3)], 1, None, id="the last of the hour"),
        pytest.param([pool(ended_this_hour=4)], 0, Reason.HOUR_BUDGET, id="the hour is used up"),
        pytest.param([pool(policy=SpotPolicy(max_stops_per_run=0))], 0, Reason.RUN_BUDGET, id="none a run"),
        pytest.param([pool(n) for n in "abc"], 2, Reason.RUN_BUDGET, id="two a run over all pools"),
        pytest.param([pool("a"), pool("b", ended_this_hour=4)], 0, Reason.HOUR_BUDGET, id="an hour over all pools"),
        pytest.param([*(pool(n) for n in "abc"), pool("d", LARGE, 0)], 3, None, id="a large fleet has more"),
        pytest.param(
            [pool("a", 2, 1, draining_member("a-x/1")), pool("b", ended_this_hour=3)],
            0,
            Reason.HOUR_BUDGET,
            id="one that drains by choice counts before it has ended",
        ),
        pytest.param(
            [pool("a", 2, 1, draining_member("a-x/1", drain_by=DrainOwner.CLOUD)), pool("b", ended_this_hour=3)],
            1,
            None,
            id="one that its cloud takes does not",
        ),
        pytest.param(
            [pool("a", 2, 1, draining_member("a-x/1", under_notice=True)), pool("b", ended_this_hour=3)],
            1,
            None,
            id="nor does one that its cloud takes while it drains by choice",
        ),
        pytest.param(
            [
                pool("a", 2, 1, draining_member("a-x/1", ends_at=START + timedelta(minutes=5))),
                pool("b", ended_this_hour=3),
            ],
            2,
            None,
            id="nor does one whose time ends: both go",
        ),
        pytest.param(
            [
                pool("a", 2, 1, draining_member("a-x/1", kept_by="us")),
                pool("b", ended_this_hour=3),
            ],
            1,
            Reason.HOUR_BUDGET,
            id="nor does a kept instance: the last end of the hour is in its pool",
        ),
    ],
)
def test_chosen_ends_wait_for_the_budget(pools: list[SpotPoolView], ends: int, kept: Reason | None) -> None:
    decided = about(pools).values()
    assert sum(action is Action.END for action, _ in decided) == ends
    over = {reason for action, reason in decided if action is Action.KEEP}
    assert over == (set() if kept is None else {kept})


@pytest.mark.parametrize(
    ("one", "more", "reason"),
    [
        pytest.param(
            draining_member("chat-a/x", under_notice=True, drained=True), {}, Reason.PREEMPTED, id="a notice"
        ),
        pytest.param(member("chat-a/x", ready_since=None, failed=True), {}, Reason.BOOT_FAILED, id="a failed boot"),
        pytest.param(member("chat-od/x", ends_at=START + timedelta(minutes=1)), {}, Reason.RUN_ENDS, id="its time"),
        pytest.param(
            draining_member("chat-a/x", drained=True),
            {},
            Reason.SURPLUS,
            id="begun",
        ),
        pytest.param(
            member("chat-r/x"),
            {"closes": START - timedelta(minutes=1)},
            Reason.TERM_ENDS,
            id="a block",
        ),
    ],
)
def test_mandatory_ends_ignore_the_budget(one: PoolMember, more: dict[str, object], reason: Reason) -> None:
    view = pool("chat", 2, 0, one, ended_this_hour=4)
    if more:
        block = GroupView(name="chat-r", capacity_type=CapacityType.RESERVED, zone="us-east-1a", desired=1, max=1)
        view = replace(view, groups=[*view.groups, replace(block, **more)])  # type: ignore[arg-type]
    assert about([view])[one.id] == (Action.END, reason)


def test_spot_is_asked_for_whatever_the_budget() -> None:
    decided = decide([pool("chat", 2, 0, target=3, ended_this_hour=4)], START).decisions
    found = next(d for d in decided if d.resource == "chat-a")
    assert (found.action, found.reason, found.to_size) == (Action.RESIZE, Reason.SPOT_WANTED, 3)


def test_the_most_expensive_ends_first() -> None:
    pools = [pool(name) for name in "abc"]
    expensive = [replace(m, usd_per_hour=Decimal(9)) if m.group == "c-od" else m for m in pools[2].members]
    decided = about([*pools[:2], replace(pools[2], members=expensive)])
    assert {key for key, (action, _) in decided.items() if action is Action.END} == {"a-od/0", "c-od/0"}


@pytest.mark.parametrize(
    ("used", "moves"), [pytest.param(3, True, id="budget left"), pytest.param(4, False, id="budget used")]
)
def test_a_move_begins_only_if_the_budget_allows_its_end(used: int, moves: bool) -> None:
    """One and two spares in one zone, whose loss would take them all; the other zone is safe."""
    view = pool("chat", 3, 0, target=1, spare=2, ended_this_hour=used)
    bad = replace(view.groups[0], losses_per_hour=0.06)
    safe = replace(bad, name="chat-b", zone="us-east-1b", losses_per_hour=0.001, desired=0)
    decided = decide([replace(view, groups=[bad, safe, view.groups[1]])], START).decisions
    found = next(d for d in decided if d.resource == safe.name)
    expected = (Action.RESIZE, Reason.SAFER_ZONE, 1) if moves else (Action.KEEP, Reason.HOUR_BUDGET, None)
    assert (found.action, found.reason, found.to_size) == expected


def test_the_plan_carries_its_budget() -> None:
    plan = decide([pool("a", ended_this_hour=1), pool("b", LARGE, 0)], START)
    assert plan.budget == ChangeBudget(per_run=5, per_hour=20, used_this_hour=1)


def settings(hour: int) -> dict[str, object]:
    return {"idle": {}, "spot": {"fallback_after": "20s", "max_stops_per_hour": hour}}


def test_the_hour_is_read_from_the_ledger_and_passes() -> None:
    fleet = with_on_demand()
    watchdog = make_watchdog(fleet, watchdogs=settings(1))
    watchdog.apply()
    held = {d.resource: d.reason for d in watchdog.apply().plan.decisions}
    assert fleet.ended == [THIRD] and Reason.HOUR_BUDGET in held.values()
    fleet.now += timedelta(hours=1, minutes=1)
    make_watchdog(fleet, watchdogs=settings(1)).apply()
    assert len(fleet.ended) == 2


@pytest.mark.parametrize("step", ["drain", "intend", "end", "notify", "record_outcome"])
@pytest.mark.parametrize("killed", ["before", "after"])
def test_an_end_of_a_killed_pass_counts_once(step: str, killed: str) -> None:
    """Killed at any step of an end, the passes after it end one in the hour, not two and not none."""
    fleet = with_on_demand()
    calls = {"left": 1 if killed == "before" else 2}

    def kill(name: str) -> None:
        if name == step or (calls["left"] < 2 and killed == "after"):
            calls["left"] -= 1
            if calls["left"] == 0:
                raise KilledError

    fleet.before = kill
    with suppress(KilledError):
        make_watchdog(fleet, watchdogs=settings(1)).apply()
    fleet.before = lambda _: None
    for _ in range(4):
        fleet.now += timedelta(minutes=1)
        make_watchdog(fleet, watchdogs=settings(1)).apply()
    assert fleet.ended == [THIRD]
    assert fleet.drains == [THIRD]
    assert not any(boots.failed(boot, spot=False) for boot in fleet.boots.values()), "its boot had not failed"


def test_a_failed_boot_is_ended_whatever_the_budget() -> None:
    fleet = with_on_demand()
    fleet.agents[instance(1).id] = replace(READY, phase=Phase.FAILED, ready=False)
    make_watchdog(fleet, watchdogs=settings(0)).apply()
    assert fleet.ended == [instance(1).id]
    assert fleet.alive(A) == []


def test_end_that_is_recorded_twice_counts_once_in_the_budget() -> None:
    past_end = PastAction(resource="i-1", pool="chat", action=Action.END, reason=Reason.SURPLUS, at=START)
    others = [
        replace(past_end, resource="i-2", reason=Reason.PREEMPTED),
        replace(past_end, resource="g", action=Action.RESIZE),
    ]
    assert chosen_ends([past_end, past_end, *others]) == {"chat": 1}


def test_a_kept_decision_states_the_original_action() -> None:
    (kept,) = [d for d in decide([pool(ended_this_hour=4)], START).decisions if d.resource == "chat-od/0"]
    assert kept.detail.startswith("would end: spot is back")
