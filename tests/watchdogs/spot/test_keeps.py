"""Instances that people keep, or drained themselves, are unchanged and block nothing."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.domain import tags
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import Phase
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.plain import READY, START, spot_pool
from tests.fixtures.watchdogs.spot import (
    FIRST,
    FOURTH,
    OD,
    SECOND,
    THIRD,
    A,
    B,
    make_watchdog,
    spread_fleet,
    with_on_demand,
)
from watchdogs.spot import lifecycle
from watchdogs.spot.pool_view import PoolMember


def brake(scope: str, kind: BrakeKind = BrakeKind.KEEP) -> Brake:
    return Brake(since=START, kind=kind, scope=scope, owner="ana", reason="benchmark", until=None)


def keep_by_tag(fleet: FakeFleet, name: str) -> None:
    until = tags.write_time(START + timedelta(hours=8))
    fleet.instances[name] = replace(fleet.instances[name], tags={tags.KEEP_UNTIL: until})


def surplus() -> FakeFleet:
    """Two spot instances for a target of one; the first would go."""
    fleet = spread_fleet()
    fleet.targets["batch"] = replace(fleet.targets["batch"], value=1)
    return fleet


@pytest.mark.parametrize(
    ("scope", "ended"),
    [
        pytest.param("", [FIRST], id="none is kept"),
        pytest.param(FIRST, [SECOND], id="the one that would go"),
        pytest.param("its tag", [SECOND], id="the same, by its tag"),
        pytest.param(SECOND, [FIRST], id="the other one"),
        pytest.param("batch", [], id="the pool"),
        pytest.param("all", [], id="all"),
        pytest.param("other", [FIRST], id="another pool"),
    ],
)
def test_surplus_skips_kept_instances(scope: str, ended: list[str]) -> None:
    fleet = surplus()
    if scope == "its tag":
        keep_by_tag(fleet, FIRST)
    elif scope:
        fleet.brakes.append(brake(scope))
    decisions = {d.resource: d for d in make_watchdog(fleet).apply().plan.decisions}
    assert fleet.ended == fleet.drains == ended
    if FIRST not in ended:
        assert decisions[FIRST].reason is Reason.KEPT_BY_PEOPLE
        assert decisions[FIRST].detail in ("by ana until `gpufleet resume`: benchmark", "until 2026-11-21 16:00 UTC")


@pytest.mark.parametrize(
    ("kept", "ended"),
    [
        pytest.param([], [THIRD], id="none"),
        pytest.param([THIRD], [FOURTH], id="the one that would go"),
        pytest.param([THIRD, FOURTH], [], id="both"),
    ],
)
def test_kept_on_demand_does_not_block_the_end_of_another(kept: list[str], ended: list[str]) -> None:
    fleet = with_on_demand()
    fleet.brakes += [brake(name) for name in kept]
    decisions = {d.resource: d for d in make_watchdog(fleet).apply().plan.decisions}
    assert fleet.ended == ended
    assert all(decisions[name].detail == "by ana until `gpufleet resume`: benchmark" for name in kept)
    assert decisions[OD].reason is (Reason.SPOT_IS_BACK if ended else Reason.KEPT_BY_PEOPLE)


@pytest.mark.parametrize("scope", [FIRST, "batch", "all", "its tag"])
def test_a_keep_that_comes_while_it_drains_still_holds(scope: str) -> None:
    fleet = surplus()

    def before(call: str) -> None:
        if call == "drain" and scope == "its tag":
            keep_by_tag(fleet, FIRST)
        elif call == "drain":
            fleet.brakes.append(brake(scope))

    fleet.before = before
    make_watchdog(fleet).apply()
    assert fleet.drains == [FIRST] and not fleet.ended
    assert "kept" in fleet.outcomes[-1].outcome.detail
    fleet.before = lambda _: None
    decisions = {d.resource: d for d in make_watchdog(fleet).apply().plan.decisions}
    assert not fleet.ended and decisions[FIRST].reason is Reason.KEPT_BY_PEOPLE


def test_a_boot_that_failed_is_kept_for_who_wants_to_look_at_it() -> None:
    fleet = spread_fleet()
    fleet.agents[FIRST] = replace(READY, phase=Phase.FAILED, ready=False)
    fleet.brakes.append(brake(FIRST))
    fleet.capacity[B] = 1
    make_watchdog(fleet).apply()
    assert not fleet.ended
    assert len(fleet.alive(B)) == 2, "another one is asked for all the same"


@pytest.mark.parametrize(
    ("owner", "ended"),
    [
        pytest.param(DrainOwner.PERSON, [THIRD], id="by hand: it stays for as long as she likes"),
        pytest.param(DrainOwner.ROLLOUT, [], id="on its way out: the next one waits"),
    ],
)
def test_draining_instance_blocks_the_next_end_unless_a_person_drained_it(
    owner: DrainOwner, ended: list[str]
) -> None:
    fleet = with_on_demand()
    fleet.targets["batch"] = replace(fleet.targets["batch"], value=1)
    left = replace(READY, phase=Phase.DRAINED, ready=False, draining=True, drained=True, drain_by=owner)
    fleet.agents[FIRST] = left
    make_watchdog(fleet).apply()
    assert fleet.ended == ended
    assert fleet.alive(A) == [FIRST]


@pytest.mark.parametrize(
    ("leaves", "waits"),
    [
        pytest.param({"drain_by": DrainOwner.CLOUD}, True, id="its cloud takes it"),
        pytest.param({"drain_by": DrainOwner.IDLE}, True, id="idle drains it"),
        pytest.param({"drain_by": DrainOwner.IDLE, "drained": True}, False, id="idle drained it: it serves nothing"),
        pytest.param({"drain_by": DrainOwner.SPOT}, True, id="spot drains it"),
        pytest.param({}, True, id="an unknown drain owner"),
        pytest.param({"drain_by": DrainOwner.SPOT, "kept_by": "ana"}, False, id="spot drained it and ana keeps it"),
        pytest.param({"drain_by": DrainOwner.PERSON}, False, id="ana drained it"),
        pytest.param({"drain_by": DrainOwner.PERSON, "under_notice": True}, True, id="ana drained it, it is taken"),
        pytest.param(
            {"drain_by": DrainOwner.IDLE, "drained": True, "under_notice": True},
            True,
            id="idle drained it, it is taken",
        ),
    ],
)
def test_which_drains_the_next_end_waits_for(leaves: dict[str, Any], waits: bool) -> None:
    stays = PoolMember(id="s", group=A, launched_at=START)
    going = replace(stays, id="l", leaving=True, **leaves)
    assert lifecycle.is_draining_any(spot_pool([], [stays, going]), START) is waits


@pytest.mark.parametrize("owner", [DrainOwner.SPOT, DrainOwner.ROLLOUT, None], ids=str)
def test_endless_drain_blocks_no_other_end_and_is_notified_daily(
    owner: DrainOwner | None,
) -> None:
    fleet = with_on_demand()
    began = fleet.now
    hangs = replace(READY, phase=Phase.DRAINING, ready=False, draining=True, drain_by=owner, phase_since=began)
    fleet.agents[FIRST] = hangs
    fleet.targets["batch"] = replace(fleet.targets["batch"], value=1)
    for _ in range(24 * 4 - 1):
        make_watchdog(fleet).apply()
        assert bool(fleet.ended) is (fleet.now - began > timedelta(minutes=16))
        fleet.now = fleet.now.replace(second=0) + timedelta(minutes=15)
    assert fleet.ended[0] == THIRD, "fallback ends first"
    messages = [text for key, text in fleet.messages.items() if key.startswith("spot:draining:batch")]
    assert len(messages) == 2 and FIRST in messages[0], "the day and the next one"
    assert FIRST not in fleet.ended
