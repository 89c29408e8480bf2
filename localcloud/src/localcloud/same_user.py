"""What asks for no token, because the real thing asks for none: open to processes of the same Unix user alone.

Instance metadata gives whoever asks the machine's own credentials; on a real network, only the machine can ask. Here
every process of this computer reaches its address, so the kernel is asked whose connection it is (`/proc/net/tcp`,
proc_pid_net(5)).
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from gpufleet.domain.loopback import foreign, header_of
from localcloud.callers import WORDS, Refusal, Unknown, say_refused

_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED: Final = "01"
"""In every other state the kernel may name root, as of sockets that no process has open any more."""


def is_admitted(request: BaseHTTPRequestHandler, server: str) -> bool:
    """Whether a request may be answered: from this user's processes, none of them for a page of another site.

    One that may not is answered here, with 403.
    """
    own = request.connection.getsockname()
    found = foreign(lambda name: header_of(request.headers, name), {f"{own[0]}:{own[1]}"})
    if found is None and not is_of_user(os.getuid(), request.client_address, own):
        return _refuse(request, server, Unknown.OTHER_USER)
    return found is None or _refuse(request, server, found)


def is_of_no_other_site(request: BaseHTTPRequestHandler, server: str) -> bool:
    """The same for what is reached through a proxy, under any name or none: whether no page of another site asks."""
    host = header_of(request.headers, "Host") or ""
    found = foreign(lambda name: host if name == "Host" else header_of(request.headers, name), {host})
    return found is None or _refuse(request, server, found)


def _refuse(request: BaseHTTPRequestHandler, server: str, refusal: Refusal) -> bool:
    say_refused(server, request.command, request.path, refusal)
    request.close_connection = True
    body = f"{WORDS[refusal]}\n".encode()
    request.send_response(HTTPStatus.FORBIDDEN)
    request.send_header("Content-Type", "text/plain")
    request.send_header("Connection", "close")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
    return False


def is_of_user(uid: int, peer: tuple[str, int], own: tuple[str, int]) -> bool:
    """Whether the other end of a connection on loopback is of a Unix user; no also where nobody has it."""
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
