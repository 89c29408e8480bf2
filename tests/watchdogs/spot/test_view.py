"""The view of the spot watchdog, built from clouds, agents, prices and its ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import CapacityType, Instance, InstanceState, Phase
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, mark
from tests.fixtures.watchdogs.plain import READY, START, document, instance
from tests.fixtures.watchdogs.spot import OD, A, B, spread_fleet
from watchdogs.spot.pool_view import GroupView, PoolMember, SpotPoolView
from watchdogs.spot.watchdog import SpotWatchdog

FIRST = instance(1).id
MINUTE = timedelta(minutes=1)
LAUNCHED = instance(1).launched_at
SMALL, LARGE = "g6.xlarge", "g6.2xlarge"


@dataclass
class Prices:
    """By machine type; absent: unknown."""

    spot: Mapping[str, str]
    on_demand: Mapping[str, str]

    def usd_per_hour(self, instance: Instance) -> Decimal | None:
        return None

    def spot_usd_per_hour(self, machine_type: str, zone: str) -> Decimal | None:
        return Decimal(self.spot[machine_type]) if machine_type in self.spot else None

    def on_demand_usd_per_hour(self, machine_type: str) -> Decimal | None:
        return Decimal(self.on_demand[machine_type]) if machine_type in self.on_demand else None

    def list_usd_per_hour(self, machine_type: str, capacity_type: CapacityType, zone: str | None) -> Decimal | None:
        if capacity_type is CapacityType.SPOT:
            return self.spot_usd_per_hour(machine_type, zone or "")
        return self.on_demand_usd_per_hour(machine_type)


def seen(fleet: FakeFleet, prices: Prices | None = None, **pool: Any) -> SpotPoolView:
    ports = fleet.ports() if prices is None else replace(fleet.ports(), prices=prices)
    (view,) = SpotWatchdog(document(**pool), ports).dry().observed
    return view


def member(fleet: FakeFleet, name: str = FIRST) -> PoolMember:
    (found,) = [one for one in seen(fleet).members if one.id == name]
    return found


BOOTS: dict[str, Any] = {"phase": Phase.CACHE, "ready": False}
SINCE = START - timedelta(hours=1)


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        pytest.param(
            replace(READY, phase_since=SINCE),
            {
                "ready_since": SINCE,
                "not_ready_since": None,
                "agent_unreachable": False,
                "leaving": False,
                "failed": False,
                "requests_in_flight": 0,
            },
            id="ready",
        ),
        pytest.param(READY, {"ready_since": LAUNCHED, "not_ready_since": None}, id="ready, without a time"),
        pytest.param(replace(READY, requests_running=3.0), {"requests_in_flight": 3.0}, id="at work"),
        pytest.param(replace(READY, requests_running=None), {"requests_in_flight": 0}, id="without a request count"),
        pytest.param(
            None,
            {"ready_since": None, "not_ready_since": START, "agent_unreachable": True, "requests_in_flight": 0},
            id="silent",
        ),
        pytest.param(
            replace(READY, **BOOTS, phase_since=SINCE), {"ready_since": None, "not_ready_since": SINCE}, id="boots"
        ),
        pytest.param(replace(READY, **BOOTS), {"not_ready_since": START}, id="boots, without a time"),
        pytest.param(
            replace(READY, **BOOTS, phase_since=START + MINUTE),
            {"not_ready_since": START},
            id="by a clock that is fast",
        ),
        pytest.param(
            replace(READY, ready=False, phase_since=SINCE),
            {"ready_since": None, "not_ready_since": START},
            id="was ready, and is not: without a time",
        ),
        pytest.param(
            replace(
                READY,
                phase=Phase.DRAINING,
                draining=True,
                drain_by=DrainOwner.PERSON,
                reason="look",
                phase_since=SINCE,
            ),
            {"ready_since": None, "leaving": True, "drain_by": DrainOwner.PERSON, "leaving_because": "look"},
            id="drains, and its engine answers still",
        ),
        pytest.param(
            replace(READY, ready=False, draining=True, drain_by=DrainOwner.IDLE, notice_at=SINCE),
            {"leaving": True, "drain_by": DrainOwner.IDLE, "under_notice": True, "drained": False},
            id="idle drains it and the cloud takes it",
        ),
        pytest.param(
            replace(READY, phase=Phase.DRAINED, ready=False, drained=True),
            {"leaving": True, "leaving_because": "", "drained": True, "drain_by": None, "under_notice": False},
            id="has drained",
        ),
        pytest.param(
            replace(READY, phase=Phase.FAILED, ready=False), {"failed": True, "leaving": False}, id="failed"
        ),
    ],
)
def test_agent_status_in_the_pool_view(status: AgentStatus | None, fields: Mapping[str, Any]) -> None:
    fleet = spread_fleet()
    del fleet.agents[FIRST]
    if status is not None:
        fleet.agents[FIRST] = status
    found = member(fleet)
    assert {name: getattr(found, name) for name in fields} == fields


def test_idle_marks_are_in_the_pool_view() -> None:
    fleet = spread_fleet()
    assert not member(fleet).is_marked
    mark(fleet, 1, SINCE)
    assert member(fleet).is_marked


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        pytest.param({}, True, id="lives"),
        pytest.param({"state": InstanceState.STOPPING}, False, id="goes"),
        pytest.param({"group": "of-another-owner"}, False, id="of another group"),
        pytest.param({"group": None}, False, id="of none"),
    ],
)
def test_which_instances_are_members(changes: Mapping[str, Any], there: bool) -> None:
    fleet = spread_fleet()
    fleet.instances[FIRST] = replace(fleet.instances[FIRST], **changes)
    fleet.groups[A] = replace(fleet.groups[A], instance_ids=())
    assert (FIRST in {one.id for one in seen(fleet).members}) is there


@pytest.mark.parametrize(
    ("leaving", "unseen"),
    [pytest.param(set[str](), 1, id="listed and dead"), pytest.param({FIRST}, 0, id="its group is ending it")],
)
def test_which_listed_instances_are_not_alive(leaving: set[str], unseen: int) -> None:
    fleet = spread_fleet()
    fleet.instances[FIRST] = replace(fleet.instances[FIRST], state=InstanceState.STOPPING)
    fleet.groups[A] = replace(fleet.groups[A], leaving=frozenset(leaving))
    assert group_of(seen(fleet), A).unseen == unseen
    assert group_of(seen(fleet), B).unseen == 0


def group_of(view: SpotPoolView, name: str) -> GroupView:
    (found,) = [group for group in view.groups if group.name == name]
    return found


SPOT = {"type": "spot", "zone": "us-east-1a", "name": A, "max": 4, "machine_types": [SMALL, LARGE]}
ON_DEMAND = {"type": "on-demand", "zone": None, "name": OD, "max": 2, "machine_types": [SMALL, LARGE]}


@pytest.mark.parametrize(
    ("prices", "groups", "spot", "on_demand", "compared"),
    [
        pytest.param(
            Prices({SMALL: "0.20", LARGE: "0.40"}, {SMALL: "0.80", LARGE: "1.60"}),
            [SPOT, ON_DEMAND], "0.20", "0.80", "0.80", id="the cheapest of its types",
        ),
        pytest.param(
            Prices({LARGE: "0.40"}, {LARGE: "1.60"}),
            [SPOT, ON_DEMAND], "0.40", "1.60", "1.60", id="of those that are known",
        ),
        pytest.param(Prices({}, {}), [SPOT, ON_DEMAND], None, None, None, id="none is known"),
        pytest.param(
            Prices({LARGE: "0.40"}, {SMALL: "0.80", LARGE: "1.60"}),
            [{**SPOT, "machine_types": [LARGE]}, ON_DEMAND], "0.40", "0.80", "1.60",
            id="spot is compared with what its own types cost",
        ),
        pytest.param(
            Prices({SMALL: "0.20"}, {SMALL: "0.80"}), [ON_DEMAND], None, "0.80", "0.80",
            id="without spot, the types of what is on demand",
        ),
    ],
)  # fmt: skip
def test_group_prices_in_the_pool_view(
    prices: Prices, groups: list[Any], spot: str | None, on_demand: str | None, compared: str | None
) -> None:
    view = seen(spread_fleet(), prices, groups=groups)
    costs = {group.name: group.usd_per_hour for group in view.groups}
    wanted = {OD: on_demand} | ({A: spot} if SPOT["name"] in costs else {})
    assert costs == {name: None if usd is None else Decimal(usd) for name, usd in wanted.items()}
    assert view.on_demand_usd == (None if compared is None else Decimal(compared))


def test_reserved_group_has_no_price() -> None:
    block = {"type": "reserved", "zone": "us-east-1a", "name": "batch-res", "max": 2, "reservation": "cr-1"}
    fleet = spread_fleet()
    fleet.groups["batch-res"] = replace(
        fleet.groups[OD], name="batch-res", capacity_type=CapacityType.RESERVED, zone="us-east-1a"
    )
    assert group_of(seen(fleet, groups=[block, ON_DEMAND]), "batch-res").usd_per_hour is None


def noted(fleet: FakeFleet, reason: Reason, kind: OutcomeKind, at: datetime) -> None:
    end = Decision(resource=FIRST, pool="batch", action=Action.END, reason=reason)
    fleet.record_outcome("spot", Outcome(decision=end, kind=kind), at)


@pytest.mark.parametrize(
    ("ago", "kind", "asked"),
    [
        pytest.param(5, OutcomeKind.WAITING, True, id="it drains, as far as is known"),
        pytest.param(60, OutcomeKind.WAITING, True, id="an hour ago"),
        pytest.param(61, OutcomeKind.WAITING, False, id="longer ago"),
        pytest.param(5, OutcomeKind.NO_LONGER_TRUE, False, id="its end was off"),
    ],
)
def test_which_instances_were_asked_to_drain(ago: int, kind: OutcomeKind, asked: bool) -> None:
    fleet = spread_fleet()
    noted(fleet, Reason.SURPLUS, kind, START - ago * MINUTE)
    assert member(fleet).asked is asked
    assert not member(fleet, instance(2).id).asked


@pytest.mark.parametrize(
    ("ago", "ended"), [pytest.param(60, 1, id="an hour ago"), pytest.param(61, 0, id="longer ago")]
)
def test_which_ends_count_in_the_last_hour(ago: int, ended: int) -> None:
    fleet = spread_fleet()
    noted(fleet, Reason.SURPLUS, OutcomeKind.DONE, START - ago * MINUTE)
    assert seen(fleet).ended_this_hour == ended


@pytest.mark.parametrize(
    ("reason", "kind", "as_kind"),
    [
        pytest.param(Reason.PREEMPTED, ActivityKind.ENDED, ActivityKind.PREEMPTED, id="ended under a notice"),
        pytest.param(Reason.PREEMPTED, ActivityKind.LAUNCHED, ActivityKind.LAUNCHED, id="it was launched, too"),
        pytest.param(Reason.SURPLUS, ActivityKind.ENDED, ActivityKind.ENDED, id="ended by choice"),
    ],
)
def test_end_after_a_notice_is_a_loss(reason: Reason, kind: ActivityKind, as_kind: ActivityKind) -> None:
    fleet = spread_fleet()
    noted(fleet, reason, OutcomeKind.DONE, START - MINUTE)
    fleet.activities.append(Activity(id="1", group=A, kind=kind, at=START - MINUTE, instance_id=FIRST))
    found = [event.kind for event in seen(fleet, spare=1).events if event.at == START - MINUTE]
    assert found == [as_kind]
