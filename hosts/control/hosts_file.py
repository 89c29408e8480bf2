"""Entries in `/etc/hosts` that resolve names of this machine to its loopback address."""

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpufleet.domain.files import write_atomically

LOOPBACK: Final = "127.0.0.1"
_MARK: Final = "# gpufleet"


def is_this_machine(name: str) -> bool:
    """Return whether a name or an address resolves to an address that this machine can bind."""
    try:
        [(_, _, _, _, address), *_] = socket.getaddrinfo(name, 0, socket.AF_INET, socket.SOCK_DGRAM)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
            tried.bind(address)
    except OSError:
        return False
    return True


def is_address(name: str) -> bool:
    """Return whether `name` is an IP address: `/etc/hosts` cannot redirect an address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def resolve_to_loopback(name: str, hosts: Path, is_here: Callable[[str], bool] = is_this_machine) -> bool:
    """Resolve a name of this machine to its loopback address; return whether it does. Ignore names of other machines.

    Raises OSError.
    """
    if is_address(name):
        return ipaddress.ip_address(name).is_loopback
    if not is_here(name):
        return False
    there = hosts.read_text("utf-8").splitlines()
    wanted = [*(line for line in there if not line.endswith(_MARK)), f"{LOOPBACK} {name} {_MARK}"]
    if there != wanted:
        write_atomically(hosts, ("\n".join(wanted) + "\n").encode())
    return True
