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
from hosts.node.ports import CloudNotice, Notice
from serving.exposition import parse
from tests.fixtures import signing
from tests.fixtures.node.endpoints import Faces
from tests.fixtures.node.world import START, Machine
from tests.fixtures.watchdogs import plain

SWITCH = {"action": "switch", "by": None, "reason": None, "deadline_s": None, "digest": "0" * 64}


@pytest.fixture
def faces(bucket: Path, tmp_path: Path) -> Iterator[Faces]:
    machine = Machine(root=tmp_path, bucket=bucket)
    machine.boot.run()
    served = Faces(machine)
    yield served
    for one in (served.http, served.check):
        one.stop()


def test_a_revision_switch_needs_a_digest_and_a_ready_instance(faces: Faces) -> None:
    served = faces.machine.life.digest
    for digest in ("../climbs", None, "A" * 64):
        answer = faces.post(faces.order(SWITCH, digest=digest))
        assert "digest" in faces.refused(answer, 400, "malformed")
    # A switch to the served revision is not a change.
    assert faces.post(faces.order(SWITCH, digest=served)).status_code == 202
    faces.drain()
    answer = faces.post(faces.order(SWITCH))
    assert (answer.status_code, answer.json()["code"]) == (409, "busy")
    assert "draining" in answer.json()["error"]


def test_a_drain_is_accepted_once_and_haproxy_is_notified(faces: Faces) -> None:
    assert faces.asked_by_haproxy() == b"up ready\n"
    answer = faces.drain()
    assert answer.status_code == 202
    assert answer.json()["draining"] is True
    assert faces.asked_by_haproxy() == b"drain\n"
    again = faces.drain(by="person", reason="again", deadline_s=600)
    assert {key: again.json()[key] for key in ("by", "reason", "deadline", "notice_at")} == {
        "by": "idle",
        "reason": "idle",
        "deadline": answer.json()["deadline"],
        "notice_at": None,
    }
    faces.machine.engine.running = 1
    faces.machine.pass_time(timedelta(seconds=2))
    status = httpx.get(f"{faces.url}/status", timeout=60).json()
    assert (status["phase"], status["ready"], status["requests_running"]) == ("draining", False, 1)


def test_only_known_owners_can_drain_and_the_first_one_stays(faces: Faces) -> None:
    for wrong in ("scale", "", "Idle", "idle ", 1, None, ["idle"], {"idle": 1}, True):
        said = faces.refused(faces.drain(by=wrong), 400, "malformed")
        assert said == f"by: is {wrong!r}, must be one of idle, spot, person, cloud, rollout"
    answers = [faces.drain(by=by) for by in ("rollout", "idle", "spot", "person", "cloud")]
    assert [(answer.status_code, answer.json()["by"]) for answer in answers] == [(202, "rollout")] * 5


def test_the_control_host_reads_the_drain_that_it_requested(faces: Faces) -> None:
    cloud = faces.machine.cloud
    one = plain.instance(1, id=cloud.instance_id, private_address=cloud.address)
    with closing(NodeAgents(signing.key, port=faces.http.server_address[1], now=faces.machine.clock)) as asking:
        agents = FleetAgents(asking)
        asked = agents.drain(one, DrainOwner.SPOT, "spot: x", timedelta(seconds=60))
        cloud.said = [CloudNotice(kind=Notice.PREEMPTION)]
        faces.machine.pass_time(timedelta(seconds=1))
        seen = agents.statuses([one])[one.id]
    assert (asked.drain_by, asked.notice_at) == (DrainOwner.SPOT, None)
    assert (seen.drain_by, seen.notice_at) == (DrainOwner.SPOT, START)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(b"{", "no JSON", id="no JSON"),
        pytest.param(b"\xff", "no JSON", id="no text"),
        pytest.param(b"[" * 2000, "no JSON", id="nested"),
        pytest.param([], "an order is an object", id="a list"),
        pytest.param({"deadline_s": 5}, "an order is an object", id="fields are missing"),
        pytest.param({"more": 1}, "an order is an object", id="one field more"),
        pytest.param({"version": 2}, "version: is 2", id="another version"),
        pytest.param({"action": "delete"}, "action: is 'delete', must be drain or switch", id="another action"),
        pytest.param({"action": ["drain"]}, "action", id="a list of actions"),
        pytest.param({"instance": 5}, "instance", id="a number for the instance"),
        pytest.param({"nonce": "0" * 31}, "nonce", id="a short nonce"),
        pytest.param({"nonce": None}, "nonce", id="no nonce"),
        pytest.param({"at": "now"}, "at: is no time", id="no time"),
        pytest.param({"at": "2026-11-21T02:00:00"}, "at: has no time zone", id="no zone"),
        pytest.param({"reason": None}, "reason", id="no reason"),
        pytest.param({"reason": "a\nb"}, "reason", id="two lines"),
        pytest.param({"deadline_s": None}, "deadline_s", id="no deadline"),
        pytest.param({"deadline_s": -1}, "deadline_s", id="in the past"),
        pytest.param({"deadline_s": True}, "deadline_s", id="a yes"),
        pytest.param({"deadline_s": 10**9}, "deadline_s", id="for ever"),
    ],
)
def test_an_invalid_order_is_refused_with_a_message_although_it_is_signed(faces: Faces, body: Any, says: str) -> None:
    sent = faces.order(body) if isinstance(body, dict) and body != {"deadline_s": 5} else body
    assert says in faces.refused(faces.post(sent), 400, "malformed")


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
def test_a_body_of_unknown_length_is_refused_before_it_is_read(faces: Faces, head: str) -> None:
    host, port = faces.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"POST {orders.PATH} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 411 ")
    assert faces.machine.life.ready


def test_metrics_contain_the_phase(faces: Faces) -> None:
    answer = httpx.get(f"{faces.url}/metrics", timeout=60)
    samples = {(s.name, s.labels.get("phase")): s.value for s in parse(answer.text)}
    assert samples["gpufleet_node_phase", "ready"] == 1
    assert samples["gpufleet_node_phase", "failed"] == 0
    assert ("gpufleet_node_drain_deadline_timestamp_seconds", None) not in samples
    assert all(sample.labels["pool"] == "chat" for sample in parse(answer.text))


def test_metrics_contain_the_reason_of_a_drain(faces: Faces) -> None:
    faces.drain(by="spot", reason='spot: "safer" zone')
    samples = parse(httpx.get(f"{faces.url}/metrics", timeout=60).text)
    reasons = [s.labels["reason"] for s in samples if s.name == "gpufleet_node_drain_deadline_timestamp_seconds"]
    assert reasons == ['spot: "safer" zone']


def test_the_health_page(faces: Faces) -> None:
    assert httpx.get(f"{faces.url}/healthz", timeout=60).status_code == 200
    assert httpx.get(f"{faces.url}/other", timeout=60).status_code == 404
    assert httpx.post(f"{faces.url}/other", content="", timeout=60).status_code == 404
    assert httpx.post(f"{faces.url}/status", content="", timeout=60).status_code == 405


@pytest.mark.parametrize("face", ["http", "check"])
def test_silent_connections_block_no_other_client(faces: Faces, face: str) -> None:
    port = (faces.http if face == "http" else faces.check).server_address[1]
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(ServerLimits().connections + 40):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            silent.sendall(b"POST /orders HTTP/1.1\r\nX: ")
        assert httpx.get(f"{faces.url}/healthz", timeout=60).status_code == 200
        assert faces.asked_by_haproxy().startswith(b"up")
        assert threading.active_count() - before <= ServerLimits().connections + 40
