"""A store slower than the boot's limit or a notice: the agent reports in time and leaves nothing incomplete."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import Phase
from hosts.node.ports import CloudNotice, Notice
from localcloud import tiny_model
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.disk import Cache
from serving.cache.store import FolderReader, FolderStore, ObjectCallback, ObjectStore, PartConsumer
from tests.fixtures.node.fake_node import FakeCloud, Machine

PIECE = 64 * 1024


class SlowStore(FolderStore):
    """Calls `wait` before each 64 KiB of weights."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.wait: Callable[[], None] = lambda: None
        self.pieces = 0

    def connect(self) -> FolderReader:
        return _SlowReader(self)


class _SlowReader(FolderReader):
    def __init__(self, store: SlowStore) -> None:
        super().__init__(store._root)
        self._store = store

    def read_range(
        self,
        key: str,
        start: int,
        length: int,
        version: str | None,
        take: PartConsumer,
        on_object: ObjectCallback | None = None,
    ) -> None:
        def slowly(piece: memoryview) -> None:
            for at in range(0, len(piece), PIECE):
                if key.endswith(".safetensors"):
                    self._store.pieces += 1
                    self._store.wait()
                take(piece[at : at + PIECE])

        super().read_range(key, start, length, version, slowly, on_object)


@dataclass(slots=True)
class SlowCloud(FakeCloud):
    """A cloud with a slow bucket."""

    slow: SlowStore = field(init=False)

    def __post_init__(self) -> None:
        self.slow = SlowStore(self.bucket)

    def store(self, bucket: str) -> ObjectStore:
        return self.slow


@pytest.fixture
def slow_bucket(tmp_path: Path) -> tuple[Path, str]:
    """A bucket with a model of 2.5 MB (about 40 pieces in two files), and the model's digest."""
    folder = tmp_path / "bucket"
    tiny_model.make(folder / "source")
    manifest = manifests.describe(folder / "source", name="chat", revision="first")
    publish.add(FolderStore(folder), folder / "source", manifest)
    publish.rollout(FolderStore(folder), name="chat", digest=manifest.digest)
    return folder, manifest.digest


def on_slow_store(machine: Machine) -> SlowStore:
    cloud = SlowCloud(machine.bucket)
    machine.cloud = cloud
    machine.restart_agent()
    return cloud.slow


def test_a_store_that_trickles_fails_the_boot_at_its_limit_and_the_error_shows_the_progress(
    slow_bucket: tuple[Path, str], tmp_path: Path
) -> None:
    machine = Machine(root=tmp_path / "root", bucket=slow_bucket[0])
    on_slow_store(machine).wait = lambda: machine.clock.sleep(300)
    assert not machine.boot.run()
    assert machine.state.phase is Phase.FAILED
    # The limit is 30 minutes; one piece of each of the two files was being read.
    assert 1800 <= machine.since_start() <= 1800 + 2 * 300
    assert "bytes fetched when the time limit was reached" in str(machine.state.status()["error"])


def test_a_preemption_while_a_slow_store_sends_ends_the_sync_and_leaves_nothing_half_there(
    slow_bucket: tuple[Path, str], tmp_path: Path
) -> None:
    folder, digest = slow_bucket
    machine = Machine(root=tmp_path / "root", bucket=folder)
    slow = on_slow_store(machine)

    def wait() -> None:
        machine.clock.sleep(1)
        if slow.pieces == 10:
            at = machine.clock.now + timedelta(seconds=120)
            machine.cloud.announced = [CloudNotice(kind=Notice.PREEMPTION, at=at)]
            machine.agent.tick()

    slow.wait = wait
    assert not machine.boot.run()
    assert slow.pieces <= 12
    machine.agent.tick()
    assert machine.state.phase is Phase.DRAINED
    assert Cache(machine.boot.cache_root).find_digest(digest) is None
    assert machine.units.calls == []
    # Another boot with the same disks resumes and completes the model.
    (tmp_path / "root/var/lib/gpu-fleet/agent.json").unlink()
    fresh = Machine(root=tmp_path / "root", bucket=folder)
    assert fresh.boot.run()
    assert Cache(fresh.boot.cache_root).find_digest(digest) is not None


def test_a_drain_aborts_the_fetch_of_another_revision(slow_bucket: tuple[Path, str], tmp_path: Path) -> None:
    folder, digest = slow_bucket
    tiny_model.make(tmp_path / "second", tiny_model.TinyModelShape(seed=2))
    second = manifests.describe(tmp_path / "second", name="chat", revision="second")
    publish.add(FolderStore(folder), tmp_path / "second", second)
    machine = Machine(root=tmp_path / "root", bucket=folder)
    slow = on_slow_store(machine)
    assert machine.boot.run()
    slow.pieces = 0
    slow.wait = lambda: machine.agent.ask_to_drain(DrainOwner.PERSON, "by hand", timedelta(seconds=60)) and None
    machine.switch.change(second.digest)
    assert slow.pieces <= 2
    assert machine.state.digest == digest
    assert (machine.state.switching_to, machine.state.switch_error) == (
        None, f"{second.digest[:12]}: the instance drains",
    )  # fmt: skip
    publish.rollout(FolderStore(folder), name="chat", digest=second.digest)
    assert machine.switch.follow() is None
