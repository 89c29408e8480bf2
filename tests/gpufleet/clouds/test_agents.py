"""Behavior with compromised or unreachable node agents, on real sockets."""

import contextlib
import json
import socketserver
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from app.adapters import LONGEST_TEXT, FleetAgents
from gpufleet.clouds import order_key
from gpufleet.clouds.agents import MAX_ANSWER_BYTES, NodeAgents
from gpufleet.clouds.order_key import OrderKey
from gpufleet.domain.activity import CloudError
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import Instance
from tests.fixtures import signing
from tests.fixtures.networks import served
from tests.fixtures.watchdogs import plain

HEAD = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n"
LIMIT_S = 2.0
"""Replaces the production limit of five seconds to keep tests fast. Normal responses need less."""
Respond = Callable[[Any], None]


def address(number: int) -> str:
    return f"127.0.0.{number}"


def instance(number: int, private_address: str | None) -> Instance:
    return plain.instance(number, id=f"i-{number}", private_address=private_address)


def well(number: int, status: bytes = b"200 OK") -> Respond:
    body = json.dumps({"instance": f"i-{number}"}).encode()
    return lambda line: line.sendall(HEAD % status + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def byte_by_byte(line: Any) -> None:
    line.sendall(HEAD % b"200 OK" + b"\r\n")
    while True:  # until the client disconnects
        line.sendall(b" ")
        time.sleep(LIMIT_S / 10)


def head_byte_by_byte(line: Any) -> None:
    line.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        line.sendall(b"x")
        time.sleep(LIMIT_S / 10)


def without_end(line: Any) -> None:
    # complete within the time limit and valid JSON, but too large
    line.sendall(HEAD % b"202 Accepted" + b"\r\n" + b'{"instance": "i-1"}' + b" " * MAX_ANSWER_BYTES)


def large(line: Any) -> None:
    line.sendall(HEAD % b"200 OK" + b"\r\n" + b'{"instance": "i-1"}' + b" " * MAX_ANSWER_BYTES)


ORDERS = [
    pytest.param(lambda agents, one: agents.drain(one, DrainOwner.IDLE, "idle", 60), id="drain"),
    pytest.param(lambda agents, one: agents.switch(one, "d" * 64), id="switch"),
]


def responding(respond: Respond) -> type[socketserver.BaseRequestHandler]:
    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # read the complete request: closing a socket with unread bytes resets it and discards the response
            with self.request.makefile("rb") as asked:
                head = list(takewhile(lambda line: line != b"\r\n", asked))
                asked.read(sum(int(line[15:]) for line in head if line.lower().startswith(b"content-length:")))
            # the client may already have disconnected, as expected
            with contextlib.suppress(OSError):
                respond(self.request)

    return Connection


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True


Started = Callable[..., NodeAgents]


@pytest.fixture
def agents() -> Iterator[Started]:
    """Starts agents on one port. `i7=` defines the response of the agent on 127.0.0.7."""
    with contextlib.ExitStack() as running:

        def start(**responses: Respond) -> NodeAgents:
            port = 0
            for name, respond in responses.items():
                server = Server((address(int(name[1:])), port), responding(respond))
                port = running.enter_context(served(server)).server_address[1]
            made = NodeAgents(signing.key, port=port, limit_s=LIMIT_S)
            running.callback(made.close)
            return made

        yield start


SOUND = {
    "instance": "i-1",
    "phase": "ready",
    "phase_since": "2026-11-21T07:00:00Z",
    "ready": True,
    "draining": False,
    "drained": False,
    "reason": None,
    "requests_running": 0.0,
    "error": None,
}


NOTICED = "2026-11-21T07:00:00Z"


def status_of(number: int, **changes: Any) -> Respond:
    body = json.dumps(SOUND | {"instance": f"i-{number}"} | changes).encode()
    return lambda line: line.sendall(HEAD % b"200 OK" + b"Content-Length: %d\r\n\r\n" % len(body) + body)


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "asleep"},
        {"phase": {}},
        {"phase_since": 5},
        {"phase_since": "this morning"},
        {"phase_since": "2026-11-21T07:00:00"},
        {"ready": "false"},
        {"draining": "false"},
        {"drained": "false"},
        {"drained": None},
        {"by": 5},
        {"by": ["idle"]},
        {"by": None, "notice_at": 5},
        {"by": "idle", "notice_at": "2026-11-21T07:00:00"},
        {"reason": 5},
        {"error": ["x"]},
        {"has_served": "true"},
        {"has_served": 1},
        {"has_served": None},
        {"requests_running": "0"},
        {"requests_running": True},
        {"requests_running": -1},
        {"requests_running": float("nan")},
        {"requests_running": float("inf")},
    ],
    ids=lambda changes: " ".join(f"{key} {value!r}" for key, value in changes.items()),
)
def test_a_malformed_status_is_absent_and_others_are_returned(agents: Started, changes: dict[str, Any]) -> None:
    asked = FleetAgents(agents(i1=status_of(1, **changes), i2=status_of(2)))
    found = asked.statuses([instance(1, address(1)), instance(2, address(2))])
    assert set(found) == {"i-2"}


@pytest.mark.parametrize(
    ("changes", "owner", "noticed"),
    [
        pytest.param({"by": None, "notice_at": None}, None, None, id="not draining"),
        pytest.param({"by": "idle", "reason": "spot: x", "notice_at": None}, DrainOwner.IDLE, None, id="by alone"),
        pytest.param({"by": "idle", "notice_at": NOTICED}, DrainOwner.IDLE, NOTICED, id="idle's, under notice"),
        pytest.param({"by": "later", "reason": "idle: x"}, DrainOwner("later"), None, id="an owner of later"),
        pytest.param({"reason": "idle: x"}, DrainOwner.IDLE, None, id="0.1: idle's"),
        pytest.param({"reason": "spot: x"}, DrainOwner.SPOT, None, id="0.1: spot's"),
        pytest.param({"reason": "by hand, ana: x"}, DrainOwner.PERSON, None, id="0.1: a person's"),
        pytest.param({"reason": "ended by its group"}, DrainOwner.CLOUD, None, id="0.1: its group's"),
        pytest.param({"reason": "a newer template is rolled out"}, DrainOwner.ROLLOUT, None, id="0.1: a rollout's"),
        pytest.param({"reason": "idler"}, None, None, id="0.1: no owner"),
        pytest.param({"reason": "preempted by its cloud"}, DrainOwner.CLOUD, NOTICED, id="0.1: under notice"),
    ],
)
def test_drain_owner_and_notice_time_are_read(
    agents: Started, changes: dict[str, Any], owner: DrainOwner | None, noticed: str | None
) -> None:
    answer = status_of(1, draining=True, phase="draining", phase_since=NOTICED, **changes)
    status = FleetAgents(agents(i1=answer)).statuses([instance(1, address(1))])["i-1"]
    assert status.drain_by == owner
    assert status.notice_at == (datetime.fromisoformat(noticed) if noticed else None)


@pytest.mark.parametrize(
    ("changes", "served_before"),
    [
        pytest.param({"has_served": True}, True, id="it has"),
        pytest.param({"has_served": False}, False, id="not yet"),
        pytest.param({}, False, id="an agent of an earlier release does not report it"),
    ],
)
def test_has_served_is_read(agents: Started, changes: dict[str, Any], *, served_before: bool) -> None:
    asked = FleetAgents(agents(i1=status_of(1, phase="failed", ready=False, **changes)))
    assert asked.statuses([instance(1, address(1))])["i-1"].has_served is served_before


@pytest.mark.parametrize(
    ("text", "read"),
    [
        pytest.param("a \ud800 b", "a ? b", id="half a character: no ledger can write it"),
        pytest.param("a \0 b", "a ? b", id="a null: PostgreSQL does not take it"),
        pytest.param("ä" * 5000, "ä" * LONGEST_TEXT, id="very long"),
    ],
)
def test_text_of_an_agent_is_sanitized_and_truncated(agents: Started, text: str, read: str) -> None:
    asked = FleetAgents(agents(i1=status_of(1, phase="failed", ready=False, error=text, reason=text)))
    status = asked.statuses([instance(1, address(1))])["i-1"]
    assert (status.error, status.reason) == (read, read)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("bad", [byte_by_byte, head_byte_by_byte, large])
def test_a_slow_or_oversized_status_is_absent(agents: Started, bad: Respond) -> None:
    asked = agents(i1=bad, i2=well(2))
    assert asked.statuses([instance(1, address(1)), instance(2, address(2))]) == {"i-2": {"instance": "i-2"}}


def test_unresponsive_agents_do_not_delay_others(agents: Started) -> None:
    asked = agents(**{f"i{n}": byte_by_byte for n in range(1, 32)}, i32=well(32))
    found = asked.statuses([instance(n, address(n)) for n in range(1, 33)])
    assert found == {"i-32": {"instance": "i-32"}}


@pytest.mark.parametrize(
    ("respond", "message"),
    [
        pytest.param(without_end, "i-1: its agent at .* did not answer: it sent more than 1000000 bytes", id="large"),
        pytest.param(
            byte_by_byte,
            f"i-1: its agent at .* did not answer: the answer was not complete after {LIMIT_S:g} s",
            id="slow",
        ),
        pytest.param(well(1, b"409 Conflict"), r"i-1: its agent refused .*\(409\)", id="refused"),
    ],
)
@pytest.mark.parametrize("ask", ORDERS)
def test_an_order_without_a_complete_response_is_an_error(
    agents: Started, respond: Respond, message: str, ask: Callable[[NodeAgents, Instance], object]
) -> None:
    with pytest.raises(CloudError, match=message):
        ask(agents(i1=respond), instance(1, address(1)))


@pytest.mark.parametrize("ask", ORDERS)
def test_no_key_is_read_for_an_instance_without_an_address(ask: Callable[[NodeAgents, Instance], object]) -> None:
    read: list[str] = []

    def key() -> OrderKey:
        read.append("key")
        return signing.key()

    asked = NodeAgents(key)
    with pytest.raises(CloudError, match=r"i-1: has no private address yet"):
        ask(asked, instance(1, None))
    assert asked.statuses([instance(1, None)]) == {}
    assert read == []
    asked.close()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"code": "wrong_time"}, id="no clock"),
        pytest.param({"code": "wrong_time", "now": 5}, id="a number"),
        pytest.param({"code": "wrong_time", "now": "soon"}, id="no time"),
        pytest.param({"code": "wrong_time", "now": "2026-11-21T07:00:00"}, id="no zone"),
        pytest.param({"code": "used_nonce", "now": "2026-11-21T07:00:00Z"}, id="another refusal"),
        pytest.param({"code": ["x"] * 1000, "error": {"a": "b" * 10_000}}, id="of other types"),
        pytest.param(["wrong_time"], id="a list"),
    ],
)
def test_an_unknown_refusal_is_an_error_of_limited_length(agents: Started, answer: Any) -> None:
    body = json.dumps(answer).encode()
    asked: list[bool] = []

    def respond(line: Any) -> None:
        asked.append(True)
        line.sendall(HEAD % b"403 Forbidden" + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    with pytest.raises(CloudError, match=r"i-1: its agent refused to drain \(403\)") as refused:
        agents(i1=respond).drain(instance(1, address(1)), DrainOwner.IDLE, "idle", 60)
    assert len(str(refused.value)) < 500
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("place", "message"),
    [
        pytest.param(None, "contains no key for orders: an earlier release wrote it", id="a document of before"),
        pytest.param("ssm:", "is not a supported secret reference", id="no place"),
        pytest.param("file:/etc/shadow", "is not a supported secret reference", id="a file"),
    ],
)
def test_a_key_without_a_valid_reference_is_an_error(
    place: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(order_key.VARIABLE, raising=False)
    with pytest.raises(CloudError, match=message):
        order_key.reader(place, "us-east-1")()


def test_the_key_is_read_from_the_file_in_the_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "order-key.pem"
    monkeypatch.setenv(order_key.VARIABLE, str(file))
    read = order_key.reader("ssm:/gpu-fleet/x/order-key", "us-east-1")
    with pytest.raises(CloudError, match="cannot be read, so no instance accepts orders"):
        read()
    for text in ("correct-horse-battery", "\udcff"):
        file.write_text(text, errors="surrogateescape")
        with pytest.raises(CloudError, match="order-key.pem: does not contain a private key in PEM") as refused:
            read()
        assert "horse" not in str(refused.value)
    file.write_text(signing.pem())
    assert read().public == signing.key().public


def test_the_value_of_another_secret_is_not_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users may read secrets that the authors of a fleet document may not, so errors must not contain the value."""
    monkeypatch.delenv(order_key.VARIABLE, raising=False)
    monkeypatch.setattr(order_key.secrets, "read", lambda *_: "correct-horse-battery")
    asked = NodeAgents(order_key.reader("ssm:/prod/db/master-password", "us-east-1"))
    with pytest.raises(CloudError, match="master-password: does not contain a private key") as refused:
        asked.drain(instance(1, address(1)), DrainOwner.IDLE, "idle", 60)
    assert "horse" not in str(refused.value)
    asked.close()


def test_an_instance_in_no_pool_gets_no_request_and_no_order(agents: Started) -> None:
    """Tags do not prove pool membership, and an order would expose a signature to whoever wrote the tags."""
    asked: list[Any] = []
    node = agents(i1=asked.append)
    unmanaged = replace(instance(1, address(1)), pool=None)
    assert node.statuses([unmanaged]) == {}
    for order in (
        lambda: node.drain(unmanaged, DrainOwner.IDLE, "idle", 60),
        lambda: node.switch(unmanaged, "d" * 64),
    ):
        with pytest.raises(CloudError, match="i-1: is not in a group"):
            order()
    assert not asked
