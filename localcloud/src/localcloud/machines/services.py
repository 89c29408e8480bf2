"""The lifecycle of one unit as in systemd: start, watch, restart, stop."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from localcloud.machines.units import Command, KillMode, Restart, Unit, UnitError, arguments, environment_file

_CLEAN_SIGNALS: Final = (-15, -2, -1, -13)
"""SIGTERM, SIGINT, SIGHUP, SIGPIPE: for systemd an end by these is clean."""


class State(StrEnum):
    """systemd's ActiveState."""

    INACTIVE = "inactive"
    ACTIVATING = "activating"
    ACTIVE = "active"
    DEACTIVATING = "deactivating"
    FAILED = "failed"


class Host(Protocol):
    """The machine, as its services use it."""

    def spawn(self, argv: list[str], environment: Mapping[str, str], directory: str | None, log: str) -> int:
        """Start a process; returns its pid. Raises OSError."""
        ...

    def signal(self, pid: int, name: str, *, group: bool) -> None:
        """Send a signal."""
        ...

    def root(self) -> Path:
        """The machine's private root."""
        ...

    def environment(self) -> Mapping[str, str]:
        """The environment of all processes of the machine."""
        ...


@dataclass(slots=True)
class Service:
    """One unit and its processes. Driven by `tick` and `ended`; never waits."""

    unit: Unit
    host: Host
    clock: Callable[[], float]
    state: State = State.INACTIVE
    main_pid: int | None = None
    result: str = ""
    restarts: int = 0
    _helper: tuple[int, Command, str] | None = None
    """The running Exec line other than ExecStart: pid, command, purpose."""
    _queue: deque[tuple[Command, str]] = field(default_factory=deque[tuple[Command, str]])
    _deadline: float | None = None
    _again_at: float | None = None
    _starts: list[float] = field(default_factory=list[float])
    _wanted: bool = False

    def start(self) -> None:
        """Start the unit; no effect if it runs or starts already."""
        if self.state in (State.ACTIVE, State.ACTIVATING):
            return
        now = self.clock()
        self._wanted, self._again_at = True, None
        self._starts = [at for at in self._starts if now - at < self.unit.start_limit_interval_s]
        if self.unit.start_limit_burst and len(self._starts) >= self.unit.start_limit_burst:
            self._fail("start-limit-hit")
            return
        self._starts.append(now)
        self.state, self.result = State.ACTIVATING, ""
        self._deadline = now + self.unit.timeout_start_s
        self._queue = deque((command, "pre") for command in self.unit.start_pre)
        self._queue.extend((command, "main") for command in self.unit.start)
        self._next()

    def stop(self) -> None:
        """Stop the unit: ExecStop, then the stop signal, after TimeoutStopSec SIGKILL."""
        self._wanted, self._again_at = False, None
        if self.state in (State.INACTIVE, State.FAILED, State.DEACTIVATING):
            if self.state is State.FAILED:
                self.state = State.INACTIVE
            return
        self.state = State.DEACTIVATING
        self._deadline = self.clock() + self.unit.timeout_stop_s
        self._queue = deque((command, "stop") for command in self.unit.stop) if self.main_pid else deque()
        if self._helper is not None:
            self.host.signal(self._helper[0], "SIGTERM", group=True)
            return
        self._next()

    def reset_failed(self) -> None:
        """Reset a failure and the start counter; a running unit is not affected."""
        self._starts.clear()
        if self.state is State.FAILED:
            self.state, self.result = State.INACTIVE, ""

    def kill(self, name: str) -> None:
        """`systemctl kill`."""
        if self.main_pid is not None:
            self.host.signal(self.main_pid, name, group=True)

    def ended(self, pid: int, code: int) -> bool:
        """Handle the end of a process. Returns whether it belonged to this unit."""
        if self._helper is not None and pid == self._helper[0]:
            _, command, role = self._helper
            self._helper = None
            self._helper_ended(command, role, code)
            return True
        if pid == self.main_pid:
            # kill the remaining processes of the main process's group
            if self.unit.kill_mode in (KillMode.CONTROL_GROUP, KillMode.MIXED):
                self.host.signal(pid, "SIGKILL", group=True)
            self.main_pid = None
            self._main_ended(code)
            return True
        return False

    def tick(self) -> None:
        """Apply deadlines and delayed restarts."""
        now = self.clock()
        if self._again_at is not None and now >= self._again_at:
            self.restarts += 1
            self.state = State.INACTIVE
            self.start()
        if self._deadline is None or now < self._deadline:
            return
        self._deadline = None
        self.result = "timeout"
        for pid in (self.main_pid, self._helper[0] if self._helper else None):
            if pid is not None:
                self.host.signal(pid, "SIGKILL", group=True)

    def next_deadline(self) -> float | None:
        """The next time at which `tick` has an effect."""
        times = [at for at in (self._deadline, self._again_at) if at is not None]
        return min(times, default=None)

    def _next(self) -> None:
        """Run the next Exec line, or set the final state."""
        if self._queue:
            command, role = self._queue.popleft()
            try:
                pid = self._spawn(command)
            except (OSError, ValueError) as error:
                self._could_not_spawn(command, role, error)
                return
            if role == "main" and self.unit.type != "oneshot":
                self.main_pid = pid
                self.state, self._deadline = State.ACTIVE, None
                self._queue = deque((post, "post") for post in self.unit.start_post)
                self._next()
            else:
                self._helper = (pid, command, role)
        elif self.state is State.ACTIVATING:
            done = self.unit.remain_after_exit
            self.state, self._deadline = (State.ACTIVE if done else State.INACTIVE), None
        elif self.state is State.DEACTIVATING:
            self._send_stop()

    def _could_not_spawn(self, command: Command, role: str, error: Exception) -> None:
        if command.may_fail or role in ("stop", "post"):
            self._next()
        else:
            self._fail(f"exec: {error}")

    def _spawn(self, command: Command) -> int:
        environment = self._environment()
        if self.main_pid is not None:
            environment["MAINPID"] = str(self.main_pid)
        argv = arguments(command.line, environment)
        return self.host.spawn(argv, environment, self.unit.working_directory, self.unit.name)

    def _environment(self) -> dict[str, str]:
        found = {**self.host.environment(), **self.unit.environment}
        for given in self.unit.environment_files:
            path = Path(given.lstrip("-"))
            root = self.host.root()
            inside = path if path.is_relative_to(root) else root / path.relative_to("/")
            if inside.is_file():
                found.update(environment_file(inside.read_text("utf-8")))
            elif not given.startswith("-"):
                raise UnitError(f"{self.unit.name}: EnvironmentFile={given} does not exist")
        return found

    def _helper_ended(self, command: Command, role: str, code: int) -> None:
        if self.state is State.DEACTIVATING and role != "stop":
            self._queue.clear()
            self._send_stop()
        elif code != 0 and not command.may_fail and role in ("pre", "main"):
            self._fail(self.result or "exit-code")
        else:
            self._next()

    def _send_stop(self) -> None:
        if self.main_pid is None:
            self._set_stopped()
        elif self.unit.kill_mode is not KillMode.NONE:
            group = self.unit.kill_mode is KillMode.CONTROL_GROUP
            self.host.signal(self.main_pid, self.unit.kill_signal, group=group)

    def _set_stopped(self) -> None:
        failed = self.result == "timeout"
        self.state, self._deadline = (State.FAILED if failed else State.INACTIVE), None
        self._queue.clear()

    def _main_ended(self, code: int) -> None:
        clean = code == 0 or code in _CLEAN_SIGNALS or str(code) in self.unit.success_exit_status
        if self.state is State.DEACTIVATING:
            if self._helper is None:
                self._set_stopped()
            return
        if clean and self.unit.restart is not Restart.ALWAYS:
            self.state = State.ACTIVE if self.unit.remain_after_exit else State.INACTIVE
            return
        self._fail("success" if clean else "exit-code")

    def _fail(self, result: str) -> None:
        self.state, self.result, self._deadline = State.FAILED, result, None
        self._queue.clear()
        if result != "start-limit-hit" and self._wanted and self.unit.restart is not Restart.NO:
            self.state = State.ACTIVATING
            self._again_at = self.clock() + self.unit.restart_s
