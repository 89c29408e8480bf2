"""A new revision on an instance that serves: beside, in place, or back; and never one that is half there."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import Phase
from hosts.node.ports import UnitState
from hosts.node.switch import SwitchBusyError
from localcloud import tiny_model
from serving import engine as engines
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.disk import Cache
from serving.cache.store import FolderStore
from tests.fixtures.node.world import Machine


@pytest.fixture
def own_bucket(bucket: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(bucket, tmp_path / "bucket")
    return tmp_path / "bucket"


@pytest.fixture
def fresh(own_bucket: Path, tmp_path: Path) -> str:
    """A second revision, in the bucket and not served."""
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
    """Whether the engine's unit names the revision that the life names."""
    return str(machine.life.digest) in machine.units.texts[engines.UNIT] and machine.life.agent_check() == "up ready"


def test_what_the_bucket_serves_is_brought_beside_and_nothing_else_changes(
    machine: Machine, own_bucket: Path, fresh: str
) -> None:
    before = machine.life.digest
    assert machine.switch.follow() is None
    assert machine.life.staged == before
    publish.rollout(FolderStore(own_bucket), name="chat", digest=fresh)
    assert machine.switch.follow() is None
    assert (machine.life.staged, machine.life.digest) == (fresh, before)
    assert Cache(machine.boot.cache_root).find_digest(fresh) is not None
    assert served(machine)


def test_a_change_leaves_the_router_first_waits_for_requests_and_serves_the_new_one(
    machine: Machine, fresh: str
) -> None:
    machine.engine.running = 2
    heard: list[str] = []

    def sleep(seconds: float) -> None:
        machine.clock.sleep(seconds)
        heard.append(machine.life.agent_check())
        if machine.since_start() > 20:
            machine.engine.running = 0

    machine.boot.world.sleep = sleep
    machine.units.calls.clear()
    machine.switch.change(fresh)
    assert set(heard) == {"drain"}
    # 20 s of requests, then 3 s in which the router has surely heard
    assert machine.since_start() >= 23
    assert machine.units.calls[:2] == [("stop", engines.UNIT), ("start", engines.UNIT)]
    assert machine.life.digest == fresh
    assert served(machine)
    assert machine.life.status()["switch_error"] is None


def test_a_revision_that_does_not_run_is_taken_back(machine: Machine, fresh: str) -> None:
    before = machine.life.digest

    def start(_name: str) -> UnitState:
        return UnitState.FAILED if fresh in machine.units.texts[engines.UNIT] else UnitState.ACTIVE

    machine.units.on_start = start
    machine.switch.change(fresh)
    assert machine.life.digest == before
    assert served(machine)
    assert "the engine ended while it loaded" in machine.life.status()["switch_error"]


def test_when_neither_runs_the_instance_has_failed_and_says_both(machine: Machine, fresh: str) -> None:
    machine.units.on_start = lambda _name: UnitState.FAILED
    machine.switch.change(fresh)
    assert machine.life.phase is Phase.FAILED
    assert "the way back" in machine.life.status()["error"]
    assert machine.life.agent_check() == "down"
    machine.pass_time(machine.settings.power_off_after + timedelta(seconds=1))
    assert machine.powered_off == 1


def test_a_revision_that_cannot_be_brought_disturbs_nobody(machine: Machine, own_bucket: Path, fresh: str) -> None:
    weights = next((own_bucket / "models/chat" / fresh / "files").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    machine.units.calls.clear()
    machine.switch.change(fresh)
    assert machine.units.calls == []
    assert served(machine)
    assert fresh[:12] in machine.life.status()["switch_error"]
    publish.rollout(FolderStore(own_bucket), name="chat", digest=fresh)
    assert "bytes in the store" in str(machine.switch.follow())


def test_a_drain_in_the_middle_wins(machine: Machine, fresh: str) -> None:
    machine.engine.running = 1

    def sleep(seconds: float) -> None:
        machine.clock.sleep(seconds)
        machine.agent.ask_to_drain(DrainOwner.CLOUD, "preempted", timedelta(seconds=30))

    machine.boot.world.sleep = sleep
    machine.switch.change(fresh)
    assert machine.life.phase is Phase.DRAINING
    assert machine.life.agent_check() == "drain"
    machine.engine.running = 0
    machine.pass_time(timedelta(seconds=10))
    assert machine.life.phase is Phase.DRAINED


def test_only_a_ready_instance_changes_and_one_change_at_a_time(machine: Machine, fresh: str) -> None:
    assert machine.switch.ask(str(machine.life.digest)) is None
    machine.engine.silent = True
    machine.pass_time(timedelta(seconds=5))
    with pytest.raises(SwitchBusyError, match="ready"):
        machine.switch.ask(fresh)
    machine.engine.silent = False
    machine.pass_time(timedelta(seconds=5))
    thread = machine.switch.ask(fresh)
    assert thread is not None
    thread.join(30)
    assert machine.life.digest == fresh
