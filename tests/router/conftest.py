"""A router with real HAProxy over mock replicas, on loopback addresses that no other test uses."""

import itertools
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.settings.document import FleetDocument
from serving.router.controller import Controller
from serving.router.keys import ApiKey
from serving.router.policy import RouterPolicy
from serving.router.settings import RouterPaths, RouterSettings
from tests.networks import free_network
from tests.router.replica import Replica

NETWORK = free_network()
_BLOCKS = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin") is None:
        for item in items:
            if {"router", "steady"} & set(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.skip(reason="haproxy is not installed (make setup installs it)"))


def document(*pools: dict[str, Any]) -> FleetDocument:
    """A fleet document of these pools (name, model and what differs)."""
    base = {
        "engine": "vllm",
        "owner": "t",
        "target": 1,
        "min": 0,
        "max": 9,
        "drain_deadline": "10s",
        "watchdogs": {},
    }
    return FleetDocument.model_validate(
        {
            "version": 1,
            "environment": "test",
            "cloud": "aws",
            "region": "us-east-1",
            "account": "0",
            "generated_by": {"project": "p", "stack": "s", "revision": "r", "at": "2026-11-21T00:00:00Z"},
            "bucket": "s3://b",
            "prometheus_url": "http://127.0.0.1:1",
            "ledger_url": "sqlite://",
            "router": {"url": "http://127.0.0.1:1"},
            "pools": [
                base | {"groups": [{"type": "on-demand", "name": f"{pool['name']}-any", "max": 9}]} | pool
                for pool in pools
            ],
        }
    )


def instance(name: str, address: str, pool: str, capacity_type: str = "on-demand") -> Instance:
    return Instance(
        id=name,
        cloud=Cloud.AWS,
        region="us-east-1",
        zone="us-east-1a",
        machine_type="g6.xlarge",
        capacity_type=CapacityType(capacity_type),
        state=InstanceState.RUNNING,
        launched_at=datetime(2026, 11, 21, tzinfo=UTC),
        environment="test",
        pool=pool,
        group=f"{pool}-any",
        private_address=address,
    )


@dataclass
class FakeFleet:
    """A fleet that the test moves."""

    written: FleetDocument | None = None
    machines: dict[str, Instance] = field(default_factory=dict[str, Instance])
    document_error: str = ""
    inventory_error: str = ""
    rules: RouterPolicy = field(default_factory=RouterPolicy)
    clients: tuple[ApiKey, ...] = ()
    key: str = "0" * 64
    """Of its engines."""
    key_error: str = ""

    def policy(self) -> RouterPolicy:
        return self.rules

    def keys(self) -> tuple[ApiKey, ...]:
        return self.clients

    def engine_key(self, document: FleetDocument) -> str:
        if self.key_error:
            raise OSError(self.key_error)
        return self.key

    def document(self) -> FleetDocument:
        if self.document_error or self.written is None:
            raise FileNotFoundError(self.document_error or "no such object")
        return self.written

    def instances(self, document: FleetDocument) -> Sequence[Instance]:
        if self.inventory_error:
            raise OSError(self.inventory_error)
        return tuple(self.machines.values())


@dataclass
class Router:
    """A controller whose passes run in a thread, and its replicas."""

    controller: Controller
    fleet: FakeFleet
    url: str
    said: list[str]
    block: int
    replicas: dict[str, Replica] = field(default_factory=dict[str, Replica])
    client: httpx.Client = field(
        default_factory=lambda: httpx.Client(timeout=60, limits=httpx.Limits(max_connections=64))
    )

    def add(self, name: str, pool: str = "chat", capacity_type: str = "on-demand", *, serve: bool = True) -> Replica:
        """A machine, and unless told otherwise an engine on it."""
        address = f"{NETWORK}.{self.block}.{len(self.replicas) + 10}"
        replica = Replica(address)
        self.replicas[name] = replica
        if serve:
            replica.__enter__()
        self.fleet.machines[name] = instance(name, address, pool, capacity_type)
        return replica

    def server(self, name: str) -> str | None:
        """HAProxy's word for a server's state."""
        for server in self.controller.haproxy.admin.servers():
            if server.name == name:
                return server.status
        return None

    def _full(self, name: str) -> bool:
        """UP, and past its slow start."""
        return any(
            s.name == name and s.status.startswith("UP") and s.weight == 100
            for s in self.controller.haproxy.admin.servers()
        )

    def queued(self, pool: str) -> int:
        """Requests that wait in HAProxy, for any replica of the pool (the backend's own line) or for one of them."""
        waiting = 0
        for line in self.controller.haproxy.admin.ask("show stat -1 6 -1").splitlines():
            name, _, queued, *_ = line.split(",")
            waiting += int(queued or 0) if name == f"pool_{pool}" else 0
        return waiting

    def until(self, true: Callable[[], bool], what: str, limit_s: float = 60) -> None:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            try:
                if true():
                    return
            except OSError:
                pass
            time.sleep(0.03)
        pytest.fail(f"not within {limit_s} s: {what}; said {self.said}; {self._stat()}")

    def ready(self, *names: str) -> None:
        for name in names or tuple(self.replicas):
            self.until(lambda name=name: self._full(name), f"{name} is UP")

    def chat(self, model: str = "chat", headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}]} | more
        return self.client.post(f"{self.url}/v1/chat/completions", json=body, headers=headers)

    def _stat(self) -> object:
        try:
            return self.controller.haproxy.admin.servers()
        except OSError as error:
            return error


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    """A running router over an empty fleet: give it a document and machines."""
    with running(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """One router with one replica of the model `chat`, for tests that change nothing."""
    with running(tmp_path_factory.mktemp("steady")) as made:
        made.fleet.written = document({"name": "chat", "model": "models/chat"})
        made.add("i-1")
        made.ready()
        yield made


@contextmanager
def running(
    folder: Path, fleet: FakeFleet | None = None, *, every_s: float = 0.1, **changed: Any
) -> Iterator[Router]:
    """A router whose passes run in a thread, with `every_s` between two."""
    block = next(_BLOCKS)
    bind = f"{NETWORK}.{block}.1:8080"
    said: list[str] = []
    settings = replace(
        RouterSettings(
            bind=bind,
            metrics_bind=f"{NETWORK}.{block}.1:8404",
            check_interval=timedelta(milliseconds=150),
            agent_interval=timedelta(milliseconds=150),
            agent_silent_limit=timedelta(seconds=1),
            queue_timeout=timedelta(seconds=40),
            request_timeout=timedelta(seconds=4),
            slow_start=timedelta(milliseconds=100),
        ),
        **changed,
    )
    fleet = fleet or FakeFleet()
    state = folder / "router"
    state.mkdir(parents=True, exist_ok=True)
    controller = Controller(fleet, settings, RouterPaths(state=state), said.append, told_every_s=0.2)
    controller.start()
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(every_s):
            controller.tick()

    passes = threading.Thread(target=loop)
    passes.start()
    made = Router(controller=controller, fleet=fleet, url=f"http://{bind}", said=said, block=block)
    try:
        yield made
    finally:
        stop.set()
        passes.join(20)
        controller.stop(0.1)
        made.client.close()
        for replica in made.replicas.values():
            replica.close()
