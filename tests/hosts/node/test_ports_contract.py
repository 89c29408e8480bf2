"""Contract tests of the node agent's ports: systemd, disks and engine, and their fakes (`fake_node`).

The real `Systemd` and `LocalDisks` run on an emulated machine, `HttpEngine` with the simulated engine.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from localcloud.engine.api import EngineServer
from localcloud.engine.arguments import parse
from localcloud.engine.batch import Batch
from localcloud.engine.loading import load
from localcloud.machines.manager import CODE, MachineManager
from localcloud.machines.spec import Order

from gpufleet.domain.model import Cloud
from hosts.node.disks import LocalDisks
from hosts.node.engine_client import HttpEngine
from hosts.node.ports import Disks, EngineClient, EngineLoad, StepError, Units, UnitState
from hosts.node.systemd import Systemd
from localcloud import tiny_model
from serving.engine_container import UNIT
from serving.engines import CONTRACTS
from tests.fixtures.node.fake_node import FakeDisks, FakeEngine, FakeUnits

NAME = "contract.service"
LIMIT_S = 60
TEXT = "[Service]\nExecStart=sleep 600\nKillMode=mixed\n"
STOPPED = (UnitState.INACTIVE, UnitState.FAILED)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Path]]:
    """Starts an emulated machine with that many local disks and returns its root."""
    manager = MachineManager(tmp_path / "machines", plain=True)

    def start(nvme_disks: int) -> Path:
        order = Order(
            instance="i-1", uid=str(tmp_path), address="127.0.0.1", zone="us-east-1a", region="us-east-1",
            machine_type="g6.xlarge", cloud=Cloud.AWS, variables={}, script=None, nvme_disks=nvme_disks,
        )  # fmt: skip
        manager.start(order)
        root = manager.folder / "i-1"
        monkeypatch.setenv("PATH", f"{manager.folder}/.image:{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", CODE)
        monkeypatch.setenv("GPUFLEET_ROOT", str(root))
        monkeypatch.setenv("GPUFLEET_LOCAL_STATE", str(root / "run"))
        until(lambda: b"gpufleet-machine" in _sockets() and Systemd(root).state(NAME) is UnitState.INACTIVE)
        return root

    yield start
    manager.close()


def _sockets() -> bytes:
    return Path("/proc/net/unix").read_bytes()


def until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not check():
        assert time.monotonic() < end, "the state did not change in time"
        time.sleep(0.02)


# Units


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.slow)])
def units(request: pytest.FixtureRequest) -> Units:
    return FakeUnits() if request.param == "fake" else Systemd(request.getfixturevalue("machine")(0))


def test_an_unchanged_unit_is_not_installed_again(units: Units) -> None:
    assert units.state(NAME) is UnitState.INACTIVE, "systemd does not know it"
    assert [units.install(NAME, text) for text in (TEXT, TEXT, f"{TEXT}# changed\n")] == [True, False, True]
    assert units.state(NAME) is UnitState.INACTIVE


def test_starts_and_stops_are_idempotent(units: Units) -> None:
    units.install(NAME, TEXT)
    for _ in range(2):
        units.start(NAME)
        until(lambda: units.state(NAME) is UnitState.ACTIVE)
    for _ in range(2):
        units.stop(NAME)
        until(lambda: units.state(NAME) is UnitState.INACTIVE)
    units.start(NAME)
    until(lambda: units.state(NAME) is UnitState.ACTIVE)


def test_a_killed_unit_is_stopped_and_can_be_started_again(units: Units) -> None:
    units.install(NAME, TEXT)
    units.kill(NAME)
    assert units.state(NAME) is UnitState.INACTIVE, "there was no process"
    units.start(NAME)
    until(lambda: units.state(NAME) is UnitState.ACTIVE)
    units.kill(NAME)
    until(lambda: units.state(NAME) in STOPPED)
    units.start(NAME)
    until(lambda: units.state(NAME) is UnitState.ACTIVE)


# Disks


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.slow)])
def disks(request: pytest.FixtureRequest) -> Callable[[int], Disks]:
    """Makes the disks of a machine with that many."""
    if request.param == "fake":
        return lambda count: FakeDisks(count=count)
    return lambda count: LocalDisks(request.getfixturevalue("machine")(count))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_disks_are_prepared_once(disks: Callable[[int], Disks], count: int) -> None:
    made = disks(count)
    assert [made.prepare("/mnt/nvme") for _ in range(2)] == [count, count]


# Engine


@dataclass
class Engine:
    """A client of an engine without load; `stop` ends the engine."""

    client: EngineClient
    stop: Callable[[], object]


@pytest.fixture(params=["fake", "real"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "fake":
        units = FakeUnits(states={UNIT: UnitState.ACTIVE})
        yield Engine(FakeEngine(units), lambda: units.stop(UNIT))
        return
    tiny_model.make(tmp_path / "model", tiny_model.TinyModelShape())
    settings = parse(["serve", str(tmp_path / "model"), "--served-model-name", "chat", "--host", "127.0.0.1"])
    server: Any = EngineServer(settings)
    server.server_address = ("127.0.0.1", 0)
    server.server_bind()
    server.batch = Batch(settings, load(settings.model))
    server.server_activate()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    host, port = server.socket.getsockname()[:2]
    yield Engine(HttpEngine(f"http://{host}:{port}", "chat", CONTRACTS["vllm"]), stop)
    if thread.is_alive():
        stop()


def test_an_engine_without_requests_is_healthy_and_has_no_load(engine: Engine) -> None:
    assert engine.client.healthy()
    assert engine.client.load() == EngineLoad(running=0, waiting=0)
    identity = engine.client.identity()
    assert identity.kind == "vllm" and not identity.missing
    engine.client.warm_up("key")
    assert engine.client.load() == EngineLoad(running=0, waiting=0), "the warm-up is complete"


def test_the_load_of_an_engine_that_does_not_respond_is_unknown(engine: Engine) -> None:
    engine.stop()
    assert not engine.client.healthy()
    assert engine.client.load() is None
    with pytest.raises(StepError):
        engine.client.warm_up("key")
