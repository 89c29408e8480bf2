"""HAProxy's admin socket: sends commands, returns text."""

import csv
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serving.router.pools import ACTIVATOR
from serving.router.settings import ADMIN_SOCKET
from serving.router.topology import pool_of

TIMEOUT_S: Final = 5.0
_MAX_BYTES: Final = 12_000
"""Maximum bytes of commands in one line; HAProxy reads a line into one buffer (16 KiB at least)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """One server in `show stat`."""

    backend: str
    name: str
    address: str
    status: str
    """HAProxy's own text: `UP`, `DOWN (agent)`, `DRAIN`, `MAINT`, …"""
    sessions: int
    """Current requests."""
    agent_status: str
    """Result of the last agent check: `L7OK`, `L4CON`, …; empty: none yet."""
    check_status: str
    """Result of the last health check, in the same format."""
    total: int
    """Total requests so far."""
    errors: int
    """Total responses that are 5xx, that were cut off, or that the router refused (wrong key at the engine)."""
    bytes_out: int
    weight: int

    @property
    def pool(self) -> str:
        return pool_of(self.backend)

    @property
    def path(self) -> str:
        """Name of the server in commands: `backend/name`."""
        return f"{self.backend}/{self.name}"

    @property
    def unreachable(self) -> bool:
        """Whether its machine does not respond at all, not even with a refused connection."""
        return self.agent_status == self.check_status == "L4TOUT"

    @property
    def ready(self) -> bool:
        """Whether both its checks succeed."""
        return self.status.startswith(("UP", "no check"))


class AdminSocket:
    """Connects to the running worker. The folder's path may have any length, unlike a socket's path."""

    def __init__(self, folder: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._folder = folder
        self._timeout_s = timeout_s

    def ask(self, *commands: str) -> str:
        """Run commands in order; return their joined answers. Raises OSError."""
        return "\n".join(answer for batch in _batches(commands) if (answer := self._ask(batch)))

    def ask_with(self, command: str, payload: str) -> str:
        """Run a command with several lines of text; no line may be empty. Raises OSError."""
        return self._ask(f"{command} <<\n{payload}\n")

    def _ask(self, line: str) -> str:
        answer = bytearray()
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._timeout_s)
                connection.connect(f"/proc/self/fd/{folder}/{ADMIN_SOCKET}")
                connection.sendall(line.encode() + b"\n")
                while chunk := connection.recv(262_144):
                    answer += chunk
        finally:
            os.close(folder)
        return "\n".join(part for part in answer.decode(errors="replace").splitlines() if part.strip())

    def servers(self) -> tuple[ServerStatus, ...]:
        """Return all replicas of all pools. Raises OSError."""
        return parse_stat(self.ask("show stat -1 4 -1"))

    def process_id(self) -> int:
        """Return the process ID of the worker that responds. Raises OSError."""
        for line in self.ask("show info").splitlines():
            key, _, value = line.partition(": ")
            if key == "Pid":
                return int(value)
        raise OSError("HAProxy's `show info` contains no Pid")


def _batches(commands: Iterable[str]) -> Iterable[str]:
    """Join commands to lines; no line exceeds HAProxy's limit."""
    line = ""
    for command in commands:
        if line and len(line) + len(command) >= _MAX_BYTES:
            yield line
            line = ""
        line = f"{line};{command}" if line else command
    if line:
        yield line


def parse_stat(text: str) -> tuple[ServerStatus, ...]:
    """Parse the CSV of `show stat`: the replicas in backends of pools. Raises OSError."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("# "):
        raise OSError(f"HAProxy's `show stat` cannot be parsed: {text[:80]!r}")
    names = lines[0][2:].split(",")
    found: list[ServerStatus] = []
    for line in lines[1:]:
        fields = next(csv.reader([line])) if '"' in line else line.split(",")
        row = dict(zip(names, fields, strict=False))
        if row.get("type") == "2" and row["pxname"].startswith("pool_") and row["svname"] != ACTIVATOR:
            found.append(_server(row))
    return tuple(found)


def _server(row: dict[str, str]) -> ServerStatus:
    return ServerStatus(
        backend=row["pxname"],
        name=row["svname"],
        address=row["addr"].rpartition(":")[0],
        status=row["status"],
        sessions=int(row["scur"] or 0),
        agent_status=row["agent_status"].removeprefix("* "),
        check_status=row["check_status"].removeprefix("* "),
        total=int(row["stot"] or 0),
        errors=sum(int(row[name] or 0) for name in ("hrsp_5xx", "eresp", "dresp")),
        bytes_out=int(row["bout"] or 0),
        weight=int(row["weight"] or 0),
    )
