"""The loop that keeps HAProxy in line with the fleet: document, inventory, servers."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, Any, Protocol

from fleet.document import FleetDocument, parse, render
from fleet.model import Instance
from serving.router import membership
from serving.router.process import Haproxy, HaproxyError, check_config
from serving.router.render import render as render_config
from serving.router.render import render_models
from serving.router.runtime import ServerStatus
from serving.router.settings import RouterPaths, RouterSettings
from serving.router.topology import Replica, Topology, from_document, replicas_of

EMPTY = Topology(environment="", pools=())


class Fleet(Protocol):
    """Where fleet documents and instances come from."""

    def document(self) -> FleetDocument:
        """The document as it is now. Raises OSError or ValueError."""
        ...

    def instances(self, document: FleetDocument) -> Sequence[Instance]:
        """Every instance of the environment. Raises OSError; never a shorter list."""
        ...


class BusyError(RuntimeError):
    """Another controller has this state folder."""


@dataclass(slots=True, kw_only=True)
class Health:
    """What is wrong now; empty texts: nothing."""

    document: str = "not read yet"
    inventory: str = ""
    config: str = ""
    haproxy: str = ""


@dataclass(slots=True)
class Controller:
    """Drives one HAProxy. `say` gets one line for each thing that happens."""

    fleet: Fleet
    settings: RouterSettings
    paths: RouterPaths
    say: Callable[[str], None]
    document_every_s: float = 5.0
    clock: Callable[[], float] = time.monotonic
    health: Health = field(default_factory=Health)
    haproxy: Haproxy = field(init=False)
    _document: FleetDocument | None = None
    _topology: Topology = EMPTY
    _wanted: tuple[Replica, ...] = ()
    _memory: membership.Memory = field(default_factory=membership.Memory)
    _document_at: float | None = None
    _reloads: int = 0

    def __post_init__(self) -> None:
        self.haproxy = Haproxy(self.paths)

    def start(self) -> None:
        """Start HAProxy with the last good document, or with no pool at all: it says 503 until there is one."""
        try:
            source = self.paths.last_document
            self._document = parse(source.read_bytes(), str(source))
            self._topology = from_document(self._document)
        except FileNotFoundError:
            self.say("no fleet document yet; answering 503 until there is one")
        except ValueError as error:
            self.say(f"the kept fleet document is of no use: {error}")
        # Without servers: HAProxy would hold each one UP until its first check. They come by the admin socket.
        self._write_config(self._topology, ())
        self.haproxy.start()
        self.say(f"HAProxy listens on {self.settings.bind}")

    def tick(self) -> None:
        """One pass. Whatever fails, what was good before goes on."""
        self._keep_running()
        self._read_document()
        self._read_inventory()
        self._move_servers()
        self._write_status()

    def stop(self, grace_s: float) -> None:
        """Take no more connections, wait for requests, end."""
        self.haproxy.stop(grace_s)

    def _keep_running(self) -> None:
        if self.haproxy.running:
            return
        self.say("HAProxy ended by itself; starting it again")
        try:
            self._write_config(self._topology, ())
            self.haproxy.start()
            self._memory = membership.Memory()
            self.health.haproxy = ""
        except OSError as error:
            self._note("haproxy", str(error))

    def _read_document(self) -> None:
        now = self.clock()
        waiting = self._document is None
        if self._document_at is not None and not waiting and now - self._document_at < self.document_every_s:
            return
        self._document_at = now
        try:
            document = self.fleet.document()
        except (OSError, ValueError) as error:
            kept = "" if waiting else "; keeping the last good one"
            self._note("document", f"fleet document: {error}{kept}")
            return
        self._note("document", "")
        if document == self._document and not self.health.config:
            return
        topology = from_document(document)
        if topology != self._topology and not self._apply(topology):
            return
        self._document = document
        _write(self.paths.last_document, render(document))

    def _apply(self, topology: Topology) -> bool:
        """Put a new topology in place; the old one stays if HAProxy refuses the new."""
        try:
            kept = [r for r in self._wanted if r.pool in {pool.name for pool in topology.pools}]
            shown = {(s.pool, s.name) for s in self.haproxy.admin.servers()}
            self._write_config(topology, [r for r in kept if (r.pool, r.name) in shown])
            self.haproxy.reload()
        except (OSError, HaproxyError) as error:
            self._note("config", f"configuration not changed: {error}")
            return False
        self._note("config", "")
        self._topology = topology
        self._reloads += 1
        self.say(f"pools: {', '.join(pool.name for pool in topology.pools) or 'none'}")
        return True

    def _write_config(self, topology: Topology, replicas: Sequence[Replica]) -> None:
        _write(self.paths.models_map, render_models(topology))
        self.paths.candidate.write_text(render_config(topology, replicas, self.settings, self.paths))
        check_config(self.paths.candidate)
        self.paths.candidate.replace(self.paths.config)

    def _read_inventory(self) -> None:
        if self._document is None:
            return
        try:
            instances = self.fleet.instances(self._document)
        except OSError as error:
            self._note("inventory", f"inventory: {error}; keeping the servers there are")
            return
        self._note("inventory", "")
        self._wanted = replicas_of(instances, self._topology)

    def _move_servers(self) -> None:
        if self._document is None or self.health.inventory:
            return
        rules = membership.Rules(
            settings=self.settings, silent=self.settings.agent_silent_limit, cut=self.settings.response_timeout
        )
        try:
            shown = self.haproxy.admin.servers()
            changes, self._memory = membership.plan(self._wanted, shown, self._memory, rules=rules, now=self.clock())
            for change in changes:
                answer = self.haproxy.admin.ask(*change.commands)
                self.say(f"{change.pool}/{change.server}: {change.step}" + (f" ({answer})" if answer else ""))
            self._note("haproxy", "")
        except OSError as error:
            self._note("haproxy", f"admin socket: {error}")

    def _write_status(self) -> None:
        try:
            servers = self.haproxy.admin.servers()
        except OSError:
            servers = ()
        _write(self.paths.status, json.dumps(self.describe(servers), indent=2) + "\n")

    def describe(self, servers: Sequence[ServerStatus]) -> dict[str, Any]:
        """What `gpufleet router status` shows."""
        return {
            "version": 1,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "pid": os.getpid(),
            "bind": self.settings.bind,
            "environment": self._topology.environment,
            "reloads": self._reloads,
            "problems": [text for text in vars_of(self.health) if text],
            "models": dict(self._topology.models),
            "pools": [
                {
                    "name": pool.name,
                    "model": pool.served_name,
                    "servers": [
                        {
                            "instance": server.name,
                            "address": server.address,
                            "status": server.status,
                            "agent": server.agent_status,
                            "sessions": server.sessions,
                            "requests": server.total,
                        }
                        for server in servers
                        if server.pool == pool.name
                    ],
                }
                for pool in self._topology.pools
            ],
        }

    def _note(self, what: str, text: str) -> None:
        """Remember a problem, and say it when it changes."""
        if text and text != getattr(self.health, what):
            self.say(text)
        elif not text and getattr(self.health, what) and what != "document":
            self.say(f"{what} is well again")
        setattr(self.health, what, text)


def vars_of(health: Health) -> tuple[str, ...]:
    """The texts of a Health."""
    return (health.document, health.inventory, health.config, health.haproxy)


@contextmanager
def only_one(paths: RouterPaths):  # noqa: ANN201
    """Hold the state folder. Raises BusyError: two controllers would undo each other's work."""
    paths.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with paths.lock.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"{paths.state}: another router controller (process {_holder(lock)}) runs here") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _holder(lock: IO[str]) -> str:
    lock.seek(0)
    return lock.read(32).strip() or "unknown"


def _write(path: Any, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)
