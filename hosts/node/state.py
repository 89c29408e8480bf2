"""The instance's state: the API reads it, the agent's loop writes it, and a file keeps it across agent restarts."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from gpufleet.domain.clocks import is_over, rfc3339
from gpufleet.domain.drains import DrainOwner, owner_of_reason
from gpufleet.domain.files import write_atomically
from gpufleet.domain.model import Phase
from gpufleet.logs import Log, log_change
from hosts.node.drain import Order, merge
from hosts.node.ports import EngineIdentity, GateRequests

VERSION: Final = 1
LASTING: Final = frozenset({Phase.DRAINING, Phase.DRAINED, Phase.FAILED})
"""Phases that survive a restart of the agent."""


ROUTER_SILENT: Final = timedelta(seconds=10)
"""A router that sends no agent check for this long is gone. Each sends two per second
(`RouterSettings.agent_interval`)."""
MAX_ROUTERS: Final = 64
"""Maximum number of stored addresses: any host in the group's network can send agent checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RouterCheck:
    """The last agent check from one address."""

    at: datetime
    knows: bool
    """Whether the answer was `drain`: the router knows that the instance leaves rotation."""


@dataclass(slots=True, kw_only=True)
class BootStep:
    """The record of one boot step."""

    phase: Phase
    started: datetime
    ended: datetime | None = None
    attempts: int = 0
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class Counters:
    """The counters of `/metrics`."""

    engine_starts: int = 0
    requests_cut: int = 0
    bytes_fetched: int = 0
    bytes_kept: int = 0
    cache_retries: int = 0


class NodeState:
    """Phase, boot, drain and counters. Thread-safe."""

    def __init__(self, *, instance: str, pool: str, file: Path, now: Callable[[], datetime], log: Log) -> None:
        self.instance = instance
        self.pool = pool
        self.now = now
        self.log = log
        self.counters = Counters()
        self.requests_running: float | None = None
        self.engine_healthy = False
        self.engine: EngineIdentity | None = None
        """The engine that answered last; None: none has answered since this agent started."""
        self.gate_requests: Callable[[], GateRequests | None] = lambda: None
        """Asks the gate in front of the engine, each time that the metrics page is read: the answer has no lag."""
        self.rebalance_advised = False
        self.staged: str | None = None
        """The revision that the bucket declares as served, once it is in the cache."""
        self.switching_to: str | None = None
        """The revision that the engine is switching to. The instance is out of the router's rotation meanwhile."""
        self.order_keys: tuple[str, ...] = ()
        """Fingerprints of the keys whose orders this agent accepts."""
        self.switch_error: str | None = None
        """Why the last revision switch failed or was rolled back."""
        self.engine_stops: Path | None = None
        """A file that exists while systemd stops the engine for any reason (`engine_container.STOPPING_FILE`)."""
        self._file = file
        self._routers: dict[str, _RouterCheck] = {}
        self._lock = threading.RLock()
        self._phase = Phase.BOOTING
        self._since = now()
        self._error: str | None = None
        self._digest: str | None = None
        self._adapters: Mapping[str, str] = {}
        self._has_served = False
        self._order: Order | None = None
        self._steps: list[BootStep] = []
        self._warnings: dict[str, str] = {}
        self._load()

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def since(self) -> datetime:
        return self._since

    @property
    def order(self) -> Order | None:
        """The requested drain; None if there is none."""
        return self._order

    @property
    def digest(self) -> str | None:
        """The revision that is served or being loaded."""
        return self._digest

    @property
    def adapters(self) -> Mapping[str, str]:
        """The revision of each adapter that is served or being loaded, by its name in requests."""
        return self._adapters

    @property
    def has_served(self) -> bool:
        """Whether requests may be in flight: the instance was ready once, possibly under an earlier agent process."""
        return self._has_served

    @property
    def ready(self) -> bool:
        well = self._phase is Phase.READY and self.engine_healthy
        return well and self._order is None and self.switching_to is None

    def enter(self, phase: Phase, error: str | None = None) -> None:
        """Set the phase. During a drain, only the phases of the drain are accepted."""
        with self._lock:
            if self._order is not None and phase not in (Phase.DRAINING, Phase.DRAINED):
                # A boot that is still running must not undo a drain.
                return
            if phase is not self._phase:
                write = self.log.error if phase is Phase.FAILED else self.log.info
                write("phase", outcome=phase.value, error=error)
                self._phase, self._since = phase, self.now()
            self._error = error
            self._has_served = self._has_served or phase is Phase.READY
            self._save()

    def begin_step(self, phase: Phase) -> BootStep:
        """Record the start of a boot step."""
        with self._lock:
            self.enter(phase)
            step = BootStep(phase=phase, started=self.now())
            self._steps = [other for other in self._steps if other.phase is not phase] + [step]
            return step

    def order_drain(self, order: Order) -> Order:
        """Accept a drain, merge it with the current one and return the result."""
        with self._lock:
            if self._order is None:
                # A number read before the drain does not describe the requests that the drain waits for.
                self.requests_running = None
            held = self._order = merge(self._order, order)
            self.log.info(
                "drain",
                outcome="accepted",
                by=held.by,
                asked_by=order.by,
                detail=order.reason,
                deadline=held.deadline,
                notice_at=held.notice_at,
            )
            if self._phase not in (Phase.DRAINED, Phase.FAILED):
                self.enter(Phase.DRAINING)
            self._save()
            return held

    def serve(self, digest: str) -> None:
        """Set the revision that is being loaded."""
        with self._lock:
            self._digest = digest
            self._save()

    def serve_adapters(self, digests: Mapping[str, str]) -> None:
        """Set the revisions of the adapters that are being loaded."""
        with self._lock:
            self._adapters = dict(digests)
            self._save()

    def warn(self, subject: str, message: str | None) -> None:
        """Set a warning about a problem that does not prevent serving; None clears it."""
        with self._lock:
            before = self._warnings.get(subject)
            if message is None:
                self._warnings.pop(subject, None)
            else:
                self._warnings[subject] = message
            log_change(self.log, subject, before, message)

    def agent_check(self, router: str | None = None) -> str:
        """Return the answer to HAProxy's agent check. `router`: the caller's address; None if it is not a router."""
        with self._lock:
            leaves = self._leaves_rotation()
            if router is not None:
                self._routers.pop(router, None)
                self._routers[router] = _RouterCheck(at=self.now(), knows=leaves)
                if len(self._routers) > MAX_ROUTERS:
                    del self._routers[next(iter(self._routers))]
            if leaves:
                return "drain"
            return "up ready" if self.ready else "down"

    def _leaves_rotation(self) -> bool:
        if self._order is not None or (self.switching_to is not None and self._phase is Phase.READY):
            return True
        stops = self.engine_stops is not None and self.engine_stops.exists()
        return stops or self._phase in (Phase.DRAINING, Phase.DRAINED)

    @property
    def routers_know(self) -> bool:
        """Whether each router that still sends agent checks was notified that this instance leaves rotation."""
        with self._lock:
            now = self.now()
            return all(asker.knows or is_over(asker.at, ROUTER_SILENT, now) for asker in self._routers.values())

    def steps(self) -> list[BootStep]:
        """Return the boot steps so far."""
        with self._lock:
            return list(self._steps)

    def status(self) -> dict[str, Any]:
        """Return the document of `GET /status`."""
        with self._lock:
            order = self._order
            return {
                "version": VERSION,
                "instance": self.instance,
                "pool": self.pool,
                "phase": self._phase.value,
                "phase_since": rfc3339(self._since),
                "ready": self.ready,
                "draining": order is not None,
                "drained": self._phase is Phase.DRAINED,
                "by": order.by.value if order else None,
                "reason": order.reason if order else None,
                "deadline": rfc3339(order.deadline) if order else None,
                "notice_at": rfc3339(order.notice_at) if order and order.notice_at else None,
                "model_digest": self._digest,
                "model_staged": self.staged,
                "adapters": dict(self._adapters),
                "switching_to": self.switching_to,
                "switch_error": self.switch_error,
                "has_served": self._has_served,
                "requests_running": self.requests_running,
                "rebalance_advised": self.rebalance_advised,
                "order_keys": list(self.order_keys),
                "error": self._error,
                "warnings": dict(self._warnings),
                "boot": [
                    {
                        "step": step.phase.value,
                        "started": rfc3339(step.started),
                        "ended": rfc3339(step.ended) if step.ended else None,
                        "attempts": step.attempts,
                        "error": step.error,
                    }
                    for step in self._steps
                ],
            }

    def _save(self) -> None:
        order = self._order
        value = {
            "version": VERSION,
            "phase": self._phase.value,
            "since": rfc3339(self._since),
            "error": self._error,
            "digest": self._digest,
            "adapters": dict(self._adapters),
            "has_served": self._has_served,
            "order": None if order is None else _written(order),
        }
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, json.dumps(value, indent=1).encode() + b"\n")
        except OSError as error:
            # A full disk must not prevent a drain.
            message = f"{self._file}: {error.strerror}; the agent cannot restore this phase after a restart"
            self.warn("state", message)
        else:
            self.warn("state", None)

    def _load(self) -> None:
        """Restore the state of an earlier agent process: drains and failures persist, boots are repeated."""
        try:
            value: Mapping[str, Any] = json.loads(self._file.read_bytes())
            phase, order = Phase(value["phase"]), value["order"]
            if order is not None:
                self._order = _read(order)
            if phase in LASTING:
                self._phase, self._error = phase, value["error"]
                self._since = datetime.fromisoformat(value["since"])
            self._digest, self._has_served = value["digest"], bool(value["has_served"])
            self._adapters = dict(value.get("adapters", {}))
        except (OSError, ValueError, KeyError, TypeError):
            # No file, or one truncated by a full disk: the boot steps determine the state.
            return


def _written(order: Order) -> dict[str, str | None]:
    return {
        "by": order.by.value,
        "reason": order.reason,
        "asked_at": rfc3339(order.asked_at),
        "deadline": rfc3339(order.deadline),
        "notice_at": rfc3339(order.notice_at) if order.notice_at else None,
    }


def _read(written: Mapping[str, str]) -> Order:
    """Read a stored drain. Raises KeyError, TypeError, ValueError."""
    reason, asked_at = written["reason"], datetime.fromisoformat(written["asked_at"])
    deadline = datetime.fromisoformat(written["deadline"])
    if "by" not in written:  # written by release 0.1
        owner, noticed = owner_of_reason(reason)
        by, notice_at = owner or DrainOwner.PERSON, asked_at if noticed else None
    else:
        by = DrainOwner(written["by"])
        notice_at = datetime.fromisoformat(written["notice_at"]) if written["notice_at"] else None
    return Order(by=by, reason=reason, asked_at=asked_at, deadline=deadline, notice_at=notice_at)
