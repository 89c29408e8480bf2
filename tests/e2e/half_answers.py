"""A TCP proxy on loopback that lets requests through and ends each answer in the middle of its body."""

import socket
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.networks import served

HEAD_END = b"\r\n\r\n"
PART = 65_536
PATIENCE_S = 30


@dataclass(slots=True)
class Cutter:
    """What the proxy does to answers, and to how many it did so."""

    url: str = ""
    cuts: bool = False
    done: int = 0


@contextmanager
def before(server_url: str) -> Iterator[Cutter]:
    """A proxy before this server, as long as the block; whole answers until it is told to cut them."""
    there = urlsplit(server_url)
    cutter = Cutter()

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((there.hostname, there.port), timeout=PATIENCE_S) as server:
                self.request.settimeout(PATIENCE_S)
                try:
                    while asked := _message(self.request):
                        server.sendall(asked)
                        self._answer(_message(server))
                except OSError:
                    return  # one of the two went away

        def _answer(self, answer: bytes) -> None:
            head, _, body = answer.partition(HEAD_END)
            if not cutter.cuts:
                self.request.sendall(answer)
                return
            cutter.done += 1
            self.request.sendall(head + HEAD_END + body[: len(body) // 2])
            raise ConnectionAbortedError("cut")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with served(Server(("127.0.0.1", 0), Connection)) as server:
        cutter.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield cutter


def _message(peer: socket.socket) -> bytes:
    """One whole HTTP message: its head, and as much of a body as that says. Empty: the peer has ended."""
    found = b""
    while HEAD_END not in found:
        part = peer.recv(PART)
        if not part:
            return b""
        found += part
    head, _, body = found.partition(HEAD_END)
    lines = (line.partition(":") for line in head.decode().lower().split("\r\n"))
    said = {name.strip(): value.strip() for name, _, value in lines}
    if said.get("transfer-encoding") == "chunked":
        while not body.endswith(b"0\r\n\r\n"):
            body += peer.recv(PART)
    else:
        while len(body) < int(said.get("content-length", "0")):
            body += peer.recv(PART)
    return head + HEAD_END + body
