"""Replicas start and end without effects on clients. Real HAProxy, mock replicas."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import httpx
import pytest

from serving.router.controller import Controller
from serving.router.policy import PoolPolicy, RouterPolicy
from serving.router.settings import RouterPaths
from tests.fixtures.router.router import NETWORK, Router, document

CHAT = {"name": "chat", "model": "models/chat"}


def test_waits_for_the_fleet_document(router: Router) -> None:
    before = router.chat()
    assert before.status_code == 503
    assert before.headers["retry-after"] == "5"
    assert before.json()["error"]["code"] == "no_fleet"
    router.fleet.written = document(CHAT)
    router.add("i-1")
    router.ready("i-1")
    # a connection from before the reload gets one more response from the old worker
    router.until(lambda: router.chat().status_code == 200, "the new worker answers")
    after = router.chat()
    assert after.headers["x-gpufleet-pool"] == "chat"
    assert after.headers["x-gpufleet-replica"] == "i-1"


def test_a_booting_instance_gets_no_requests_until_engine_and_agent_are_healthy(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.fleet.rules = RouterPolicy(pools={"chat": PoolPolicy(hold_seconds=1)})
    replica = router.add("i-1", serve=False)
    router.until(lambda: router.server("i-1") is not None, "i-1 is a server")
    assert router.chat().status_code == 503
    replica.does.agent = "down"
    replica.__enter__()
    router.until(lambda: "agent" in (router.server("i-1") or ""), "its agent reported down")
    assert router.chat().status_code == 503
    replica.does.agent = "up ready"
    router.ready("i-1")
    assert router.chat().status_code == 200


def test_a_replica_whose_agent_never_responded_gets_no_requests(router: Router) -> None:
    router.fleet.written = document(CHAT)
    replica = router.add("i-1", serve=False)
    replica.does.agent = ""
    replica.__enter__()
    router.until(lambda: replica.does.checks >= 6, "its engine was found well")
    assert (router.server("i-1") or "").startswith("DOWN")


def test_an_unhealthy_engine_never_gets_requests(router: Router) -> None:
    router.fleet.written = document(CHAT)
    replica = router.add("i-1", serve=False)
    replica.does.health = 503
    replica.__enter__()
    router.until(lambda: replica.does.checks >= 1, "the first check, of three that make a server DOWN")
    assert (router.server("i-1") or "").startswith("DOWN")


def test_an_engine_that_never_answered_a_health_check_gets_no_requests(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.fleet.rules = RouterPolicy(pools={"chat": PoolPolicy(hold_seconds=1)})
    replica = router.add("i-1", serve=False)
    replica.does.hung = True
    replica.__enter__()
    router.until(lambda: replica.does.agent_checks >= 3, "its agent responded")
    assert (router.server("i-1") or "").startswith("DOWN")
    assert router.chat().status_code == 503
    assert replica.does.requests == 0
    replica.does.hung = False
    router.ready("i-1")
    assert router.chat().status_code == 200


def test_an_unknown_model_gets_the_list_of_models(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.add("i-1")
    router.ready()
    answer = router.chat(model="gpt-9")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "chat" in answer.json()["error"]["message"]
    listed = router.client.get(f"{router.url}/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["chat"]


def test_a_preempted_replica_drains_and_no_request_fails(router: Router) -> None:
    router.fleet.written = document(CHAT)
    leaving, staying = router.add("i-1"), router.add("i-2")
    router.ready("i-1", "i-2")
    codes: list[Any] = []
    replicas_after_drain: list[str] = []
    drains = threading.Event()
    streams: list[int] = []
    end = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=60) as client:
            while not end.is_set():
                body = {"model": "chat", "messages": []}
                after_drain = drains.is_set()
                try:
                    answer = client.post(f"{router.url}/v1/chat/completions", json=body)
                except httpx.HTTPError as error:
                    codes.append(error)
                    continue
                codes.append(answer.status_code)
                if after_drain:
                    replicas_after_drain.append(answer.headers["x-gpufleet-replica"])

    def stream() -> None:
        with httpx.Client(timeout=60) as client:
            body = {"model": "chat", "stream": True, "n": 30, "gap_s": 0.1}
            with client.stream("POST", f"{router.url}/v1/chat/completions", json=body) as answer:
                streams.append(sum(line.startswith("data: {") for line in answer.iter_lines()))

    threads = [threading.Thread(target=ask) for _ in range(3)] + [threading.Thread(target=stream) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        router.until(lambda: leaving.does.running + staying.does.running >= 4, "streams run")
        leaving.does.agent = "drain"
        router.until(lambda: (router.server("i-1") or "").startswith("DRAIN"), "i-1 drains")
        # requests that HAProxy assigned earlier may still be on their way to i-1: only later ones count
        drains.set()
        router.until(lambda: len(replicas_after_drain) >= 10, "requests are answered after the drain")
        router.until(lambda: router.sessions("i-1") == 0, "i-1 finished what it had")
        leaving.close()
        del router.fleet.machines["i-1"]
        router.until(lambda: router.server("i-1") is None, "i-1 is removed")
    finally:
        end.set()
        for thread in threads:
            thread.join(60)
    assert set(replicas_after_drain) == {"i-2"}
    assert set(codes) == {200}
    assert streams == [30, 30, 30, 30]


@pytest.mark.parametrize(
    ("error", "status"),
    [("cannot schedule new futures after shutdown", 503), ("CUDA error: an illegal memory access", 500)],
    ids=["an engine that is stopped", "an engine that failed"],
)
def test_a_request_that_a_stopped_engine_refused_may_be_retried(router: Router, error: str, status: int) -> None:
    router.fleet.written = document(CHAT)
    replica = router.add("i-1")
    router.ready()
    replica.does.status, replica.does.error = 500, error
    answer = router.chat()
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) is (status == 503)


def test_connections_to_an_engine_are_reused_and_idle_ones_are_closed(router: Router) -> None:
    """A new connection per request costs half the throughput. An engine closes connections that are idle for 75 s."""
    router.fleet.written = document(CHAT)
    replica = router.add("i-1")
    router.ready()
    assert {router.chat().status_code for _ in range(30)} == {200}
    assert replica.does.connections < 10
    replica.does.delay_s = 0.5
    with ThreadPoolExecutor(16) as pool:
        assert {call.status_code for call in pool.map(lambda _: router.chat(), range(32))} == {200}
    router.until(lambda: replica.does.open <= 1, "idle connections are ended")  # within 60 s


def test_state_survives_a_reload(router: Router) -> None:
    router.fleet.written = document(CHAT)
    draining = router.add("i-1")
    router.add("i-2")
    router.ready("i-1", "i-2")
    draining.does.agent = "drain"
    router.until(lambda: (router.server("i-1") or "").startswith("DRAIN"), "i-1 drains")
    # the agent stops responding, so that only the saved state can inform the new worker
    draining.does.agent = ""
    reloads = router.controller.reloads
    router.fleet.written = document(CHAT, {"name": "batch", "model": "models/other"})
    router.until(lambda: router.controller.reloads > reloads, "a reload")
    assert (router.server("i-1") or "").startswith("DRAIN")
    assert (router.server("i-2") or "").startswith("UP")
    assert {router.chat().headers["x-gpufleet-replica"] for _ in range(10)} == {"i-2"}


def test_a_vanished_document_and_a_failing_inventory_change_nothing(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.add("i-1")
    router.ready()
    router.fleet.document_error = "gone"
    router.fleet.inventory_error = "throttled"
    router.until(lambda: sum(map(bool, router.controller.problems.values())) == 2, "both problems are reported")
    assert router.chat().status_code == 200
    assert any("keeping the last valid one" in line.get("error", "") for line in router.log.of("problem"))


def test_a_silent_agent_puts_its_replica_in_maintenance_until_it_responds(router: Router) -> None:
    router.fleet.written = document(CHAT)
    quiet = router.add("i-1")
    router.ready()
    quiet.does.agent = ""
    router.until(lambda: (router.server("i-1") or "").startswith("MAINT"), "i-1 in maint")
    quiet.does.agent = "up ready"
    router.ready("i-1")


def test_requests_before_the_first_server_check_wait_for_it(router: Router, tmp_path: Path) -> None:
    router.fleet.written = document(CHAT)
    router.add("i-1")
    router.ready()
    paths = RouterPaths(state=tmp_path / "again")
    paths.state.mkdir()
    copyfile(router.controller.paths.last_document, paths.last_document)
    host = f"{NETWORK}.249.1"
    settings = replace(router.controller.settings, bind=f"{host}:8080", metrics_bind=f"{host}:8404")
    again = Controller(router.fleet, settings, paths, router.log)
    again.start()
    try:
        with ThreadPoolExecutor(1) as clients:
            url, body = f"http://{host}:8080/v1/completions", {"model": "chat", "prompt": "hello"}
            asked = clients.submit(httpx.post, url, json=body, timeout=60)
            router.until(lambda: asked.done() or again.activator.held().get("chat") == 1, "it is there")
            assert not asked.done()
            while not asked.done():
                again.tick()
                time.sleep(0.05)
            assert asked.result().status_code == 200
    finally:
        again.stop(0)


def test_a_killed_haproxy_is_restarted(router: Router) -> None:
    import os
    import signal

    router.fleet.written = document(CHAT)
    router.add("i-1")
    router.ready()
    os.kill(router.controller.haproxy.admin.process_id(), signal.SIGKILL)
    router.until(lambda: bool(router.log.of("haproxy")), "it noticed")
    router.ready("i-1")
    assert router.chat().status_code == 200


def test_other_users_cannot_read_the_logs(router: Router) -> None:
    paths = router.controller.paths
    assert [path.stat().st_mode & 0o777 for path in (paths.access_log, paths.log)] == [0o640, 0o640]
