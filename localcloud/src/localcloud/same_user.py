"""Servers without a token, as their real counterparts: open only to processes of the same Unix user.

Instance metadata returns the machine's credentials without authentication. In a real cloud only the machine reaches
it; here every process of this computer does, so the owner of each connection is read from the kernel
(`/proc/net/tcp`, proc_pid_net(5)).
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from http import HTTPStatus
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from gpufleet.domain.loopback import foreign
from gpufleet.http_server import Answer, HttpRequest, ServerLimits
from localcloud.callers import MESSAGES, Unknown, log_refusal

_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED: Final = "01"
"""In every other state the kernel may name root, as of sockets that no process has open any more."""


LIMITS: Final = ServerLimits(connections=1024, request_s=600, idle_s=600)
"""Of servers that clients with pools of connections and large uploads ask, on a computer that may be busy."""


def refused(request: HttpRequest, server: str) -> Answer | None:
    """The answer to a request that is not of this user's processes, or that a page of another site may have sent."""
    found = foreign(request.header, {f"{request.own[0]}:{request.own[1]}"})
    if found is None and not is_of_user(os.getuid(), request.client, request.own):
        found = Unknown.OTHER_USER
    if found is None:
        return None
    log_refusal(server, request.method, request.path, found)
    return Answer(status=HTTPStatus.FORBIDDEN, body=f"{MESSAGES[found]}\n", content_type="text/plain")


def is_of_user(uid: int, peer: tuple[str, int], own: tuple[str, int]) -> bool:
    """Whether the other end of a connection on loopback is of a Unix user; False also if no process has it."""
    return uid in _owners(_end(peer), _end(own))


def _owners(local: str, remote: str) -> Iterator[int]:
    """Users of sockets with these two ends; a socket of IPv6 may have them, too, behind ::ffff:."""
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in Path(table).read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if (fields[3], fields[1][-13:], fields[2][-13:]) == (_ESTABLISHED, local, remote):
                    yield int(fields[7])


def _end(address: tuple[str, int]) -> str:
    """As the kernel writes it: the address as a number of this machine's byte order, and the port."""
    number = int.from_bytes(IPv4Address(address[0]).packed, sys.byteorder)
    return f"{number:08X}:{address[1]:04X}"
