"""The client of HTTP/1.1 that an instance reads its model with: what it takes, and what it refuses."""

import contextlib
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.clouds.wire import LARGEST_HEAD, Answer, Line, Server


@dataclass
class Scripted(Server):
    """A server that says, connection after connection, what it was given, in these pieces."""

    connections: list[list[bytes]]
    hangs_up: bool = True
    ends: list[socket.socket] = field(default_factory=list[socket.socket])
    opened: int = 0

    def __post_init__(self) -> None:
        super().__init__("http://store.test:81")

    def open(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        for piece in self.connections[self.opened]:
            theirs.sendall(piece)
        self.opened += 1
        if self.hangs_up:
            theirs.shutdown(socket.SHUT_WR)
        return ours

    def heard(self, connection: int) -> bytes:
        """All that was asked on a connection that its line has hung up."""
        said = b""
        while piece := self.ends[connection].recv(65536):
            said += piece
        return said

    def close(self) -> None:
        for end in self.ends:
            end.close()


@contextlib.contextmanager
def line_to(*connections: bytes, hangs_up: bool = True) -> Iterator[tuple[Line, Scripted]]:
    server = Scripted([[said] for said in connections], hangs_up)
    line = Line(server)
    with contextlib.closing(server), contextlib.closing(line):
        yield line, server


def read(line: Line, method: str = "GET") -> tuple[int, bytes]:
    with line.answer(method, "/bucket/key", {}) as answer:
        return answer.status, answer.read()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("said", "method", "status", "body"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "GET", 200, b"abc", id="a length"),
        pytest.param(b"HTTP/1.1 200\r\ncontent-length:3\r\n\r\nabc", "GET", 200, b"abc", id="no reason, no space"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nabc", "GET", 200, b"abc", id="said twice"),
        pytest.param(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "GET", 404, b"", id="empty"),
        pytest.param(b"HTTP/1.1 204 No\r\n\r\n", "GET", 204, b"", id="no content"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "HEAD", 200, b"", id="no body to HEAD"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nabc", "GET", 200, b"abc", id="until it hangs up"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nabc", "GET", 200, b"abc", id="the old version"),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
            "GET", 200, b"a", id="an interim answer before",
        ),
        pytest.param(
            CHUNKED + b"Content-Length: 1\r\n\r\n2;x=y\r\nab\r\nA\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n",
            "GET", 200, b"ab0123456789", id="chunks, with a trailer",
        ),
        pytest.param(
            CHUNKED + b"\r\n0\r\n\r\n", "GET", 200, b"", id="no chunk at all"
        ),
        pytest.param(
            b"HTTP/1.1 301 Moved\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
            "GET", 301, b"", id="a redirect is not followed",
        ),
    ],
)  # fmt: skip
def test_what_it_takes(said: bytes, method: str, status: int, body: bytes) -> None:
    with line_to(said) as (line, _):
        assert read(line, method) == (status, body)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        pytest.param(b"", "hung up before its answer", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Le", "hung up inside its answer", id="half a head"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "no HTTP: 'SSH", id="another protocol"),
        pytest.param(b"HTTP/2 200 OK\r\n\r\n", "no HTTP", id="another version"),
        pytest.param(b"HTTP/1.1 2000 OK\r\n\r\n", "no HTTP", id="no status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", "no header: 'no header'", id="a line without a colon"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n", "no header", id="a folded header"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\nabc", "no header", id="a space before the colon"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", "1 bytes early", id="a body cut short"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n", "no length", id="less than nothing"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "no length", id="two lengths"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "'gzip, chunked'", id="another coding"
        ),
        pytest.param(
            CHUNKED + b"\r\nxyz\r\n", "a chunk of b'xyz'", id="no chunk's length"
        ),
        pytest.param(
            CHUNKED + b"\r\n2\r\nabcd\r\n0\r\n\r\n",
            "no end|longer than it said", id="a chunk longer than it said",
        ),
        pytest.param(CHUNKED + b"\r\n5\r\nab", "early", id="a chunk cut short"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 11, "interim", id="interim answers without end"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nA: " + b"b" * (LARGEST_HEAD + 8192), "no end of a head", id="a head without end"
        ),
    ],
)  # fmt: skip
def test_what_it_refuses_may_pass_and_is_said(said: bytes, words: str) -> None:
    with line_to(said) as (line, _), pytest.raises(ConnectionError, match=words):
        read(line)


ANSWER = b"HTTP/1.1 206 Partial\r\nContent-Length: 3\r\nETag: \"a\"\r\n\r\nabc"  # fmt: skip


def test_a_line_is_kept_for_the_next_question() -> None:
    with line_to(ANSWER * 2) as (line, server):
        assert [read(line), read(line)] == [(206, b"abc")] * 2
        line.close()
        assert server.opened == 1
        assert server.heard(0).count(b"GET /bucket/key HTTP/1.1\r\nHost: store.test:81\r\n") == 2


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"HTTP/1.1 206 Partial\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc", id="says close"),
        pytest.param(b"HTTP/1.0 206 Partial\r\nContent-Length: 3\r\n\r\nabc", id="of the old version"),
    ],
)
def test_a_server_that_hangs_up_is_called_again(first: bytes) -> None:
    with line_to(first, ANSWER) as (line, server):
        assert [read(line), read(line)] == [(206, b"abc")] * 2
        assert server.opened == 2


def _leaves_the_rest(answer: Answer) -> None:
    answer.readinto(memoryview(bytearray(1)))


def _fails(answer: Answer) -> None:
    raise ValueError(answer.status)


@pytest.mark.parametrize("how", [_leaves_the_rest, _fails])
def test_what_is_left_of_an_answer_does_not_become_the_next_one(how: Callable[[Answer], None]) -> None:
    with line_to(ANSWER + b"HTTP/1.1 500 the rest\r\n\r\n", ANSWER) as (line, server):
        with contextlib.suppress(ValueError), line.answer("GET", "/", {}) as answer:
            how(answer)
        assert read(line) == (206, b"abc")
        assert server.opened == 2


def test_a_header_cannot_bring_another_one_along() -> None:
    with line_to(ANSWER) as (line, server):
        with pytest.raises(ValueError, match="end of a line"), line.answer("GET", "/", {"If-Match": "a\r\nX: y"}):
            pass
        assert server.opened == 0


@pytest.mark.parametrize("url", ["ftp://host/", "host:80", "http://"])
def test_an_address_that_is_none_is_said(url: str) -> None:
    with pytest.raises(ValueError, match="http://HOST"):
        Server(url)


def test_silence_ends_in_a_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Server(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with contextlib.closing(server.open()) as line:
            # the limit is the kernel's: 20 s as shipped, too long for a test
            assert struct.unpack("@ll", line.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)) == (20, 0)
        with contextlib.closing(Line(_Impatient(server))) as line, pytest.raises(TimeoutError, match="nothing for"):
            read(line)


class _Impatient(Server):
    def __init__(self, server: Server) -> None:
        super().__init__(f"http://{server.place}")

    def open(self) -> socket.socket:
        line = super().open()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 50_000))
        return line


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `localhost`, signed by itself; the key lies beside it."""
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(path.with_name("key.pem")), "-out", str(path), "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost"], capture_output=True, check=True, timeout=60)
    return path


@contextlib.contextmanager
def secure(certificate: Path, said: bytes) -> Iterator[str]:
    """A server that says the same to everybody who gets through TLS, and its URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))

    def talk() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), line, context.wrap_socket(line, server_side=True) as through:
                while through.recv(65536):
                    through.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=talk)
        thread.start()
        try:
            yield f"https://localhost:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls_is_checked_and_its_lines_are_kept_too(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = bytes(range(256)) * 1000
    with secure(certificate, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body) as url:
        with contextlib.closing(Line(Server(url))) as line, pytest.raises(ssl.SSLCertVerificationError):
            read(line)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with contextlib.closing(Line(Server(url))) as line:
            assert [read(line), read(line)] == [(200, body)] * 2


@settings(max_examples=40)
@given(
    body=st.binary(max_size=300),
    chunks=st.lists(st.integers(1, 50), max_size=8),
    cuts=st.lists(st.integers(0, 500), max_size=6),
    room=st.integers(1, 64),
)
def test_a_body_is_the_same_however_it_is_cut(body: bytes, chunks: list[int], cuts: list[int], room: int) -> None:
    framed, left = b"", body
    for size in [*chunks, len(body)]:
        if left[:size]:
            framed += f"{len(left[:size]):x}\r\n".encode() + left[:size] + b"\r\n"
        left = left[size:]
    heads = {
        b"Content-Length: %d\r\n\r\n" % len(body): body,
        b"Transfer-Encoding: chunked\r\n\r\n": framed + b"0\r\n\r\n",
    }
    for head, sent in heads.items():
        whole = (b"HTTP/1.1 200 OK\r\n" + head + sent) * 2
        places = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
        pieces = [whole[begin:end] for begin, end in zip(places, places[1:], strict=False)]
        line = Line(_InPieces(pieces))
        for _ in range(2):
            with line.answer("GET", "/", {}) as answer:
                assert _read_by(answer, room) == body
                assert answer.whole


class _InPieces(Server):
    """Whose connection gives each piece by itself, whatever room there is."""

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__("http://store.test")
        self._pieces = pieces

    def open(self) -> socket.socket:
        return cast("socket.socket", self)

    def sendall(self, said: bytes) -> None:
        assert said.startswith(b"GET / HTTP/1.1\r\n")

    def recv(self, count: int) -> bytes:
        while self._pieces and not self._pieces[0]:
            del self._pieces[0]
        if not self._pieces:
            return b""
        got, self._pieces[0] = self._pieces[0][:count], self._pieces[0][count:]
        return got

    def recv_into(self, room: memoryview) -> int:
        got = self.recv(len(room))
        room[: len(got)] = got
        return len(got)


def _read_by(answer: Answer, room: int) -> bytes:
    body, view = b"", memoryview(bytearray(room))
    while got := answer.readinto(view):
        body += view[:got]
    return body
