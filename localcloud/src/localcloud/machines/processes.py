"""Processes of a machine: start them in separate sessions, find all descendants, end them."""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that none is lost."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(
    argv: Sequence[str], environment: Mapping[str, str], directory: Path, log: Path, *, journal: bool = False
) -> int:
    """Start a program in a session of its own, output appended to `log`. Returns its pid. Raises OSError.

    `journal`: it learns, as from systemd, that its output is the journal.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    try:
        found = os.fstat(output)
        named = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"} if journal else {}
        return _spawn(argv, {**environment, **named}, directory, output)
    finally:
        os.close(output)


def _spawn(argv: Sequence[str], environment: Mapping[str, str], directory: Path, output: int) -> int:
    program = find(argv[0], environment.get("PATH", ""))
    # `env --chdir` starts it in its folder: posix_spawn cannot
    return os.posix_spawn(
        "/usr/bin/env",
        ["env", f"--chdir={directory}", "--", program, *argv[1:]],
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE],
    )


def find(program: str, path: str) -> str:
    """The file of a program. The image's commands take precedence, also over an absolute path.

    Raises FileNotFoundError when it is nowhere.
    """
    folders = [folder for folder in path.split(":") if folder]
    name = os.path.basename(program)  # noqa: PTH119 - a word of a command line, not a file yet
    if "/" in program and not (folders and os.access(f"{folders[0]}/{name}", os.X_OK)):
        candidates = [program]
    else:
        candidates = [f"{folder}/{name}" for folder in folders]
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError(2, f"no program {program!r} on this machine", program)


def send(pid: int, number: int, *, group: bool) -> None:
    """Signal a process, or its whole group; no effect if it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)


def children(of: int) -> Iterator[int]:
    """All running descendants, from /proc."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    waiting = [of]
    while waiting:
        found = parents.get(waiting.pop(), [])
        yield from found
        waiting.extend(found)


def reap() -> Iterator[tuple[int, int]]:
    """Children that ended since the last call: pid and exit code (negative: signal)."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)
