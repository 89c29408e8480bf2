"""Finds processes of a run by their command lines, to kill or suspend them."""

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.evidence import Span
from tests.fixtures.e2e.embedded_cloud import wait_for


def find(*texts: str) -> list[int]:
    """Processes whose command line contains all of these texts."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in command for word in texts):
            found.append(int(entry.name))
    return found


def kill(pids: Iterable[int]) -> Span:
    """Send SIGKILL to each. Returns when the first was killed and when the last had ended."""
    began, killed = time.time(), list(pids)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_for("the end of what was killed", lambda: not any(map(_is_alive, killed)))
    return began, time.time()


def _is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
