"""Listening sockets and their processes. Linux only."""

import contextlib
import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LISTEN: Final = "0A"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A socket that listens."""

    address: str
    port: int
    pid: int | None
    """None: the process belongs to another user."""


def find_listener(address: str, port: int) -> Listener | None:
    """The listeners that occupy `address:port`, including wildcard listeners."""
    for held, held_port, inode in _listening():
        if held_port == port and held in (address, "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
            return Listener(address=held, port=port, pid=_owner(inode))
    return None


def find_listeners_in(network: str) -> tuple[Listener, ...]:
    """All listeners on addresses of `network`, such as `127.16.0.0/16`."""
    inside = ipaddress.ip_network(network)
    return tuple(
        Listener(address=held, port=port, pid=_owner(inode))
        for held, port, inode in _listening()
        if "." in held and ipaddress.ip_address(held) in inside
    )


def can_listen(address: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True


def _listening() -> list[tuple[str, int, str]]:
    found: list[tuple[str, int, str]] = []
    for name in ("tcp", "tcp6"):
        table = Path("/proc/net", name)
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == LISTEN:
                host, _, port = fields[1].partition(":")
                found.append((_readable(host), int(port, 16), fields[9]))
    return found


def _readable(host: str) -> str:
    # /proc/net/tcp prints 32-bit words in the machine's byte order
    packed = b"".join(bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8))
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _owner(inode: str) -> int | None:
    wanted = f"socket:[{inode}]"
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        if wanted in _descriptors(process):
            return int(process.name)
    return None


def _descriptors(process: Path) -> set[str]:
    """The open files of a process; empty when it has ended or belongs to another user."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found.add(str(link.readlink()))
    return found
