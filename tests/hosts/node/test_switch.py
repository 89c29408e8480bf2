"""A new revision on a serving instance: fetched next to the old one, switched or rolled back, never incomplete."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import Phase
from hosts.node.ports import UnitState
from hosts.node.switch import SwitchBusyError
from localcloud import tiny_model
from serving import engine_container
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.disk import Cache
from serving.cache.store import FolderStore
from tests.fixtures.node.fake_node import Machine


@pytest.fixture
def own_bucket(bucket: Path, tmp_path: Path) -> Path:
    """A copy of the bucket that a test may change."""
    shutil.copytree(bucket, tmp_path / "bucket")
    return tmp_path / "bucket"


@pytest.fixture
def fresh(own_bucket: Path, tmp_path: Path) -> str:
    """A second revision in the bucket that is not served."""
    tiny_model.make(tmp_path / "second", tiny_model.TinyModelShape(seed=2))
    manifest = manifests.describe(tmp_path / "second", name="chat", revision="second")
    publish.add(FolderStore(own_bucket), tmp_path / "second", manifest)
    return manifest.digest


@pytest.fixture
def machine(own_bucket: Path, tmp_path: Path) -> Machine:
    booted = Machine(root=tmp_path / "root", bucket=own_bucket)
    assert booted.boot.run()
    booted.pass_time(timedelta(seconds=1))
    return booted


def served(machine: Machine) -> bool:
    """Return whether the engine's unit and the agent's state name the same revision."""
    return (
        str(machine.state.digest) in machine.units.texts[engine_container.UNIT]
        and machine.state.agent_check() == "up ready"
    )


def test_the_served_revision_is_only_fetched(machine: Machine, own_bucket: Path, fresh: str) -> None:
    before = machine.state.digest
    assert machine.switch.follow() is None
    assert machine.state.staged == before
    publish.rollout(FolderStore(own_bucket), name="chat", digest=fresh)
    assert machine.switch.follow() is None
    assert (machine.state.staged, machine.state.digest) == (fresh, before)
    assert Cache(machine.boot.cache_root).find_digest(fresh) is not None
    assert served(machine)


def test_a_switch_leaves_rotation_waits_for_requests_and_serves_the_new_revision(
    machine: Machine, fresh: str
) -> None:
    machine.engine.running = 2
    answers: list[str] = []

    def sleep(seconds: float) -> None:
        machine.clock.sleep(seconds)
        answers.append(machine.state.agent_check())
        if machine.since_start() > 20:
            machine.engine.running = 0

    machine.boot.services.sleep = sleep
    machine.units.calls.clear()
    machine.switch.change(fresh)
    assert set(answers) == {"drain"}
    # 20 s of requests, then 3 s after which the router is certainly notified.
    assert machine.since_start() >= 23
    assert machine.units.calls[:2] == [("stop", engine_container.UNIT), ("start", engine_container.UNIT)]
    assert machine.state.digest == fresh
    assert served(machine)
    assert machine.state.status()["switch_error"] is None


def test_a_revision_that_does_not_run_is_rolled_back(machine: Machine, fresh: str) -> None:
    before = machine.state.digest

    def start(_name: str) -> UnitState:
        return UnitState.FAILED if fresh in machine.units.texts[engine_container.UNIT] else UnitState.ACTIVE

    machine.units.on_start = start
    machine.switch.change(fresh)
    assert machine.state.digest == before
    assert served(machine)
    assert "the engine stopped during its start" in machine.state.status()["switch_error"]


def test_if_no_revision_runs_the_instance_fails_with_both_errors(machine: Machine, fresh: str) -> None:
    machine.units.on_start = lambda _name: UnitState.FAILED
    machine.switch.change(fresh)
    assert machine.state.phase is Phase.FAILED
    assert "the rollback failed" in machine.state.status()["error"]
    assert machine.state.agent_check() == "down"
    machine.pass_time(machine.settings.power_off_after + timedelta(seconds=1))
    assert machine.powered_off == 1


def test_a_revision_that_cannot_be_fetched_disturbs_no_request(
    machine: Machine, own_bucket: Path, fresh: str
) -> None:
    weights = next((own_bucket / "models/chat" / fresh / "files").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    machine.units.calls.clear()
    machine.switch.change(fresh)
    assert machine.units.calls == []
    assert served(machine)
    assert fresh[:12] in machine.state.status()["switch_error"]
    publish.rollout(FolderStore(own_bucket), name="chat", digest=fresh)
    assert "bytes in the store" in str(machine.switch.follow())


def test_a_drain_aborts_a_switch(machine: Machine, fresh: str) -> None:
    machine.engine.running = 1

    def sleep(seconds: float) -> None:
        machine.clock.sleep(seconds)
        machine.agent.ask_to_drain(DrainOwner.CLOUD, "preempted", timedelta(seconds=30))

    machine.boot.services.sleep = sleep
    machine.switch.change(fresh)
    assert machine.state.phase is Phase.DRAINING
    assert machine.state.agent_check() == "drain"
    machine.engine.running = 0
    machine.pass_time(timedelta(seconds=10))
    assert machine.state.phase is Phase.DRAINED


def test_only_a_ready_instance_switches_and_one_switch_at_a_time(machine: Machine, fresh: str) -> None:
    assert machine.switch.ask(str(machine.state.digest)) is None
    machine.engine.silent = True
    machine.pass_time(timedelta(seconds=5))
    with pytest.raises(SwitchBusyError, match="ready"):
        machine.switch.ask(fresh)
    machine.engine.silent = False
    machine.pass_time(timedelta(seconds=5))
    thread = machine.switch.ask(fresh)
    assert thread is not None
    thread.join(30)
    assert machine.state.digest == fresh
