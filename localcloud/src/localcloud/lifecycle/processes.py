"""Processes that outlive the command which starts them: start, find and end them. Linux only.

A process is identified by its number, its start time and the machine's boot, so that a number that was given to
another process is never signalled; signals go through a pidfd opened before that is checked.
"""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ENV: Final = "/usr/bin/env"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process; a later process with the same id is a different one."""

    name: str
    pid: int
    started: int
    """Clock ticks since boot, from /proc/PID/stat."""
    boot: str

    @property
    def alive(self) -> bool:
        return self.boot == _boot_id() and _start_time(self.pid) == self.started

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        half = folder / f".{self.name}.json"
        half.write_text(json.dumps(asdict(self)) + "\n")
        half.replace(folder / f"{self.name}.json")


def load(folder: Path, name: str) -> Process | None:
    """The record of a process, running or not; None without a readable record."""
    try:
        known = json.loads((folder / f"{name}.json").read_text())
        return Process(name=name, pid=int(known["pid"]), started=int(known["started"]), boot=str(known["boot"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def start(name: str, command: Sequence[str], *, environment: Mapping[str, str], cwd: Path, log: Path) -> Process:
    """Start a process in a session of its own, with its output appended to `log`. Raises OSError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    pid = os.posix_spawn(
        ENV,
        [ENV, "-C", str(cwd), *command],  # posix_spawn itself has no working directory
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
    )
    started = _start_time(pid)
    return Process(name=name, pid=pid, started=-1 if started is None else started, boot=_boot_id())


def describe(pid: int, name: str = "") -> Process | None:
    """The present process with this id."""
    started = _start_time(pid)
    return (
        None if started is None else Process(name=name or command_of(pid), pid=pid, started=started, boot=_boot_id())
    )


def end(processes: Iterable[Process], limit_s: float) -> tuple[Process, ...]:
    """Terminate all, wait up to `limit_s`, then kill. Returns those that were killed."""
    with contextlib.ExitStack() as stack:
        waiting = {fd: process for process in processes if (fd := stack.enter_context(_opened(process))) is not None}
        for fd in waiting:
            _signal(fd, signal.SIGTERM)
        _wait_until_ended(waiting, time.monotonic() + limit_s)
        killed = tuple(waiting.values())
        for fd in waiting:
            _signal(fd, signal.SIGKILL)
        _wait_until_ended(waiting, time.monotonic() + 5)
        return killed


def find_marked(is_marked: Callable[[Mapping[str, str]], bool]) -> tuple[Process, ...]:
    """Running processes with the mark in their environment, without the caller and its ancestors."""
    own = set(_ancestors())
    found: list[Process] = []
    for pid in _all_pids():
        if pid in own:
            continue
        # order matters: read the start time first, so that it cannot belong to a later process than the environment
        process = describe(pid)
        if process is not None and is_marked(environment_of(pid)):
            found.append(process)
    return tuple(found)


def environment_of(pid: int) -> dict[str, str]:
    """The environment of a process; empty when it has ended or belongs to another user."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def command_of(pid: int) -> str:
    """The command line, cut short."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    return b" ".join(arguments).decode(errors="replace").strip()[:120] or "?"


def _all_pids() -> Generator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _ancestors() -> Generator[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name: state, parent, …"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _start_time(pid: int) -> int | None:
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":  # a zombie has ended
        return None
    return int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextlib.contextmanager
def _opened(process: Process) -> Generator[int | None]:
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        yield None
        return
    try:
        yield fd if process.alive else None
    finally:
        os.close(fd)


def _signal(fd: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(fd, number)


def _wait_until_ended(waiting: dict[int, Process], until: float) -> None:
    """Remove processes from `waiting` as they end (their pidfd becomes readable)."""
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    while waiting and (left := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            poll.unregister(fd)
            process = waiting.pop(fd)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
