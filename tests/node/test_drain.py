"""The timelines of 120 s (EC2) and 30 s (Google Cloud), second by second, on a clock that is moved by hand."""

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain.model import Phase
from node.drain import Move, Order, Scene, merge, next_move
from node.ports import CloudNotice, EngineLoad, Notice, UnitState
from serving import engine as engines
from tests.node.world import START, FakeUnits, Machine, settings

MARGIN = timedelta(seconds=5)
SETTLE = timedelta(seconds=3)


@pytest.fixture
def machine(bucket: Path, tmp_path: Path) -> Machine:
    booted = Machine(root=tmp_path, bucket=bucket)
    assert booted.boot.run()
    booted.pass_time(timedelta(seconds=1))
    return booted


def stopped_at(machine: Machine, seconds: float) -> bool:
    """Whether the engine had been stopped before that many seconds had passed."""
    machine.pass_time(timedelta(seconds=seconds))
    return ("stop", engines.UNIT) in machine.units.calls


def test_a_preemption_of_120_s_lets_requests_end_and_stops_as_soon_as_it_is_quiet(machine: Machine) -> None:
    machine.engine.running = 8
    machine.cloud.said = [CloudNotice(kind=Notice.PREEMPTION, at=machine.clock.now + timedelta(seconds=120))]
    machine.pass_time(timedelta(seconds=6))
    assert machine.life.agent_check() == "drain"
    assert machine.life.status()["reason"] == "preempted by its cloud"
    assert not stopped_at(machine, 60)
    machine.engine.running = 0
    assert not stopped_at(machine, 2.5)
    assert stopped_at(machine, 2)
    machine.pass_time(timedelta(seconds=1))
    assert machine.life.phase is Phase.DRAINED
    assert machine.life.counters.requests_cut == 0


def test_requests_that_never_end_are_cut_the_margin_before_the_notice_is_over(machine: Machine) -> None:
    machine.engine.running = 3
    machine.engine.waiting = 1
    over = machine.clock.now + timedelta(seconds=120)
    machine.cloud.said = [CloudNotice(kind=Notice.PREEMPTION, at=over)]
    machine.pass_time(timedelta(seconds=114))
    assert ("stop", engines.UNIT) not in machine.units.calls
    machine.pass_time(timedelta(seconds=2))
    assert ("stop", engines.UNIT) in machine.units.calls
    machine.pass_time(timedelta(seconds=1))
    assert machine.life.phase is Phase.DRAINED
    assert machine.clock.now < over
    assert machine.life.counters.requests_cut == 4


def test_an_engine_that_hangs_in_its_shutdown_is_killed_before_the_instance_goes(machine: Machine) -> None:
    machine.units.on_stop = lambda _name: UnitState.DEACTIVATING
    machine.engine.running = 3
    over = machine.clock.now + timedelta(seconds=30)
    machine.cloud.said = [CloudNotice(kind=Notice.PREEMPTION, at=over)]
    machine.pass_time(timedelta(seconds=30))
    assert ("kill", engines.UNIT) in machine.units.calls
    assert machine.life.phase is Phase.DRAINED
    assert machine.life.since < over


def test_a_notice_of_30_s_is_kept_by_every_step(machine: Machine) -> None:
    machine.engine.running = 1
    over = machine.clock.now + timedelta(seconds=30)
    machine.cloud.said = [CloudNotice(kind=Notice.PREEMPTION, at=over)]
    machine.pass_time(timedelta(seconds=20))
    machine.engine.running = 0
    machine.pass_time(timedelta(seconds=6))
    assert machine.life.phase is Phase.DRAINED
    assert over - machine.life.since >= MARGIN


@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(hours=-1)], ids=["an hour slow", "an hour fast"])
def test_a_clock_that_is_off_by_an_hour_costs_no_request_and_no_drain(machine: Machine, off: timedelta) -> None:
    machine.engine.running = 2
    seen = machine.clock.now
    machine.cloud.said = [CloudNotice(kind=Notice.PREEMPTION, at=seen + timedelta(seconds=120) + off)]
    machine.pass_time(timedelta(seconds=6))
    assert machine.life.agent_check() == "drain"
    assert "the clock is off" in machine.life.status()["warnings"]["clock"]
    assert not stopped_at(machine, 60)
    # whatever the clock says, two minutes after the notice nothing is left to do
    machine.pass_time(timedelta(seconds=120) - (machine.clock.now - seen))
    assert machine.life.phase is Phase.DRAINED


def test_a_clock_that_is_set_back_hides_no_notice_and_holds_up_no_drain(machine: Machine) -> None:
    machine.pass_time(timedelta(seconds=5))
    machine.clock.now -= timedelta(hours=1)
    machine.engine.running = 2
    machine.cloud.said = [CloudNotice(kind=Notice.PREEMPTION, at=machine.clock.now + timedelta(seconds=120))]
    machine.pass_time(timedelta(seconds=6))
    assert machine.life.agent_check() == "drain"
    machine.engine.running = 0
    machine.pass_time(timedelta(seconds=1))
    machine.clock.now -= timedelta(hours=1)
    machine.pass_time(timedelta(seconds=10))
    assert machine.life.phase is Phase.DRAINED


def test_a_termination_by_the_group_is_confirmed_once_after_the_drain(machine: Machine) -> None:
    machine.engine.running = 1
    machine.cloud.said = [CloudNotice(kind=Notice.TERMINATION)]
    machine.pass_time(timedelta(seconds=30))
    assert machine.cloud.confirmed == 0
    deadline = machine.life.status()["deadline"]
    machine.pass_time(timedelta(seconds=10))
    assert machine.life.status()["deadline"] == deadline
    machine.engine.running = 0
    machine.pass_time(timedelta(seconds=10))
    assert machine.life.phase is Phase.DRAINED
    assert machine.cloud.confirmed == 1


def test_a_hook_that_cannot_be_confirmed_is_tried_again(machine: Machine) -> None:
    machine.cloud.said = [CloudNotice(kind=Notice.TERMINATION)]
    machine.pass_time(timedelta(seconds=6))
    machine.cloud.refuses = True
    machine.pass_time(timedelta(seconds=20))
    assert machine.life.phase is Phase.DRAINED
    machine.cloud.refuses = False
    machine.pass_time(timedelta(seconds=5))
    assert machine.cloud.confirmed == 1


def test_an_instance_that_a_watchdog_drained_confirms_when_its_group_ends_it_later(machine: Machine) -> None:
    machine.agent.ask_to_drain("idle", timedelta(seconds=60))
    machine.pass_time(timedelta(seconds=10))
    assert (machine.life.phase, machine.cloud.confirmed) == (Phase.DRAINED, 0)
    machine.cloud.said = [CloudNotice(kind=Notice.TERMINATION)]
    machine.pass_time(timedelta(seconds=10))
    assert machine.cloud.confirmed == 1


def test_a_rebalance_recommendation_is_said_and_drains_nothing(machine: Machine) -> None:
    machine.cloud.said = [CloudNotice(kind=Notice.REBALANCE)]
    machine.pass_time(timedelta(seconds=10))
    assert machine.life.ready
    assert machine.life.status()["rebalance_advised"] is True


def test_a_drain_in_the_middle_of_a_boot_ends_it(bucket: Path, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path, bucket=bucket)
    machine.disks.failures = 1

    def sleep(seconds: float) -> None:
        machine.clock.sleep(seconds)
        machine.agent.ask_to_drain("by hand", timedelta(seconds=60))

    machine.boot.world.sleep = sleep
    assert not machine.boot.run()
    machine.pass_time(timedelta(seconds=1))
    assert machine.life.phase is Phase.DRAINED
    assert machine.units.calls == []


def test_a_drain_outlives_the_agent(machine: Machine) -> None:
    machine.engine.running = 2
    machine.agent.ask_to_drain("rollout", timedelta(seconds=60))
    deadline = machine.life.status()["deadline"]
    machine.restart_agent()
    assert machine.life.agent_check() == "drain"
    assert machine.life.status()["deadline"] == deadline
    assert machine.life.status()["reason"] == "rollout"
    assert not stopped_at(machine, 50)


def test_an_engine_whose_load_is_unknown_keeps_its_time(machine: Machine) -> None:
    machine.engine.silent = True
    machine.agent.ask_to_drain("by hand", timedelta(seconds=60))
    assert not stopped_at(machine, 54)
    assert stopped_at(machine, 2)


def test_asking_twice_is_asking_once_and_an_earlier_deadline_wins() -> None:
    first = Order(reason="idle", asked_at=START, deadline=START + timedelta(seconds=60))
    later = Order(reason="again", asked_at=START, deadline=START + timedelta(seconds=90))
    sooner = Order(reason="preempted", asked_at=START, deadline=START + timedelta(seconds=30))
    assert merge(None, first) == first
    assert merge(first, later) == first
    assert merge(first, sooner).deadline == sooner.deadline
    assert merge(first, sooner).reason == "preempted"


@given(
    deadline_s=st.integers(0, 300),
    ends_after_s=st.one_of(st.none(), st.floats(0, 400)),
    hangs=st.booleans(),
    margin_s=st.integers(1, 20),
)
def test_every_drain_ends_by_its_deadline_and_cuts_nothing_that_had_time(
    deadline_s: int, ends_after_s: float | None, hangs: bool, margin_s: int
) -> None:
    """Driven with one look a second, as slow as it may get; killing takes no time here."""
    units = FakeUnits(states={engines.UNIT: UnitState.ACTIVE})
    order = Order(reason="test", asked_at=START, deadline=START + timedelta(seconds=deadline_s))
    margin, tick = timedelta(seconds=margin_s), timedelta(seconds=0.5)
    now, quiet_since, stopping_since, running = START, None, None, 1.0
    while True:
        ran_out = ends_after_s is not None and (now - START).total_seconds() >= ends_after_s
        running = 0.0 if ran_out else 1.0
        quiet_since = (quiet_since or now) if ran_out else None
        scene = Scene(
            now=now,
            engine=units.state(engines.UNIT),
            load=EngineLoad(running=running, waiting=0),
            quiet_since=quiet_since,
            stopping_since=stopping_since,
        )
        move = next_move(order, scene, margin=margin, settle=SETTLE)
        if move is Move.FINISH:
            break
        if move is Move.STOP:
            stopping_since = now
            late = now >= order.deadline - margin
            assert running == 0 or late
            units.states[engines.UNIT] = UnitState.DEACTIVATING if hangs else UnitState.INACTIVE
        elif move is Move.KILL:
            units.kill(engines.UNIT)
        now += tick
        assert now <= max(order.deadline, START + margin) + 2 * tick


def test_the_timelines_use_the_defaults_of_the_settings() -> None:
    assert settings().drain_margin == MARGIN
