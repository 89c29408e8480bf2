"""HTTP/1.1 client of the object readers: persistent connections, bounded bodies, failures as OSError."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from gpufleet.clouds import wire
from gpufleet.clouds.wire import Connection, Server, is_complete, read


class _Scripted(Server):
    """A server with a list of responses for each connection. It closes its side after the last response."""

    def __init__(self, *connections: Sequence[bytes], closes: bool = True) -> None:
        super().__init__("http://store.test:81")
        self.timeout_s: float = wire.TIMEOUT_S
        self.received: list[bytes] = []
        """Bytes received on each connection."""
        self._connections = [[*responses] for responses in connections]
        self._closes = closes
        self._ends: list[socket.socket] = []

    def connection(self) -> HTTPConnection:
        return _Paired(self)

    def open(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(self.timeout_s)
        self._ends.append(theirs)
        self.received.append(b"")
        return ours

    def receive(self, data: bytes) -> None:
        self.received[-1] += data
        left = self._connections[len(self._ends) - 1]
        if left:
            self._ends[-1].sendall(left.pop(0))
        if not left and self._closes:
            self._ends[-1].close()

    def close(self) -> None:
        for end in self._ends:
            end.close()


class _Paired(HTTPConnection):
    def __init__(self, server: _Scripted) -> None:
        super().__init__(server.netloc)
        self._server = server

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.sock = self._server.open()
        self._server.receive(data)


@contextlib.contextmanager
def connected(*connections: Sequence[bytes], closes: bool = True) -> Iterator[tuple[Connection, _Scripted]]:
    server = _Scripted(*connections, closes=closes)
    with contextlib.closing(server), contextlib.closing(Connection(server)) as connection:
        yield connection, server


def ask(connection: Connection, method: str = "GET") -> tuple[int, bytes]:
    with connection.request(method, "/bucket/key", {}) as response:
        return response.status, read(response)


RESPONSE = b'HTTP/1.1 206 Partial\r\nContent-Length: 3\r\nETag: "a"\r\n\r\nabc'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "method", "status", "body"),
    [
        pytest.param(RESPONSE, "GET", 206, b"abc", id="a length"),
        pytest.param(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "GET", 404, b"", id="empty"),
        pytest.param(b"HTTP/1.1 204 No\r\n\r\n", "GET", 204, b"", id="no content"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "HEAD", 200, b"", id="no body to HEAD"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + RESPONSE, "GET", 206, b"abc", id="after an interim response"),
        pytest.param(CHUNKED + b"2;x=y\r\nab\r\n1\r\nc\r\n0\r\nTrailer: t\r\n\r\n", "GET", 200, b"abc", id="chunks"),
        pytest.param(CHUNKED + b"0\r\n\r\n", "GET", 200, b"", id="no chunk"),
        pytest.param(
            b"HTTP/1.1 301 Moved\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
            "GET",
            301,
            b"",
            id="a redirect is not followed",
        ),
    ],
)
def test_a_response_is_read_and_the_connection_stays_open(sent: bytes, method: str, status: int, body: bytes) -> None:
    with connected([sent, sent]) as (connection, server):
        assert [ask(connection, method), ask(connection, method)] == [(status, body)] * 2
        assert len(server.received) == 1
        assert server.received[0].count(b" /bucket/key HTTP/1.1\r\nHost: store.test:81\r\n") == 2


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Le", id="half a head"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", id="another protocol"),
        pytest.param(b"HTTP/2 200 OK\r\n\r\n", id="another version"),
        pytest.param(b"HTTP/1.1 2000 OK\r\n\r\n", id="no status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", id="a body cut short"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nabc", id="no length: it may be cut short"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n", id="a negative length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", id="a length in letters"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", id="another coding"),
        pytest.param(CHUNKED + b"xyz\r\n", id="a chunk without a length"),
        pytest.param(CHUNKED + b"2\r\nabcd\r\n0\r\n\r\n", id="a chunk longer than its length"),
        pytest.param(CHUNKED + b"-1\r\nabcd\r\n0\r\n\r\n", id="a chunk of negative length"),
        pytest.param(CHUNKED + b"5\r\nab", id="a chunk cut short"),
        pytest.param(CHUNKED + b"2\r\nab\r\n", id="no last chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000, id="a head without end"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200, id="headers without end"),
    ],
)
def test_an_invalid_or_torn_response_is_a_connection_error_and_closes_the_connection(sent: bytes) -> None:
    with connected([sent], [RESPONSE]) as (connection, server):
        with pytest.raises(ConnectionError):
            ask(connection)
        assert ask(connection) == (206, b"abc")
        assert len(server.received) == 2


def test_a_body_longer_than_its_limit_is_refused() -> None:
    with (
        connected([CHUNKED + b"%x\r\n" % 70_000 + b"a" * 70_000]) as (connection, _),
        pytest.raises(ConnectionError, match="more than 1000 bytes"),
        connection.request("GET", "/", {}) as response,
    ):
        read(response, 1000)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"HTTP/1.1 206 Partial\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc", id="announced"),
        pytest.param(b"HTTP/1.0 206 Partial\r\nContent-Length: 3\r\n\r\nabc", id="as HTTP/1.0 does"),
    ],
)
def test_a_connection_is_reopened_if_the_server_announces_its_end(first: bytes) -> None:
    with connected([first], [RESPONSE], closes=False) as (connection, server):
        assert [ask(connection), ask(connection)] == [(206, b"abc")] * 2
        assert len(server.received) == 2


def test_a_connection_closed_by_the_server_fails_once_and_is_reopened() -> None:
    with connected([RESPONSE], [RESPONSE]) as (connection, server):
        assert ask(connection) == (206, b"abc")
        with pytest.raises(ConnectionError):
            ask(connection)
        assert ask(connection) == (206, b"abc")
        assert len(server.received) == 2


def _leave_the_rest(response: HTTPResponse) -> None:
    assert response.readinto(memoryview(bytearray(1))) == 1
    assert not is_complete(response)


def _fail(response: HTTPResponse) -> None:
    raise ValueError(response.status)


@pytest.mark.parametrize("use", [_leave_the_rest, _fail])
def test_the_remainder_of_a_response_is_not_read_as_the_next_one(use: Callable[[HTTPResponse], None]) -> None:
    with connected([RESPONSE + b"HTTP/1.1 500 the rest\r\n\r\n"], [RESPONSE], closes=False) as (connection, server):
        with contextlib.suppress(ValueError), connection.request("GET", "/", {}) as response:
            use(response)
        assert ask(connection) == (206, b"abc")
        assert len(server.received) == 2


def test_a_header_with_a_line_break_is_refused_and_discarded() -> None:
    with connected([RESPONSE]) as (connection, server):
        with pytest.raises(ValueError, match="header"), connection.request("GET", "/", {"If-Match": "a\r\nX: y"}):
            pass
        assert server.received == []
        assert ask(connection) == (206, b"abc")
        assert server.received[0].startswith(b"GET /bucket/key HTTP/1.1\r\n")


@pytest.mark.parametrize("url", ["ftp://host/", "host:80", "http://"])
def test_an_address_without_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http://HOST"):
        Server(url)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na"], ids=["head", "body"])
def test_a_server_that_stops_sending_ends_in_a_timeout(sent: bytes) -> None:
    assert Server("https://store.test").connection().timeout == wire.TIMEOUT_S == 20
    with connected([sent], closes=False) as (connection, server):
        server.timeout_s = 0.05
        with pytest.raises(TimeoutError):
            ask(connection)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for `localhost`. Its key is in the same folder."""
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(path.with_name("key.pem")), "-out", str(path), "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run(
        [*command, "-addext", "subjectAltName=DNS:localhost"], capture_output=True, check=True, timeout=180
    )
    return path


@contextlib.contextmanager
def secure(certificate: Path, sent: bytes) -> Iterator[str]:
    """URL of a server that sends the same response to every client that completes the TLS handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))

    def talk() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), client, context.wrap_socket(client, server_side=True) as through:
                while through.recv(65536):
                    through.sendall(sent)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=talk)
        thread.start()
        try:
            yield f"https://localhost:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_tls_certificates_are_verified_and_connections_stay_open(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = bytes(range(256)) * 1000
    with secure(certificate, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body) as url:
        with contextlib.closing(Connection(Server(url))) as other, pytest.raises(ssl.SSLCertVerificationError):
            ask(other)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with contextlib.closing(Connection(Server(url))) as connection:
            assert [ask(connection), ask(connection)] == [(200, body)] * 2
