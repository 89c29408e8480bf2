"""Which orders an agent accepts: forged, replayed, late, misdirected and oversized ones, and key rotation."""

import json
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from gpufleet.clouds.agents import NodeAgents
from gpufleet.domain import orders
from gpufleet.domain.activity import CloudError
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.orders import MAX_CLOCK_SKEW, AgentOrder, Claim, Drain, Switch
from hosts.node import orders as node_orders
from hosts.node.orders import MAX_NONCES, NONCES_KEPT
from tests.fixtures import signing
from tests.fixtures.node.endpoints import AgentServers
from tests.fixtures.node.fake_node import Machine, settings
from tests.fixtures.watchdogs import plain

MINUTE = timedelta(minutes=1)


@pytest.fixture
def serve() -> Iterator[Callable[[Machine], AgentServers]]:
    with ExitStack() as running:

        def start(machine: Machine) -> AgentServers:
            served = AgentServers(machine)
            for one in (served.http, served.check):
                running.callback(one.stop)
            return served

        yield start


@pytest.fixture
def servers(bucket: Path, tmp_path: Path, serve: Callable[[Machine], AgentServers]) -> AgentServers:
    machine = Machine(root=tmp_path, bucket=bucket)
    machine.boot.run()
    return serve(machine)


def body(servers: AgentServers, **changes: object) -> bytes:
    return json.dumps(servers.order(changes)).encode()


def post(servers: AgentServers, signed: bytes, claim: Claim | None = None) -> httpx.Response:
    """Post a body with the signature of another body, or with a valid one."""
    head = {"Authorization": orders.header(claim or signing.key().sign(signed))}
    return httpx.post(f"{servers.url}{orders.PATH}", content=signed, headers=head, timeout=60)


def raw(servers: AgentServers, head: str) -> bytes:
    """Return the agent's answer to a header section, before it received a byte of a body."""
    host, port = servers.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"POST {orders.PATH} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(
    "authorization",
    [
        pytest.param("", id="nothing"),
        pytest.param("Bearer the-token", id="a token, as before orders were signed"),
        pytest.param(f"{orders.SCHEME} {'0' * 64}", id="no signature"),
        pytest.param(f"{orders.SCHEME} {'0' * 64} {'!' * 400}", id="no base64"),
        pytest.param(f"{orders.SCHEME} {'0' * 64} {'A' * 3000}", id="a long one"),
        pytest.param(f"gpufleet-order {'0' * 64} {'A' * 344}", id="another scheme"),
    ],
)
def test_an_order_without_a_signature_is_refused_before_its_body_is_read(
    servers: AgentServers, authorization: str
) -> None:
    answer = raw(servers, f"Authorization: {authorization}\r\nContent-Length: 4000")
    assert answer.startswith(b"HTTP/1.1 401 ") and b'"code": "unsigned"' in answer
    assert servers.machine.state.ready


def test_an_unknown_key_is_refused_before_the_body_is_read(servers: AgentServers) -> None:
    claim = signing.key("unknown").sign(b"{}")
    answer = raw(servers, f"Authorization: {orders.header(claim)}\r\nContent-Length: 4000")
    assert answer.startswith(b"HTTP/1.1 401 ") and b'"code": "unknown_key"' in answer
    # The answer names the known keys: during a rotation, operators see which settings the instance has.
    assert signing.key().public.fingerprint[:12].encode() in answer
    assert servers.machine.state.ready


def test_an_impossible_signature_is_refused_before_the_body_is_read(servers: AgentServers) -> None:
    public = signing.key().public
    for signature in (
        b"\x00" * (public.size - 1),
        b"\xff" * public.size,
        public.modulus.to_bytes(public.size, "big"),
    ):
        claim = Claim(public.fingerprint, signature)
        answer = raw(servers, f"Authorization: {orders.header(claim)}\r\nContent-Length: 4000")
        assert answer.startswith(b"HTTP/1.1 401 ") and b'"code": "bad_signature"' in answer
    assert servers.machine.state.ready


def test_an_oversized_body_is_refused_before_it_is_read(servers: AgentServers) -> None:
    claim = signing.key().sign(b"{}")
    answer = raw(servers, f"Authorization: {orders.header(claim)}\r\nContent-Length: {orders.MAX_BODY_BYTES + 1}")
    assert answer.startswith(b"HTTP/1.1 413 ") and b'"code": "too_large"' in answer
    assert servers.machine.state.ready


def test_a_signature_of_another_or_a_reencoded_body_is_refused(servers: AgentServers) -> None:
    signed = body(servers)
    claim = signing.key().sign(signed)
    others = [
        body(servers),
        signed.replace(b'"deadline_s": 60', b'"deadline_s": 00'),
        signed + b" ",
        json.dumps(json.loads(signed), indent=1).encode(),
        b"",
    ]
    for other in others:
        servers.refused(post(servers, other, claim), 401, "bad_signature")
    forged = Claim(claim.fingerprint, bytes([claim.signature[0] ^ 1]) + claim.signature[1:])
    servers.refused(post(servers, signed, forged), 401, "bad_signature")
    assert post(servers, signed, claim).status_code == 202


def test_an_invalid_signature_with_a_known_fingerprint_is_refused(servers: AgentServers) -> None:
    signed = body(servers)
    unknown_claim = signing.key("unknown").sign(signed)
    claim = Claim(signing.key().public.fingerprint, unknown_claim.signature)
    servers.refused(post(servers, signed, claim), 401, "bad_signature")


def test_an_order_for_another_instance_is_refused(servers: AgentServers) -> None:
    """A captured order can drain only the instance that it names."""
    for other in ("i-0fedcba9876543210", "", "I-0123456789ABCDEF0", "i-0123456789abcdef0 "):
        servers.refused(servers.drain(instance=other), 403, "other_instance")


@pytest.mark.parametrize(
    ("off", "taken"),
    [
        pytest.param(-MAX_CLOCK_SKEW - MINUTE, False, id="too old"),
        pytest.param(-MAX_CLOCK_SKEW, True, id="old"),
        pytest.param(MAX_CLOCK_SKEW, True, id="of a clock ahead"),
        pytest.param(MAX_CLOCK_SKEW + MINUTE, False, id="of a clock too far ahead"),
        pytest.param(timedelta(days=-400), False, id="of last year"),
    ],
)
def test_the_time_of_an_order_is_within_five_minutes_of_the_agents(
    servers: AgentServers, off: timedelta, *, taken: bool
) -> None:
    servers.machine.clock.now += timedelta(hours=1)
    now = servers.machine.clock()
    answer = servers.drain(at=(now + off).isoformat())
    if taken:
        assert answer.status_code == 202
    else:
        servers.refused(answer, 403, "wrong_time")
        assert datetime.fromisoformat(answer.json()["now"]) == now


def test_only_the_refusal_of_a_wrong_time_contains_the_agents_clock(servers: AgentServers) -> None:
    old = {"at": "2020-01-01T00:00:00Z"}
    others = [
        servers.drain(instance="i-other", **old),
        servers.drain(action="delete", **old),
        post(servers, body(servers, **old), signing.key("unknown").sign(b"x")),
        post(servers, body(servers, **old), signing.key().sign(b"x")),
    ]
    assert [answer.json()["code"] for answer in others] == [
        "other_instance", "malformed", "unknown_key", "bad_signature",
    ]  # fmt: skip
    assert not [answer for answer in others if "now" in answer.json()]


def test_an_order_is_accepted_once_even_after_a_restart_of_the_agent(
    servers: AgentServers, serve: Callable[[Machine], AgentServers]
) -> None:
    machine, signed = servers.machine, body(servers)
    assert post(servers, signed).status_code == 202
    again = post(servers, signed)
    assert (again.status_code, again.json()["code"]) == (403, "used_nonce")
    machine.restart_agent()
    again = post(serve(machine), signed)
    assert (again.status_code, again.json()["code"]) == (403, "used_nonce")


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(None, id="it is gone"),
        pytest.param(b"", id="empty"),
        pytest.param(b'{"version": 1, "nonces": {', id="cut"),
        pytest.param(b'{"version": 1, "nonces": []}', id="a list"),
        pytest.param(b'{"version": 1, "nonces": {"a": "b"}}', id="no time"),
    ],
)
def test_without_stored_nonces_older_orders_are_refused(
    servers: AgentServers, serve: Callable[[Machine], AgentServers], left: bytes | None
) -> None:
    machine, signed = servers.machine, body(servers)
    assert post(servers, signed).status_code == 202
    file = machine.root / "var/lib/gpu-fleet/orders.json"
    if left is None:
        file.unlink()
    else:
        file.write_bytes(left)
    machine.clock.now += timedelta(seconds=10)
    machine.restart_agent()
    served = serve(machine)
    again = post(served, signed)
    assert (again.status_code, again.json()["code"]) == (403, "wrong_time")
    # The control host signs again with the time in the answer.
    with closing(agents(served)) as asking:
        asking.drain(instance_of(served), DrainOwner.IDLE, "idle", 60)


def test_a_full_disk_prevents_no_drain_and_allows_no_replay(
    servers: AgentServers, serve: Callable[[Machine], AgentServers], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: bytes) -> None:
        raise OSError(28, "No space left on device")

    machine, signed = servers.machine, body(servers)
    monkeypatch.setattr(node_orders, "write_atomically", full)
    assert post(servers, signed).status_code == 202
    assert "No space left" in machine.state.status()["warnings"]["orders"]
    assert post(servers, signed).json()["code"] == "used_nonce"
    monkeypatch.undo()
    machine.clock.now += timedelta(seconds=10)
    machine.restart_agent()
    assert post(serve(machine), signed).json()["code"] == "wrong_time"


def test_nonces_are_stored_until_their_orders_have_expired(servers: AgentServers) -> None:
    machine = servers.machine
    begin = machine.clock()
    signed = body(servers, at=(begin + MAX_CLOCK_SKEW).isoformat())
    assert post(servers, signed).status_code == 202
    file = machine.root / "var/lib/gpu-fleet/orders.json"
    machine.clock.now = begin + 2 * MAX_CLOCK_SKEW  # the longest time for which it can be valid
    assert post(servers, signed).json()["code"] == "used_nonce"
    machine.clock.now = begin + MAX_CLOCK_SKEW + NONCES_KEPT
    assert servers.drain().status_code == 202
    assert len(json.loads(file.read_text())["nonces"]) == 1


def test_too_many_orders_are_refused_until_the_oldest_expire(
    servers: AgentServers, serve: Callable[[Machine], AgentServers]
) -> None:
    machine = servers.machine
    now = machine.clock()
    file = machine.root / "var/lib/gpu-fleet/orders.json"
    file.write_text(json.dumps({"version": 1, "nonces": {f"{n:032x}": now.timestamp() for n in range(MAX_NONCES)}}))
    machine.restart_agent()
    servers = serve(machine)
    answer = servers.drain()
    assert (answer.status_code, answer.json()["code"]) == (503, "too_many")
    machine.clock.now += NONCES_KEPT
    assert servers.drain().status_code == 202


def instance_of(servers: AgentServers):  # noqa: ANN201
    cloud = servers.machine.cloud
    return plain.instance(1, id=cloud.instance_id, private_address=cloud.address)


def agents(
    servers: AgentServers,
    key: str = "control host",
    *,
    now: Callable[[], datetime] | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> NodeAgents:
    port = servers.http.server_address[1]
    return NodeAgents(lambda: signing.key(key), port=port, now=now or servers.machine.clock, warn=warn)


@pytest.mark.parametrize(
    ("off", "shown"),
    [
        pytest.param(timedelta(hours=1), "60 min ahead of", id="an hour ahead"),
        pytest.param(timedelta(hours=-1), "60 min behind", id="an hour behind"),
        pytest.param(timedelta(hours=2), "2 h ahead of", id="two hours ahead"),
    ],
)
def test_a_wrong_clock_of_an_agent_delays_no_drain_and_is_reported(
    servers: AgentServers, off: timedelta, shown: str
) -> None:
    warnings: list[str] = []
    servers.machine.clock.now += timedelta(hours=3)
    ours = servers.machine.clock() - off
    with closing(agents(servers, now=lambda: ours, warn=warnings.append)) as asking:
        taken = asking.drain(instance_of(servers), DrainOwner.IDLE, "idle", 60)
    assert taken["draining"] is True
    name = servers.machine.cloud.instance_id
    assert warnings == [f"{name}: its clock is {shown} this machine's; the order is signed with its time"]


def test_an_agent_with_a_very_wrong_clock_gets_no_order(servers: AgentServers) -> None:
    """The answer with the clock is not signed: an attacker could obtain an order for next year and keep it."""
    warnings: list[str] = []
    ours = servers.machine.clock() - timedelta(hours=2, minutes=1)
    why = "its agent refused to drain: its clock is 2 h ahead of this machine's"
    with (
        closing(agents(servers, now=lambda: ours, warn=warnings.append)) as asking,
        pytest.raises(CloudError, match=why),
    ):
        asking.drain(instance_of(servers), DrainOwner.IDLE, "idle", 60)
    assert (servers.machine.state.ready, warnings) == (True, [])


def test_the_control_host_signs_at_most_once_more(
    servers: AgentServers, serve: Callable[[Machine], AgentServers]
) -> None:
    """An agent, or an attacker in front of it, whose clock differs in each answer."""
    machine = servers.machine
    answers: list[datetime] = []

    def clock() -> datetime:
        answers.append(machine.clock.now + timedelta(minutes=10 * (len(answers) + 1)))
        return answers[-1]

    machine.orders = node_orders.Orders(
        instance=machine.cloud.instance_id,
        keys=[signing.key().public],
        nonces=node_orders.Nonces(machine.root / "other.json", machine.clock, machine.state.warn),
        now=clock,
    )
    servers = serve(machine)
    with closing(agents(servers)) as asking, pytest.raises(CloudError, match="refused to drain") as refused:
        asking.drain(instance_of(servers), DrainOwner.IDLE, "idle", 60)
    assert (refused.value.code, len(answers)) == ("wrong_time", 2)


def test_keys_change_without_an_order_that_is_refused(
    bucket: Path, tmp_path: Path, serve: Callable[[Machine], AgentServers]
) -> None:
    """The procedure of docs/security.md, step by step, with a partially updated fleet at each step."""
    old, new = (signing.key(name).public.text for name in ("control host", "next"))
    number = iter(range(100))

    def booted(*keys: str) -> AgentServers:
        machine = Machine(root=tmp_path / str(next(number)), bucket=bucket, settings=settings(order_keys=keys))
        machine.boot.run()
        return serve(machine)

    steps = [
        ("only the old one", ["control host"], [booted(old)]),
        ("both in the settings: instances are rolled", ["control host"], [booted(old), booted(old, new)]),
        ("every instance knows both: the signer changes", ["control host", "next"], [booted(old, new)]),
        ("only the new one in the settings: instances are rolled", ["next"], [booted(old, new), booted(new)]),
        ("only the new one", ["next"], [booted(new)]),
    ]
    for step, signers, fleet in steps:
        for signer in signers:
            for served in fleet:
                with closing(agents(served, signer)) as asking:
                    taken = asking.switch(instance_of(served), served.machine.state.digest or "")
                assert taken["ready"] is True, step
    # In the wrong order: the instance names the key that it knows, as `/status` did before.
    too_early = booted(old)
    assert too_early.machine.state.status()["order_keys"] == [signing.key().public.fingerprint]
    why = "key .* is not accepted; accepted: "
    with closing(agents(too_early, "next")) as asking, pytest.raises(CloudError, match=why) as refused:
        asking.drain(instance_of(too_early), DrainOwner.IDLE, "idle", 60)
    assert refused.value.code == "unknown_key"


def test_status_and_metrics_name_the_accepted_keys(servers: AgentServers) -> None:
    fingerprint = signing.key().public.fingerprint
    assert httpx.get(f"{servers.url}/status", timeout=60).json()["order_keys"] == [fingerprint]
    page = httpx.get(f"{servers.url}/metrics", timeout=60).text
    assert f'gpufleet_node_order_key{{pool="chat",key="{fingerprint}"}} 1' in page


def test_no_key_of_an_instance_can_sign_an_order(servers: AgentServers) -> None:
    """An instance has public keys and the engines' API key. Neither can sign an order."""
    machine = servers.machine
    readable = json.dumps(machine.state.status()) + "".join(
        path.read_text(errors="replace") for path in machine.root.rglob("*") if path.is_file()
    )
    assert "PRIVATE" not in readable and signing.pem().splitlines()[2] not in readable
    signed = body(servers)
    for secret in (signing.ENGINE_KEY, *machine.settings.order_keys):
        head = {"Authorization": f"Bearer {secret}"}
        answer = httpx.post(f"{servers.url}{orders.PATH}", content=signed, headers=head, timeout=60)
        servers.refused(answer, 401, "unsigned")


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(Drain(by=DrainOwner.SPOT, reason='é "x" \U0001f600', deadline=timedelta(hours=24)), id="drain"),
        pytest.param(Switch(digest="0123456789abcdef" * 4), id="switch"),
    ],
)
def test_an_order_is_decoded_as_it_was_encoded(action: Drain | Switch) -> None:
    at = datetime(2026, 11, 21, 2, 15, 0, 123000, tzinfo=UTC)
    given = AgentOrder(instance="i-1", action=action, at=at, nonce=secrets.token_hex(16))
    assert orders.read_body(orders.body(given)) == given
    assert len(orders.body(given)) <= orders.MAX_BODY_BYTES
    claim = signing.key().sign(orders.body(given))
    assert orders.read_header(orders.header(claim)) == claim


def test_the_longest_order_of_a_watchdog_fits() -> None:
    long = Drain(by=DrainOwner.IDLE, reason="\U0001f600" * 200, deadline=timedelta(hours=24))
    given = AgentOrder(instance="i" * 63, action=long, at=datetime(2026, 11, 21, tzinfo=UTC), nonce="0" * 32)
    assert len(orders.body(given)) <= orders.MAX_BODY_BYTES
