"""HTTP/1.1 as the clients of an instance need it: lines that are kept, heads of a few lines, bodies into a buffer.

Standard library only: the node agent carries this. The standard library's own client reads heads with the parser of
mail: for a model of many small files that, and what it brings along at the start, took more than their bytes.

Strict: what is no HTTP, or longer than a head may be, is a ConnectionError. Redirects are answers like any other.
"""

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

TIMEOUT_S: Final = 20.0
"""How long nothing may come, or go, before a TimeoutError."""
LARGEST_HEAD: Final = 64 * 1024
LARGEST_BODY: Final = 64 * 1024 * 1024
"""Bytes of a body that is read as a whole."""
_HEAD_PIECE: Final = 4096
_INTERIM_ANSWERS: Final = 10
_STATUS: Final = re.compile(r"HTTP/1\.([01]) ([1-5][0-9]{2})(?: .*)?")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_PORTS: Final = {"http": 80, "https": 443}


class Server:
    """Where a URL points: what its lines share."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"{url!r}: no address of a server; write http://HOST[:PORT] or https://HOST[:PORT]")
        self.place = parts.netloc
        self._address = (parts.hostname, parts.port or _PORTS[parts.scheme])
        self._secure = parts.scheme == "https"
        self._tls: ssl.SSLContext | None = None
        self._guard = threading.Lock()

    def open(self) -> socket.socket:
        """A new connection. Raises OSError."""
        line = socket.create_connection(self._address, TIMEOUT_S)
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._secure:
                return self._context().wrap_socket(line, server_hostname=self._address[0])
            # the kernel's time limit instead of Python's, which asks `poll` before each call, and hands over its one
            # lock twice; TLS would not notice when it ran out
            for which in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                line.setsockopt(socket.SOL_SOCKET, which, struct.pack("@ll", int(TIMEOUT_S), 0))
            line.settimeout(None)
        except BaseException:
            line.close()
            raise
        return line

    def _context(self) -> "ssl.SSLContext":
        """Made once for all lines: it reads the machine's whole list of authorities."""
        with self._guard:
            if self._tls is None:
                import ssl

                self._tls = ssl.create_default_context()
            return self._tls


class Line:
    """One connection to a server, opened by its first request and again when it broke; used by one thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._socket: socket.socket | None = None
        self._rest = memoryview(b"")
        """What came behind what was read."""

    @contextlib.contextmanager
    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> Generator["Answer"]:
        """Ask, and give the answer while its body is read. Raises OSError.

        A line whose answer was not read to its end is hung up: the rest must not become the start of the next answer.
        """
        found: Answer | None = None
        try:
            self._send(method, target, headers, body)
            found = self._hear(method)
            yield found
        except BlockingIOError as error:
            raise TimeoutError(f"{self._server.place}: nothing for {TIMEOUT_S:.0f} s") from error
        finally:
            if found is None or not found.whole or found.last:
                self.close()

    def close(self) -> None:
        """Hang up."""
        self._rest = memoryview(b"")
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def receive(self, into: memoryview) -> int:
        """The next bytes, at most as many as there is room for; 0 when the server hung up. Raises OSError."""
        if self._rest:
            count = min(len(self._rest), len(into))
            into[:count] = self._rest[:count]
            self._rest = self._rest[count:]
            return count
        assert self._socket is not None
        return self._socket.recv_into(into)

    def read_until(self, mark: bytes, limit: int) -> bytes:
        """What comes before `mark`. Raises ConnectionError when that is more than `limit` bytes."""
        assert self._socket is not None
        seen, self._rest = bytearray(self._rest), memoryview(b"")
        while (end := seen.find(mark)) < 0:
            if len(seen) > limit:
                raise ConnectionError(f"{self._server.place}: sent no end of a head within {limit} bytes")
            piece = self._socket.recv(_HEAD_PIECE)
            if not piece:
                raise ConnectionError(f"{self._server.place}: hung up {'inside' if seen else 'before'} its answer")
            seen += piece
        self._rest = memoryview(bytes(seen[end + len(mark) :]))
        return bytes(seen[:end])

    def _send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> None:
        said = {"Host": self._server.place, "Accept-Encoding": "identity", **headers}
        if body:
            said["Content-Length"] = str(len(body))
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items()), "", ""]
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
            raise ValueError(f"{method} {target!r}: a header holds the end of a line")
        if self._socket is None:
            self._socket = self._server.open()
        self._socket.sendall(head.encode("latin-1") + body)

    def _hear(self, method: str) -> "Answer":
        for _ in range(_INTERIM_ANSWERS):
            version, status, headers = self._head()
            if status >= 200:
                return Answer(self, method, version, status, headers)
        raise ConnectionError(f"{self._server.place}: sent no answer after {_INTERIM_ANSWERS} interim ones")

    def _head(self) -> tuple[str, int, dict[str, str]]:
        first, *rest = self.read_until(b"\r\n\r\n", LARGEST_HEAD).decode("latin-1").split("\r\n")
        found = _STATUS.fullmatch(first)
        if found is None:
            raise ConnectionError(f"{self._server.place}: answers with no HTTP: {first[:80]!r}")
        headers: dict[str, str] = {}
        for line in rest:
            name, colon, value = line.partition(":")
            if not colon or not _NAME.fullmatch(name):
                raise ConnectionError(f"{self._server.place}: answers with no header: {line[:80]!r}")
            name, value = name.lower(), value.strip(" \t")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return found[1], int(found[2]), headers


class Answer:
    """One answer: its head, and its body as it comes."""

    def __init__(self, line: Line, method: str, version: str, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        """By names in small letters."""
        self.whole = False
        """Whether the body was read to its end."""
        kept = headers.get("connection", "keep-alive" if version == "1" else "close").lower()
        self.last = "close" in kept
        """Whether the server hangs up behind it."""
        self._line = line
        self._chunked = "transfer-encoding" in headers
        self._left: int | None = None
        """Bytes to come, of the body or of its present chunk; None: all until the server hangs up."""
        self._begin(method)

    def _begin(self, method: str) -> None:
        length = self.headers.get("content-length")
        if method == "HEAD" or self.status in (204, 304):
            self._left, self._chunked, self.whole = 0, False, True
        elif self._chunked:
            if (coding := self.headers["transfer-encoding"].lower()) != "chunked":
                raise ConnectionError(f"an answer with transfer encoding {coding!r}, which nobody asked for")
            # chunks say how long they are; a length beside them is nobody's
            self.headers.pop("content-length", None)
            self._left = self._next_chunk(behind=b"")
        elif length is not None:
            # one length said twice is one length
            value, *others = {value.strip() for value in length.split(",")}
            if others or not value.isdecimal():
                raise ConnectionError(f"an answer of {length!r} bytes: no length")
            self.headers["content-length"] = value
            self._left = int(value)
            self.whole = self._left == 0
        else:
            self.last = True

    def readinto(self, view: memoryview) -> int:
        """Fill `view` with the body's next bytes; fewer only at its end. Raises OSError."""
        filled = 0
        while filled < len(view) and not self.whole:
            room = len(view) - filled
            got = self._line.receive(view[filled : filled + (room if self._left is None else min(room, self._left))])
            if not got:
                self.whole = self._left is None
                break
            filled += got
            if self._left is not None:
                self._left -= got
                if not self._left:
                    self._end_piece()
        return filled

    def read(self, limit: int = LARGEST_BODY) -> bytes:
        """The rest of the body. Raises ConnectionError when it ends early or is longer than `limit`."""
        body, buffer = bytearray(), memoryview(bytearray(64 * 1024))
        while got := self.readinto(buffer):
            body += buffer[:got]
            if len(body) > limit:
                raise ConnectionError(f"an answer of more than {limit} bytes")
        if not self.whole:
            raise ConnectionError(f"an answer that ended {self._left} bytes early")
        return bytes(body)

    def _end_piece(self) -> None:
        if self._chunked:
            self._left = self._next_chunk(behind=b"\r\n")
        else:
            self.whole = True

    def _next_chunk(self, *, behind: bytes) -> int:
        """Bytes of the next chunk; the last one is empty, and after it come trailers."""
        if behind and self._line.read_until(behind, len(behind)):
            raise ConnectionError("a chunk that is longer than it said")
        said = self._line.read_until(b"\r\n", LARGEST_HEAD)
        found = _CHUNK.fullmatch(said)
        if found is None:
            raise ConnectionError(f"a chunk of {said[:40]!r} bytes: no length")
        length = int(found[1], 16)
        if not length:
            while self._line.read_until(b"\r\n", LARGEST_HEAD):
                pass
            self.whole = True
        return length
