"""The agent's servers on real sockets."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.adapters import FleetAgents
from gpufleet.clouds.agents import NodeAgents
from gpufleet.domain import orders
from gpufleet.domain.drains import DrainOwner
from gpufleet.http_server import ServerLimits
from hosts.node.ports import CloudNotice, EngineIdentity, Notice, ProcessTimes
from serving.exposition import parse
from tests.fixtures import signing
from tests.fixtures.node.endpoints import AgentServers
from tests.fixtures.node.fake_node import START, Machine
from tests.fixtures.watchdogs import plain

SWITCH = {"action": "switch", "by": None, "reason": None, "deadline_s": None, "digest": "0" * 64}


@pytest.fixture
def servers(bucket: Path, tmp_path: Path) -> Iterator[AgentServers]:
    machine = Machine(root=tmp_path, bucket=bucket)
    machine.boot.run()
    served = AgentServers(machine)
    yield served
    for one in (served.http, served.check):
        one.stop()


def test_a_revision_switch_needs_a_digest_and_a_ready_instance(servers: AgentServers) -> None:
    served = servers.machine.state.digest
    for digest in ("../climbs", None, "A" * 64):
        answer = servers.post(servers.order(SWITCH, digest=digest))
        assert "digest" in servers.refused(answer, 400, "malformed")
    # A switch to the served revision is not a change.
    assert servers.post(servers.order(SWITCH, digest=served)).status_code == 202
    servers.drain()
    answer = servers.post(servers.order(SWITCH))
    assert (answer.status_code, answer.json()["code"]) == (409, "busy")
    assert "draining" in answer.json()["error"]


def test_a_drain_is_accepted_once_and_haproxy_is_notified(servers: AgentServers) -> None:
    assert servers.asked_by_haproxy() == b"up ready\n"
    answer = servers.drain()
    assert answer.status_code == 202
    assert answer.json()["draining"] is True
    assert servers.asked_by_haproxy() == b"drain\n"
    again = servers.drain(by="person", reason="again", deadline_s=600)
    assert {key: again.json()[key] for key in ("by", "reason", "deadline", "notice_at")} == {
        "by": "idle",
        "reason": "idle",
        "deadline": answer.json()["deadline"],
        "notice_at": None,
    }
    servers.machine.engine.running = 1
    servers.machine.pass_time(timedelta(seconds=2))
    status = httpx.get(f"{servers.url}/status", timeout=60).json()
    assert (status["phase"], status["ready"], status["requests_running"]) == ("draining", False, 1)


def test_only_known_owners_can_drain_and_the_first_one_stays(servers: AgentServers) -> None:
    for wrong in ("scale", "", "Idle", "idle ", 1, None, ["idle"], {"idle": 1}, True):
        message = servers.refused(servers.drain(by=wrong), 400, "malformed")
        assert message == f"by: is {wrong!r}, must be one of idle, spot, person, cloud, rollout"
    answers = [servers.drain(by=by) for by in ("rollout", "idle", "spot", "person", "cloud")]
    assert [(answer.status_code, answer.json()["by"]) for answer in answers] == [(202, "rollout")] * 5


def test_the_control_host_reads_the_drain_that_it_requested(servers: AgentServers) -> None:
    cloud = servers.machine.cloud
    one = plain.instance(1, id=cloud.instance_id, private_address=cloud.address)
    with closing(NodeAgents(signing.key, port=servers.http.server_address[1], now=servers.machine.clock)) as asking:
        agents = FleetAgents(asking)
        asked = agents.drain(one, DrainOwner.SPOT, "spot: x", timedelta(seconds=60))
        cloud.announced = [CloudNotice(kind=Notice.PREEMPTION)]
        servers.machine.pass_time(timedelta(seconds=1))
        seen = agents.statuses([one])[one.id]
    assert (asked.drain_by, asked.notice_at) == (DrainOwner.SPOT, None)
    assert (seen.drain_by, seen.notice_at) == (DrainOwner.SPOT, START)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"{", "not JSON", id="no JSON"),
        pytest.param(b"\xff", "not JSON", id="no text"),
        pytest.param(b"[" * 2000, "not JSON", id="nested"),
        pytest.param([], "an order is an object", id="a list"),
        pytest.param({"deadline_s": 5}, "an order is an object", id="fields are missing"),
        pytest.param({"more": 1}, "an order is an object", id="one field more"),
        pytest.param({"version": 2}, "version: is 2", id="another version"),
        pytest.param({"action": "delete"}, "action: is 'delete', must be drain or switch", id="another action"),
        pytest.param({"action": ["drain"]}, "action", id="a list of actions"),
        pytest.param({"instance": 5}, "instance", id="a number for the instance"),
        pytest.param({"nonce": "0" * 31}, "nonce", id="a short nonce"),
        pytest.param({"nonce": None}, "nonce", id="no nonce"),
        pytest.param({"at": "now"}, "at: is not a time in ISO 8601", id="no time"),
        pytest.param({"at": "2026-11-21T02:00:00"}, "at: has no time zone", id="no zone"),
        pytest.param({"reason": None}, "reason", id="no reason"),
        pytest.param({"reason": "a\nb"}, "reason", id="two lines"),
        pytest.param({"deadline_s": None}, "deadline_s", id="no deadline"),
        pytest.param({"deadline_s": -1}, "deadline_s", id="in the past"),
        pytest.param({"deadline_s": True}, "deadline_s", id="a yes"),
        pytest.param({"deadline_s": 10**9}, "deadline_s", id="for ever"),
    ],
)
def test_an_invalid_order_is_refused_with_a_message_although_it_is_signed(
    servers: AgentServers, body: Any, message: str
) -> None:
    sent = servers.order(body) if isinstance(body, dict) and body != {"deadline_s": 5} else body
    assert message in servers.refused(servers.post(sent), 400, "malformed")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param("Content-Length: -1", id="until the client hangs up"),
        pytest.param("Content-Length: many", id="no number"),
        pytest.param("Content-Length: " + "9" * 5000, id="a number of 5,000 digits"),
        pytest.param("Content-Length: 4\r\nTransfer-Encoding: chunked", id="two lengths"),
        pytest.param("Content-Length: \u0664", id="a digit of another script"),
    ],
)
def test_a_body_of_unknown_length_is_refused_before_it_is_read(servers: AgentServers, head: str) -> None:
    host, port = servers.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"POST {orders.PATH} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 411 ")
    assert servers.machine.state.ready


def test_metrics_contain_the_phase(servers: AgentServers) -> None:
    answer = httpx.get(f"{servers.url}/metrics", timeout=60)
    samples = {(s.name, s.labels.get("phase")): s.value for s in parse(answer.text)}
    assert samples["gpufleet_node_phase", "ready"] == 1
    assert samples["gpufleet_node_phase", "failed"] == 0
    assert ("gpufleet_node_drain_deadline_timestamp_seconds", None) not in samples
    assert all(sample.labels["pool"] == "chat" for sample in parse(answer.text))


def test_metrics_identify_the_engine_and_what_it_lacks(servers: AgentServers) -> None:
    servers.machine.state.engine = EngineIdentity(
        kind="sglang",
        version="0.5.23",
        missing=("sglang:token_usage",),
        process=ProcessTimes(started=1.0, cpu_s=2.0),
    )
    samples = {s.name: s for s in parse(httpx.get(f"{servers.url}/metrics", timeout=60).text)}
    engine = samples["gpufleet_node_engine_info"]
    assert (engine.labels["kind"], engine.labels["version"], engine.value) == ("sglang", "0.5.23", 1)
    assert samples["gpufleet_node_engine_missing"].labels["name"] == "sglang:token_usage"
    assert samples["gpufleet_node_engine_cpu_seconds_total"].value == 2


def test_metrics_contain_the_reason_of_a_drain(servers: AgentServers) -> None:
    servers.drain(by="spot", reason='spot: "safer" zone')
    samples = parse(httpx.get(f"{servers.url}/metrics", timeout=60).text)
    reasons = [s.labels["reason"] for s in samples if s.name == "gpufleet_node_drain_deadline_timestamp_seconds"]
    assert reasons == ['spot: "safer" zone']


def test_the_agent_has_a_health_endpoint_and_refuses_others(servers: AgentServers) -> None:
    assert httpx.get(f"{servers.url}/healthz", timeout=60).status_code == 200
    assert httpx.get(f"{servers.url}/other", timeout=60).status_code == 404
    assert httpx.post(f"{servers.url}/other", content="", timeout=60).status_code == 404
    assert httpx.post(f"{servers.url}/status", content="", timeout=60).status_code == 405


@pytest.mark.parametrize("server", ["http", "check"])
def test_silent_connections_block_no_other_client(servers: AgentServers, server: str) -> None:
    port = (servers.http if server == "http" else servers.check).server_address[1]
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(ServerLimits().connections + 40):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            silent.sendall(b"POST /orders HTTP/1.1\r\nX: ")
        assert httpx.get(f"{servers.url}/healthz", timeout=60).status_code == 200
        assert servers.asked_by_haproxy().startswith(b"up")
        assert threading.active_count() - before <= ServerLimits().connections + 40
