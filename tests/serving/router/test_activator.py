"""The activator between two sockets of the test."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.router.activator import Activator, HoldRules
from serving.router.settings import ACTIVATOR_SOCKET, INNER_SOCKET

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: router\r\nx-gpufleet-pool: chat\r\ncontent-length: 4\r\n\r\n"
LIMIT_S = 30


@pytest.fixture
def inner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.chdir(tmp_path)  # the system limits the length of a socket's path
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(INNER_SOCKET)
        listening.listen()
        listening.settimeout(LIMIT_S)
        yield listening


@pytest.fixture
def client(inner: socket.socket, tmp_path: Path) -> Iterator[socket.socket]:
    activator = Activator(tmp_path, lambda: "")
    activator.start()
    activator.update({"chat": HoldRules(most=10, seconds=60)}, {"chat": 1})
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(LIMIT_S)
        asking.connect(ACTIVATOR_SOCKET)
        yield asking
    activator.stop()


def passed_on(inner: socket.socket, until: bytes) -> socket.socket:
    """Accept the activator's connection, and read it up to `until`."""
    asked, _ = inner.accept()
    asked.settimeout(LIMIT_S)
    seen = b""
    while until not in seen:
        seen += asked.recv(4096)
    return asked


def test_a_response_is_returned_completely(client: socket.socket, inner: socket.socket) -> None:
    client.sendall(HEAD + b"body")
    with passed_on(inner, b"body") as asked:
        asked.sendall(b"HTTP/1.1 200 OK\r\n\r\nfirst ")
        asked.sendall(b"last")
    answer = b""
    while chunk := client.recv(4096):
        answer += chunk
    assert answer == b"HTTP/1.1 200 OK\r\n\r\nfirst last"


def test_a_held_request_is_cancelled_when_its_client_disconnects(client: socket.socket, inner: socket.socket) -> None:
    client.sendall(HEAD + b"body")
    with passed_on(inner, b"body") as asked:
        client.close()
        assert asked.recv(1) == b""
