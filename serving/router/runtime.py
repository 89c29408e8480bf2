"""HAProxy's admin socket: commands in, text out."""

import csv
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """One server as `show stat` describes it."""

    pool: str
    name: str
    address: str
    status: str
    """As HAProxy writes it: `UP`, `DOWN (agent)`, `DRAIN`, `MAINT`, …"""
    sessions: int
    """Requests on it now."""
    agent_status: str
    """Of the last agent check: `L7OK`, `L4CON`, …; empty: none yet."""
    total: int
    """Requests that it ever got."""
    queued: int

    @property
    def ready(self) -> bool:
        return self.status.startswith("UP")


class AdminSocket:
    """Talks to the running worker."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def ask(self, *commands: str) -> str:
        """Run commands in order in one connection; their answers joined. Raises OSError."""
        line = ";".join(commands)
        answer = bytearray()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._timeout_s)
            connection.connect(str(self._path))
            connection.sendall(line.encode() + b"\n")
            while chunk := connection.recv(262_144):
                answer += chunk
        return answer.decode(errors="replace").strip()

    def servers(self, prefix: str = "pool_") -> tuple[ServerStatus, ...]:
        """Every server of every pool. Raises OSError."""
        return parse_stat(self.ask("show stat"), prefix)

    def process_id(self) -> int:
        """Of the worker that answers. Raises OSError."""
        for line in self.ask("show info").splitlines():
            key, _, value = line.partition(": ")
            if key == "Pid":
                return int(value)
        raise OSError("HAProxy's `show info` names no Pid")


def parse_stat(text: str, prefix: str = "pool_") -> tuple[ServerStatus, ...]:
    """Read the CSV of `show stat`: servers of backends whose name starts with `prefix`. Raises OSError."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("# "):
        raise OSError(f"HAProxy's `show stat` is not understood: {text[:80]!r}")
    names = lines[0][2:].split(",")
    found: list[ServerStatus] = []
    for line in lines[1:]:
        row = dict(zip(names, _fields(line), strict=False))
        if row.get("type") == "2" and row.get("pxname", "").startswith(prefix):
            found.append(_server(row, prefix))
    return tuple(found)


def _server(row: dict[str, str], prefix: str) -> ServerStatus:
    return ServerStatus(
        pool=row["pxname"].removeprefix(prefix),
        name=row["svname"],
        address=row["addr"].rpartition(":")[0],
        status=row["status"],
        sessions=int(row["scur"] or 0),
        agent_status=row["agent_status"].removeprefix("* "),
        total=int(row["stot"] or 0),
        queued=int(row["qcur"] or 0),
    )


def _fields(line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    return next(csv.reader([line]))
