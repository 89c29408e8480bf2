"""The agent's faces on real sockets."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from app.adapters import FleetAgents
from clouds.agents import NodeAgents
from gpufleet.domain.drains import DrainOwner
from node import server
from node.ports import CloudNotice, Notice
from serving.exposition import parse
from tests.node.world import START, Machine
from tests.watchdogs import plain

TOKEN = "the token"  # noqa: S105 - of a test
ORDER = {"by": "idle", "reason": "idle", "deadline_s": 60}


class Faces:
    """An agent that serves on free ports."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.token: str | None = TOKEN
        self.http, self.check = server.serve(
            machine.life,
            address="127.0.0.1",
            token=lambda: self.token,
            ask=machine.agent.ask_to_drain,
            switch=machine.switch.ask,
            ports=(0, 0),
        )
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def asked_by_haproxy(self) -> bytes:
        port = self.check.server_address[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            return connection.makefile("rb").read()

    def drain(self, body: object, token: str = TOKEN) -> httpx.Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return httpx.post(f"{self.url}/drain", content=text, headers={"Authorization": f"Bearer {token}"})


@pytest.fixture
def faces(bucket: Path, tmp_path: Path) -> Iterator[Faces]:
    machine = Machine(root=tmp_path, bucket=bucket)
    machine.boot.run()
    served = Faces(machine)
    yield served
    for one in (served.http, served.check):
        one.shutdown()
        one.server_close()


def test_a_change_of_revision_needs_the_token_a_digest_and_a_ready_instance(faces: Faces) -> None:
    def ask(body: object, token: str = TOKEN) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.post(f"{faces.url}/switch", content=json.dumps(body), headers=headers)

    served = faces.machine.life.digest
    assert ask({"digest": served}, "another").status_code == 401
    assert ask({"digest": "../climbs"}).status_code == 400
    assert ask([]).status_code == 400
    # what is served already is no change
    assert ask({"digest": served}).status_code == 202
    faces.drain(ORDER)
    answer = ask({"digest": "0" * 64})
    assert answer.status_code == 409
    assert "draining" in answer.json()["error"]


def test_a_drain_is_taken_once_and_haproxy_hears_of_it(faces: Faces) -> None:
    assert faces.asked_by_haproxy() == b"up ready\n"
    answer = faces.drain(ORDER)
    assert answer.status_code == 202
    assert answer.json()["draining"] is True
    assert faces.asked_by_haproxy() == b"drain\n"
    again = faces.drain({"by": "person", "reason": "again", "deadline_s": 600})
    assert {key: again.json()[key] for key in ("by", "reason", "deadline", "notice_at")} == {
        "by": "idle",
        "reason": "idle",
        "deadline": answer.json()["deadline"],
        "notice_at": None,
    }
    faces.machine.engine.running = 1
    faces.machine.pass_time(timedelta(seconds=2))
    status = httpx.get(f"{faces.url}/status").json()
    assert (status["phase"], status["ready"], status["requests_running"]) == ("draining", False, 1)


def test_only_the_owners_of_the_list_may_ask_and_the_first_one_stays(faces: Faces) -> None:
    for wrong in ("scale", "", "Idle", "idle ", 1, None, ["idle"], {"idle": 1}, True):
        answer = faces.drain(ORDER | {"by": wrong})
        assert answer.status_code == 400
        assert answer.json()["error"] == f"by: is {wrong!r}, must be one of idle, spot, person, cloud, rollout"
    assert faces.machine.life.ready
    answers = [faces.drain(ORDER | {"by": by}) for by in ("rollout", "idle", "spot", "person", "cloud")]
    assert [(answer.status_code, answer.json()["by"]) for answer in answers] == [(202, "rollout")] * 5


def test_the_control_host_reads_what_it_asked_for(faces: Faces) -> None:
    cloud = faces.machine.cloud
    one = plain.instance(1, id=cloud.instance_id, private_address=cloud.address)
    with closing(NodeAgents(lambda: TOKEN, port=faces.http.server_address[1])) as asking:
        agents = FleetAgents(asking)
        asked = agents.drain(one, DrainOwner.SPOT, "spot: x", timedelta(seconds=60))
        cloud.said = [CloudNotice(kind=Notice.PREEMPTION)]
        faces.machine.pass_time(timedelta(seconds=1))
        seen = agents.statuses([one])[one.id]
    assert (asked.drain_by, asked.notice_at) == (DrainOwner.SPOT, None)
    assert (seen.drain_by, seen.notice_at) == (DrainOwner.SPOT, START)


def test_a_control_host_of_release_0_1_names_the_owner_in_its_reason(faces: Faces) -> None:
    answer = faces.drain({"reason": "spot: spot is back", "deadline_s": 60})
    assert (answer.status_code, answer.json()["by"]) == (202, "spot")


def test_without_the_token_nothing_happens(faces: Faces) -> None:
    assert faces.drain(ORDER, token="wrong").status_code == 401  # noqa: S106
    assert httpx.post(f"{faces.url}/drain", json=ORDER).status_code == 401
    faces.token = None
    assert faces.drain(ORDER).status_code == 503
    assert faces.machine.life.ready


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param("{", "no JSON", id="no JSON"),
        pytest.param([], "reason", id="a list"),
        pytest.param({"deadline_s": 5}, "reason", id="no reason"),
        pytest.param({"reason": "a\nb", "deadline_s": 5}, "reason", id="two lines"),
        pytest.param({"reason": "x"}, "deadline_s", id="no deadline"),
        pytest.param({"reason": "x", "deadline_s": -1}, "deadline_s", id="in the past"),
        pytest.param({"reason": "x", "deadline_s": True}, "deadline_s", id="a yes"),
        pytest.param({"reason": "x", "deadline_s": 10**9}, "deadline_s", id="for ever"),
        pytest.param({"reason": "x", "deadline_s": 5}, "idle, spot, person, cloud, rollout", id="by nobody"),
    ],
)
def test_nonsense_is_refused_with_words(faces: Faces, body: object, says: str) -> None:
    answer = faces.drain(body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]
    assert faces.machine.life.ready


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
def test_a_body_without_an_end_is_refused_before_it_is_read(faces: Faces, head: str) -> None:
    host, port = faces.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(f"POST /drain HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 411 ")
    assert faces.machine.life.ready


def test_metrics_tell_the_phase(faces: Faces) -> None:
    answer = httpx.get(f"{faces.url}/metrics")
    samples = {(s.name, s.labels.get("phase")): s.value for s in parse(answer.text)}
    assert samples["gpufleet_node_phase", "ready"] == 1
    assert samples["gpufleet_node_phase", "failed"] == 0
    assert ("gpufleet_node_drain_deadline_timestamp_seconds", None) not in samples
    assert all(sample.labels["pool"] == "chat" for sample in parse(answer.text))


def test_metrics_tell_why_it_drains(faces: Faces) -> None:
    faces.drain({"by": "spot", "reason": 'spot: "safer" zone', "deadline_s": 60})
    samples = parse(httpx.get(f"{faces.url}/metrics").text)
    reasons = [s.labels["reason"] for s in samples if s.name == "gpufleet_node_drain_deadline_timestamp_seconds"]
    assert reasons == ['spot: "safer" zone']


def test_the_page_that_says_it_lives(faces: Faces) -> None:
    assert httpx.get(f"{faces.url}/healthz").status_code == 200
    assert httpx.get(f"{faces.url}/other").status_code == 404
    assert httpx.post(f"{faces.url}/other", content="").status_code == 404
