"""The boot of an instance with LoRA adapters: fetched, checked, leased and given to the engine."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpufleet.domain.model import Phase
from localcloud import tiny_model
from serving import engine_container
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.approval import Approval, approve
from serving.cache.disk import Cache
from serving.cache.store import FolderStore
from serving.cache.sync import served_digest
from tests.fixtures.node.fake_node import Machine, settings

ADAPTERS = {"chat:sql": "models/chat-sql"}


@pytest.fixture
def machine(bucket: Path, tmp_path: Path) -> Machine:
    shutil.copytree(bucket, tmp_path / "bucket")
    return Machine(root=tmp_path / "root", bucket=tmp_path / "bucket", settings=settings(adapters=ADAPTERS))


def publish_adapter(bucket: Path, folder: Path) -> str:
    """Publish another revision of the adapter and roll it out. Returns its digest."""
    tiny_model.make_adapter(folder, seed=9)
    manifest = manifests.describe(folder, name="chat-sql", revision="second")
    publish.add(FolderStore(bucket), folder, manifest)
    publish.rollout(FolderStore(bucket), name="chat-sql", digest=manifest.digest)
    return manifest.digest


def test_the_engine_gets_each_adapter_from_the_cache(machine: Machine) -> None:
    assert machine.boot.run()
    digest = served_digest(FolderStore(machine.bucket), "models/chat-sql")
    folder = machine.root / "mnt/nvme/models" / f"chat-sql@{digest}"
    assert (folder / "adapter_config.json").is_file()
    assert f" --lora-modules chat:sql={folder}" in machine.units.texts[engine_container.UNIT]
    assert machine.state.status()["adapters"] == {"chat:sql": digest}


def test_model_and_adapters_are_protected_from_eviction_while_they_are_served(machine: Machine) -> None:
    machine.boot.run()
    entries = Cache(machine.boot.cache_root).entries()
    assert {entry.name for entry in entries if entry.leased} == {"chat", "chat-sql"}


def test_a_restarted_agent_protects_the_adapters_of_a_running_engine(machine: Machine, tmp_path: Path) -> None:
    machine.boot.run()
    first = machine.state.adapters
    publish_adapter(machine.bucket, tmp_path / "second")
    machine.boot.lease.close()
    machine.restart_agent()
    assert machine.boot.run()
    assert machine.units.calls.count(("start", engine_container.UNIT)) == 1
    assert machine.state.adapters == first
    assert Cache(machine.boot.cache_root).is_leased(first["chat:sql"])


def test_a_changed_model_keeps_the_adapters(machine: Machine, tmp_path: Path) -> None:
    machine.boot.run()
    tiny_model.make(tmp_path / "new", tiny_model.TinyModelShape(layers=1, hidden=32, intermediate=32, heads=1))
    manifest = manifests.describe(tmp_path / "new", name="chat", revision="second")
    publish.add(FolderStore(machine.bucket), tmp_path / "new", manifest)
    machine.restart_agent()
    machine.boot.run()
    machine.switch.change(manifest.digest)
    assert machine.state.switch_error is None
    text = machine.units.texts[engine_container.UNIT]
    assert f"chat@{manifest.digest}" in text
    assert "--lora-modules chat:sql=" in text


def test_a_new_revision_of_an_adapter_is_loaded_by_instances_that_start_later(
    machine: Machine, tmp_path: Path
) -> None:
    digest = publish_adapter(machine.bucket, tmp_path / "second")
    assert machine.boot.run()
    assert machine.state.adapters == {"chat:sql": digest}


def test_an_adapter_that_was_never_published_fails_the_boot(machine: Machine) -> None:
    shutil.rmtree(machine.bucket / "models/chat-sql")
    assert not machine.boot.run()
    assert "adapter chat:sql, model models/chat-sql: " in machine.state.status()["error"]


def test_a_whole_model_in_the_place_of_an_adapter_fails_the_boot_at_once(bucket: Path, tmp_path: Path) -> None:
    machine = Machine(root=tmp_path, bucket=bucket, settings=settings(adapters={"chat:sql": "models/chat"}))
    assert not machine.boot.run()
    assert machine.state.phase is Phase.FAILED
    assert "adapter chat:sql, model models/chat: has no adapter_config.json; " in machine.state.status()["error"]
    assert machine.units.calls == []


def test_production_serves_only_approved_adapters(machine: Machine) -> None:
    machine.settings = settings(adapters=ADAPTERS, environment="prod")
    store = FolderStore(machine.bucket)

    def allow(model: str) -> None:
        digest = served_digest(store, model)
        approve(store, Approval(digest=digest, by="ada", at=datetime(2026, 11, 21, tzinfo=UTC)), model=model)

    allow("models/chat")
    machine.restart_agent()
    assert not machine.boot.run()
    assert "adapter chat:sql, model models/chat-sql: " in machine.state.status()["error"]
    assert "is not approved for prod" in machine.state.status()["error"]
    allow("models/chat-sql")
    machine.root = machine.root / "second"
    machine.restart_agent()
    assert machine.boot.run()
