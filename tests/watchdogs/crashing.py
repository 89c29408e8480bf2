"""Passes in processes of their own, killed before a chosen call; their cloud and their real ledger outlive them."""

import os
import pickle
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from app.adapters import FleetMessages, holder_name, is_dead_neighbour
from app.ledgers import ledger_name
from gpufleet.ledger import operations
from gpufleet.ledger.fleet import FleetLedger
from gpufleet.ledger.schema import open_ledger
from gpufleet.settings.document import FleetDocument
from tests.watchdogs.worlds import FakeClock, World
from watchdogs.ports import Ports

LEASE_HELD = 9
Watch = Callable[[FleetDocument, Ports], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A folder with a world and its ledger."""

    folder: Path
    document: FleetDocument
    lease: str
    watch: Watch
    """One pass."""

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/ledger.db"

    def begin(self, world: World, ledger: Path) -> None:
        """Start from this world and a copy of this ledger."""
        self.folder.mkdir()
        shutil.copy(ledger, self.folder / "ledger.db")
        self.save(world)

    def save(self, world: World) -> None:
        """As a cloud does: what happened stays, whoever dies."""
        state = {f.name: getattr(world, f.name) for f in fields(world) if f.name != "before"}
        fresh = self.folder / "world.new"
        fresh.write_bytes(pickle.dumps(state))
        fresh.replace(self.folder / "world")

    def world(self) -> World:
        return World(**pickle.loads((self.folder / "world").read_bytes()))

    def run(self, kill_before: int = 0) -> tuple[int | None, int]:
        """One pass in a process; its exit code (None: killed) and how many calls it made."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = self._pass(kill_before)
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        calls = int((self.folder / "calls").read_text())
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            return None, calls
        return os.WEXITSTATUS(status), calls

    def _pass(self, kill_before: int) -> int:
        world = self.world()
        made = [0]

        def before(_: str) -> None:
            self.save(world)
            made[0] += 1
            (self.folder / "calls").write_text(str(made[0]))
            if made[0] == kill_before:
                os.kill(os.getpid(), signal.SIGKILL)

        world.before = before
        engine = open_ledger(self.url)
        ledger = FleetLedger(engine, ledger_name(self.document), self.lease, holder_name(), is_dead_neighbour)
        if ledger.take_lease(world.now) is not None:
            return LEASE_HELD
        ports = replace(
            world.ports(),
            ledger=Watched(ledger, before),
            messages=Watched(FleetMessages(engine, self.document, FakeClock(world)), before),
        )
        self.watch(self.document, ports)
        self.save(world)
        ledger.release_lease()
        return 0


class Watched:
    """A port whose every call is told first."""

    def __init__(self, inner: Any, before: Callable[[str], None]) -> None:
        self._inner, self._before = inner, before

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*given: Any, **named: Any) -> Any:
            self._before(name)
            return method(*given, **named)

        return call


def seeded(path: Path, document: FleetDocument, world: World, policies: dict[str, str]) -> Path:
    """A ledger with the world's targets in it and policies that were seen."""
    engine = open_ledger(f"sqlite:///{path}")
    for pool, target in world.targets.items():
        operations.seed_target(engine, ledger_name(document), pool, target.value, world.now)
        for watchdog, digest in policies.items():
            operations.see_policy(engine, ledger_name(document), (watchdog, pool, digest), "test", world.now)
    engine.dispose()
    return path


def opened(scene: Scene) -> Engine:
    """The scene's ledger, to look into."""
    return open_ledger(scene.url)
