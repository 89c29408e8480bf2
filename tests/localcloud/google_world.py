"""The embedded Compute Engine in this process: machines that run at once, and a clock that a test turns."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from localcloud.aws.api_faults import ApiFaults
from localcloud.aws.calls import Calls
from localcloud.faults import Faults
from localcloud.gcp.control import Control
from localcloud.gcp.embedded import one_round
from localcloud.gcp.exchange import Request
from localcloud.gcp.groups import Group
from localcloud.gcp.machine import Machine
from localcloud.gcp.places import PROJECT
from localcloud.gcp.server import Front
from localcloud.gcp.store import Key, Row
from localcloud.gcp.world import World, make_world
from localcloud.places import Places
from localcloud.time_scale import TimeScale

ROUND = timedelta(milliseconds=250)


class Hardware:
    """Machines that run at once and are gone at once."""

    def __init__(self) -> None:
        self.running: set[str] = set()

    def start(self, machine: Machine) -> None:
        self.running.add(machine.name)

    def is_alive(self, name: str) -> bool:
        return name in self.running

    def end(self, name: str) -> None:
        self.running.discard(name)

    def changed(self, name: str) -> None:
        pass

    def forget(self, name: str, uid: str) -> None:
        pass


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def world(clock: Clock, scale: TimeScale = TimeScale(), hardware: Hardware | None = None) -> World:
    """With one network."""
    made = make_world(Places(), hardware or Hardware(), Calls(), clock, scale)
    net, subnet = Key("global", "networks", "net"), Key("regions/us-central1", "subnetworks", "net")
    made.store.add(net, {}, clock.now)
    link = made.store.url(net.path)
    made.store.add(subnet, {"network": link, "ipCidrRange": "127.16.64.0/24"}, clock.now)
    return made


class Emulated:
    """A world, its calls, and its loop, which runs only where a test says so."""

    def __init__(self, folder: Path, scale: TimeScale = TimeScale()) -> None:
        self.clock, self.hardware = Clock(), Hardware()
        self.world = world(self.clock, scale, self.hardware)
        faults = ApiFaults()
        control = Control(world=self.world, faults=Faults(folder), api_faults=faults)
        self._front = Front(self.world, control, faults)

    def call(self, method: str, path: str, body: Any = None, query: dict[str, str] | None = None) -> tuple[int, Any]:
        """One call of the compute API, by the path after the project."""
        return self._ask(method, f"/compute/v1/projects/{PROJECT}/{path}", body, query or {})

    def control(self, path: str, body: Any) -> None:
        """One call of the control API. Raises AssertionError where it is refused."""
        status, answer = self._ask("POST", f"/_localcloud/{path}", body, {})
        assert status == 200, answer

    def _ask(self, method: str, path: str, body: Any, query: dict[str, str]) -> tuple[int, Any]:
        text = b"" if body is None else json.dumps(body).encode()
        reply = self._front.answer(Request(method=method, path=path, query=query, headers={}, body=text))
        return reply.status, json.loads(reply.body)

    def run(self, seconds: float = 2.0) -> None:
        """Let that much time pass, with the loop."""
        until = self.clock.now + timedelta(seconds=seconds)
        while self.clock.now < until:
            self.clock.now += ROUND
            one_round(self.world)

    def make_group(self, name: str, size: int, scope: str, properties: Row, **more: Any) -> Group:
        """A group that wants that many; none is made before the loop runs."""
        template = Key("global", "instanceTemplates", name)
        self.world.store.add(template, {"properties": properties}, self.clock.now)
        key = Key(scope, "instanceGroupManagers", name)
        row = {
            "targetSize": size,
            "baseInstanceName": f"test-{name}",
            "versions": [{"instanceTemplate": self.world.store.url(template.path)}],
            **more,
        }
        self.world.store.add(key, row, self.clock.now)
        group = Group(key=key)
        self.world.groups[group.ident] = group
        return group
