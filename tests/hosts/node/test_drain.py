"""The timelines of notices of 120 s (EC2) and 30 s (Google Cloud), second by second, on a manual clock."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import Phase
from gpufleet.logs import SILENT
from hosts.node import stop_marker
from hosts.node.drain import DrainFacts, DrainStep, Order, merge, next_step
from hosts.node.ports import CloudNotice, EngineLoad, Notice, UnitState
from hosts.node.state import NodeState
from serving import engine_container
from tests.fixtures.node.fake_node import START, FakeUnits, Machine, settings

MARGIN = timedelta(seconds=5)
QUIET_TIME = timedelta(seconds=3)


@pytest.fixture
def machine(bucket: Path, tmp_path: Path) -> Machine:
    booted = Machine(root=tmp_path, bucket=bucket)
    assert booted.boot.run()
    booted.pass_time(timedelta(seconds=1))
    return booted


def state_of_file(file: Path) -> NodeState:
    def now() -> datetime:
        return START

    return NodeState(instance="i-1", pool="chat", file=file, now=now, log=SILENT)


def stopped_at(machine: Machine, seconds: float) -> bool:
    """Return whether the engine was stopped within that number of seconds."""
    machine.pass_time(timedelta(seconds=seconds))
    return ("stop", engine_container.UNIT) in machine.units.calls


def test_a_notice_of_120_s_lets_requests_end_and_stops_the_idle_engine(machine: Machine) -> None:
    machine.engine.running = 8
    machine.cloud.announced = [CloudNotice(kind=Notice.PREEMPTION, at=machine.clock.now + timedelta(seconds=120))]
    machine.pass_time(timedelta(seconds=6))
    assert machine.state.agent_check() == "drain"
    assert machine.state.status()["reason"] == "preempted by its cloud"
    assert not stopped_at(machine, 60)
    machine.engine.running = 0
    assert not stopped_at(machine, 2.5)
    assert stopped_at(machine, 2)
    machine.pass_time(timedelta(seconds=1))
    assert machine.state.phase is Phase.DRAINED
    assert machine.state.counters.requests_cut == 0


def test_endless_requests_are_cut_one_margin_before_the_deadline(machine: Machine) -> None:
    machine.engine.running = 3
    machine.engine.waiting = 1
    over = machine.clock.now + timedelta(seconds=120)
    machine.cloud.announced = [CloudNotice(kind=Notice.PREEMPTION, at=over)]
    machine.pass_time(timedelta(seconds=114))
    assert ("stop", engine_container.UNIT) not in machine.units.calls
    machine.pass_time(timedelta(seconds=2))
    assert ("stop", engine_container.UNIT) in machine.units.calls
    machine.pass_time(timedelta(seconds=1))
    assert machine.state.phase is Phase.DRAINED
    assert machine.clock.now < over
    assert machine.state.counters.requests_cut == 4


def test_an_engine_that_hangs_in_its_shutdown_is_killed_before_the_deadline(machine: Machine) -> None:
    machine.units.on_stop = lambda _name: UnitState.DEACTIVATING
    machine.engine.running = 3
    over = machine.clock.now + timedelta(seconds=30)
    machine.cloud.announced = [CloudNotice(kind=Notice.PREEMPTION, at=over)]
    machine.pass_time(timedelta(seconds=30))
    assert ("kill", engine_container.UNIT) in machine.units.calls
    assert machine.state.phase is Phase.DRAINED
    assert machine.state.since < over


def test_the_engine_is_stopped_only_after_all_routers_are_notified(machine: Machine) -> None:
    for router in ("10.0.0.2", "10.0.0.3"):
        assert machine.state.agent_check(router) == "up ready"
    machine.agent.ask_to_drain(DrainOwner.PERSON, "by hand", timedelta(seconds=60))
    machine.state.agent_check("10.0.0.2")
    assert not stopped_at(machine, 8), "10.0.0.3 asked 8 s ago, received the answer 'up ready', and may send requests"
    machine.state.agent_check("10.0.0.3")
    assert not stopped_at(machine, 2.5), "a request that it sent before it knew may be on its way"
    assert stopped_at(machine, 1.5)
    assert machine.state.counters.requests_cut == 0


def test_a_missing_router_delays_no_drain(machine: Machine) -> None:
    machine.state.agent_check("10.0.0.2")
    machine.agent.ask_to_drain(DrainOwner.PERSON, "by hand", timedelta(seconds=60))
    assert not stopped_at(machine, 10)
    assert stopped_at(machine, 5)


def test_agent_checks_from_other_hosts_delay_no_drain(machine: Machine) -> None:
    """Any host in the group's network can send agent checks, from any number of addresses."""
    for number in range(1000):
        machine.state.agent_check(f"10.0.{number // 250}.{number % 250}")
    machine.agent.ask_to_drain(DrainOwner.PERSON, "by hand", timedelta(seconds=60))
    assert stopped_at(machine, 15)


def test_routers_are_notified_before_the_engine_stops_even_after_a_late_notice(machine: Machine) -> None:
    """A notice of 10 s, of which polling takes up to 5 s: the margin of 5 s would stop the engine immediately."""
    machine.engine.running = 2
    over = machine.clock.now + timedelta(seconds=10)
    machine.cloud.announced = [CloudNotice(kind=Notice.PREEMPTION, at=over)]
    while machine.state.order is None:
        machine.pass_time(timedelta(seconds=0.5))
    assert machine.state.agent_check("10.0.0.2") == "drain"
    assert not stopped_at(machine, 2)
    machine.pass_time(over - machine.clock.now)
    assert ("stop", engine_container.UNIT) in machine.units.calls
    assert machine.state.phase is Phase.DRAINED


def test_an_engine_that_systemd_stops_is_out_of_rotation_first(machine: Machine) -> None:
    """The machine shuts down or an operator runs `systemctl stop`: the agent gets no order."""
    assert machine.state.agent_check() == "up ready"
    file = stop_marker.path_of(machine.root)
    file.touch()
    assert machine.state.agent_check() == "drain"
    file.unlink()
    assert machine.state.agent_check() == "up ready"


def test_a_drained_engine_is_stopped_without_waiting_again(machine: Machine) -> None:
    machine.agent.ask_to_drain(DrainOwner.PERSON, "by hand", timedelta(seconds=60))
    assert stopped_at(machine, 5)
    assert stop_marker.path_of(machine.root).exists()


def test_all_steps_fit_into_a_notice_of_30_s(machine: Machine) -> None:
    machine.engine.running = 1
    over = machine.clock.now + timedelta(seconds=30)
    machine.cloud.announced = [CloudNotice(kind=Notice.PREEMPTION, at=over)]
    machine.pass_time(timedelta(seconds=20))
    machine.engine.running = 0
    machine.pass_time(timedelta(seconds=6))
    assert machine.state.phase is Phase.DRAINED
    assert over - machine.state.since >= MARGIN


@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(hours=-1)], ids=["an hour slow", "an hour fast"])
def test_a_clock_that_is_off_by_an_hour_costs_no_request_and_no_drain(machine: Machine, off: timedelta) -> None:
    machine.engine.running = 2
    seen = machine.clock.now
    machine.cloud.announced = [CloudNotice(kind=Notice.PREEMPTION, at=seen + timedelta(seconds=120) + off)]
    machine.pass_time(timedelta(seconds=6))
    assert machine.state.agent_check() == "drain"
    assert "the clock of this instance is wrong" in machine.state.status()["warnings"]["clock"]
    assert not stopped_at(machine, 60)
    # Whatever the clock shows, the drain is complete two minutes after the notice.
    machine.pass_time(timedelta(seconds=120) - (machine.clock.now - seen))
    assert machine.state.phase is Phase.DRAINED


def test_a_clock_that_is_set_back_hides_no_notice_and_delays_no_drain(machine: Machine) -> None:
    machine.pass_time(timedelta(seconds=5))
    machine.clock.now -= timedelta(hours=1)
    machine.engine.running = 2
    machine.cloud.announced = [CloudNotice(kind=Notice.PREEMPTION, at=machine.clock.now + timedelta(seconds=120))]
    machine.pass_time(timedelta(seconds=6))
    assert machine.state.agent_check() == "drain"
    machine.engine.running = 0
    machine.pass_time(timedelta(seconds=1))
    machine.clock.now -= timedelta(hours=1)
    machine.pass_time(timedelta(seconds=10))
    assert machine.state.phase is Phase.DRAINED


def test_a_termination_by_the_group_drains_once_and_is_reported(machine: Machine) -> None:
    """The control host reads the status and completes the group's hook; the instance has no permission for it."""
    machine.engine.running = 1
    machine.cloud.announced = [CloudNotice(kind=Notice.TERMINATION)]
    machine.pass_time(timedelta(seconds=30))
    deadline = machine.state.status()["deadline"]
    machine.pass_time(timedelta(seconds=10))
    assert (machine.state.status()["deadline"], machine.state.status()["drained"]) == (deadline, False)
    machine.engine.running = 0
    machine.pass_time(timedelta(seconds=10))
    assert machine.state.phase is Phase.DRAINED
    assert machine.state.status()["drained"]


def test_a_drain_ends_while_metadata_does_not_respond(machine: Machine) -> None:
    machine.cloud.announced = [CloudNotice(kind=Notice.TERMINATION)]
    machine.pass_time(timedelta(seconds=6))
    machine.cloud.refuses = True
    machine.pass_time(timedelta(seconds=20))
    assert machine.state.phase is Phase.DRAINED


def test_an_instance_that_a_watchdog_drained_stays_drained_when_its_group_ends_it_later(machine: Machine) -> None:
    machine.agent.ask_to_drain(DrainOwner.IDLE, "idle", timedelta(seconds=60))
    machine.pass_time(timedelta(seconds=10))
    assert machine.state.phase is Phase.DRAINED
    machine.cloud.announced = [CloudNotice(kind=Notice.TERMINATION)]
    machine.pass_time(timedelta(seconds=10))
    assert machine.state.status()["drained"]


def test_a_rebalance_recommendation_is_reported_and_drains_nothing(machine: Machine) -> None:
    machine.cloud.announced = [CloudNotice(kind=Notice.REBALANCE)]
    machine.pass_time(timedelta(seconds=10))
    assert machine.state.ready
    assert machine.state.status()["rebalance_advised"] is True


def test_a_drain_aborts_a_boot(bucket: Path, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path, bucket=bucket)
    machine.disks.failures = 1

    def sleep(seconds: float) -> None:
        machine.clock.sleep(seconds)
        machine.agent.ask_to_drain(DrainOwner.PERSON, "by hand", timedelta(seconds=60))

    machine.boot.services.sleep = sleep
    assert not machine.boot.run()
    machine.pass_time(timedelta(seconds=1))
    assert machine.state.phase is Phase.DRAINED
    assert machine.units.calls == []


def test_a_drain_survives_a_restart_of_the_agent(machine: Machine) -> None:
    machine.engine.running = 2
    machine.agent.ask_to_drain(DrainOwner.ROLLOUT, "rollout", timedelta(seconds=60))
    deadline = machine.state.status()["deadline"]
    machine.restart_agent()
    assert machine.state.agent_check() == "drain"
    assert machine.state.status()["deadline"] == deadline
    assert machine.state.status()["reason"] == "rollout"
    assert not stopped_at(machine, 50)


def test_an_engine_with_unknown_load_gets_its_full_time(machine: Machine) -> None:
    machine.engine.silent = True
    machine.agent.ask_to_drain(DrainOwner.PERSON, "by hand", timedelta(seconds=60))
    assert not stopped_at(machine, 54)
    assert stopped_at(machine, 2)


def test_a_later_request_can_only_move_the_deadline_earlier() -> None:
    first = Order(by=DrainOwner.IDLE, reason="idle", asked_at=START, deadline=START + timedelta(seconds=60))
    later = replace(first, by=DrainOwner.PERSON, reason="again", deadline=START + timedelta(seconds=90))
    sooner = replace(first, by=DrainOwner.CLOUD, deadline=START + timedelta(seconds=30), notice_at=START)
    assert merge(None, first) == first
    assert merge(first, later) == first
    assert merge(first, sooner) == replace(first, deadline=sooner.deadline, notice_at=START)


ORDERS = st.builds(
    Order,
    by=st.sampled_from(DrainOwner),
    reason=st.sampled_from(["idle: no request", "by hand, ana: kernel", "preempted by its cloud"]),
    asked_at=st.just(START),
    deadline=st.integers(0, 300).map(lambda seconds: START + timedelta(seconds=seconds)),
    notice_at=st.one_of(st.none(), st.integers(0, 300).map(lambda seconds: START + timedelta(seconds=seconds))),
)


@settings_of_hypothesis(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(orders=st.lists(ORDERS, min_size=1, max_size=5), restarts=st.sets(st.integers(0, 4)))
def test_the_first_owner_stays_despite_later_requests_and_restarts(
    tmp_path: Path, orders: list[Order], restarts: set[int]
) -> None:
    file = tmp_path / "agent.json"
    file.unlink(missing_ok=True)
    state = state_of_file(file)
    for number, order in enumerate(orders):
        held = state.order_drain(order)
        so_far = orders[: number + 1]
        assert (held.by, held.reason) == (orders[0].by, orders[0].reason)
        assert held.deadline == min(one.deadline for one in so_far)
        assert held.notice_at == next((one.notice_at for one in so_far if one.notice_at), None)
        if number in restarts:
            state = state_of_file(file)
            assert state.order == held


def test_a_notice_during_another_drain_keeps_its_owner(machine: Machine) -> None:
    machine.engine.running = 1
    machine.agent.ask_to_drain(DrainOwner.IDLE, "idle: no request", timedelta(minutes=10))
    over = machine.clock.now + timedelta(seconds=30)
    machine.cloud.announced = [CloudNotice(kind=Notice.PREEMPTION, at=over)]
    noticed = machine.clock.now
    machine.pass_time(timedelta(seconds=12))
    machine.restart_agent()
    machine.pass_time(timedelta(seconds=12))
    status, order = machine.state.status(), machine.state.order
    assert (status["by"], status["reason"]) == ("idle", "idle: no request")
    assert order is not None and order.deadline == over
    assert order.notice_at is not None and noticed <= order.notice_at <= noticed + timedelta(seconds=6)
    assert status["notice_at"] == "2026-11-21T02:00:05.000Z"


def test_a_termination_by_the_group_is_not_a_preemption_notice(machine: Machine) -> None:
    machine.cloud.announced = [CloudNotice(kind=Notice.TERMINATION)]
    machine.pass_time(timedelta(seconds=6))
    assert (machine.state.status()["by"], machine.state.status()["notice_at"]) == ("cloud", None)


@pytest.mark.parametrize(
    ("reason", "by", "noticed"),
    [
        pytest.param("idle: no request for 600 s", "idle", False, id="idle"),
        pytest.param("spot: spot is back", "spot", False, id="spot"),
        pytest.param("by hand, ana: kernel", "person", False, id="a person"),
        pytest.param("a newer template is rolled out", "rollout", False, id="a rollout"),
        pytest.param("ended by its group", "cloud", False, id="its group"),
        pytest.param("preempted by its cloud", "cloud", True, id="a preemption"),
        pytest.param("maintenance", "person", False, id="a request from another source"),
    ],
)
def test_a_drain_stored_by_release_0_1_is_read(reason: str, by: str, noticed: bool, tmp_path: Path) -> None:
    file = tmp_path / "agent.json"
    at = "2026-11-21T02:00:00.000Z"
    left = {"version": 1, "phase": "draining", "since": at, "error": None, "digest": None, "has_served": True}
    order = {"reason": reason, "asked_at": at, "deadline": "2026-11-21T02:01:30.000Z"}
    file.write_text(json.dumps(left | {"order": order}))
    status = state_of_file(file).status()
    assert (status["phase"], status["by"], status["reason"]) == ("draining", by, reason)
    assert (status["deadline"], status["notice_at"]) == ("2026-11-21T02:01:30.000Z", at if noticed else None)


@given(
    deadline_s=st.integers(0, 300),
    ends_after_s=st.one_of(st.none(), st.floats(0, 400)),
    hangs=st.booleans(),
    margin_s=st.integers(1, 20),
)
def test_every_drain_meets_its_deadline_and_cuts_no_request_with_enough_time(
    deadline_s: int, ends_after_s: float | None, hangs: bool, margin_s: int
) -> None:
    """One tick per second, the slowest allowed rate; a kill takes no time here."""
    units = FakeUnits(states={engine_container.UNIT: UnitState.ACTIVE})
    order = Order(by=DrainOwner.PERSON, reason="test", asked_at=START, deadline=START + timedelta(seconds=deadline_s))
    margin, tick = timedelta(seconds=margin_s), timedelta(seconds=0.5)
    now, quiet_since, stopping_since, running = START, None, None, 1.0
    while True:
        ran_out = ends_after_s is not None and (now - START).total_seconds() >= ends_after_s
        running = 0.0 if ran_out else 1.0
        quiet_since = (quiet_since or now) if ran_out else None
        facts = DrainFacts(
            now=now,
            engine=units.state(engine_container.UNIT),
            load=EngineLoad(running=running, waiting=0),
            quiet_since=quiet_since,
            stopping_since=stopping_since,
        )
        move = next_step(order, facts, margin=margin, quiet_time=QUIET_TIME)
        if move is DrainStep.FINISH:
            break
        if move is DrainStep.STOP:
            stopping_since = now
            late = now >= order.deadline - margin
            assert running == 0 or late
            units.states[engine_container.UNIT] = UnitState.DEACTIVATING if hangs else UnitState.INACTIVE
        elif move is DrainStep.KILL:
            units.kill(engine_container.UNIT)
        now += tick
        assert now <= max(order.deadline, START + margin) + 2 * tick


def test_the_timelines_use_the_defaults_of_the_settings() -> None:
    assert settings().drain_margin == MARGIN
