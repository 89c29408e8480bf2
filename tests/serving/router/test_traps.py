"""Known problems of plain HAProxy configurations, each avoided. Real HAProxy, mock replicas."""

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from serving.router.policy import Balance, Canary, ModelPolicy, PoolPolicy, RouterPolicy
from tests.fixtures.router.router import Router, document

CHAT = {"name": "chat", "model": "models/chat"}
CANARY = {"name": "chat-canary", "model": "models/chat"}
LONG = "You answer for the shop of Example Inc. " * 10


def _stream(router: Router, n: int, gap_s: float) -> Generator[tuple[float, dict[str, Any]]]:
    """Yield events with their arrival times."""
    body = {"model": "chat", "stream": True, "n": n, "gap_s": gap_s}
    url = f"{router.url}/v1/chat/completions"
    with httpx.Client(timeout=60) as client, client.stream("POST", url, json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                yield time.monotonic(), json.loads(line[6:])


def test_streamed_chunks_are_not_delayed(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.add("i-1")
    router.ready()
    with contextlib.closing(_stream(router, n=100, gap_s=0.3)) as events:
        # without `option http-no-delay` each chunk waits 200 ms for the kernel's timer; a busy machine delays some
        assert any(arrived - event["sent"] < 0.1 for arrived, event in events)


def test_a_failing_replica_is_excluded_and_its_errors_reach_clients(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.fleet.rules = RouterPolicy(pools={"chat": PoolPolicy(balance=Balance.LEAST)})
    bad, good = router.add("i-1"), router.add("i-2")
    router.ready()
    bad.does.status = 503
    codes = [router.chat().status_code for _ in range(12)]
    assert codes.count(503) >= 3, "an error of a replica reaches the client: it may have generated already"
    router.until(
        lambda: any(line["percent"] == 0 for line in router.log.of("replica_weight")), "i-1 gets no requests"
    )
    before = bad.does.requests
    assert {router.chat().status_code for _ in range(20)} == {200}
    assert bad.does.requests == before
    assert good.does.requests >= 20


def test_refused_connections_are_tried_elsewhere(router: Router) -> None:
    router.fleet.written = document(CHAT)
    lost, _ = router.add("i-1"), router.add("i-2")
    router.ready()
    lost.close()
    assert {router.chat().status_code for _ in range(20)} == {200}


def test_a_request_that_reached_a_replica_is_never_sent_twice(router: Router) -> None:
    router.fleet.written = document(CHAT)
    first, second = router.add("i-1"), router.add("i-2")
    router.ready()
    first.does.reset = second.does.reset = True
    assert router.chat().status_code == 502
    assert first.does.broken + second.does.broken == 1, "it may have generated already"
    first.does.reset = second.does.reset = False
    assert router.chat().status_code == 200


def test_a_replica_marked_down_ends_its_streams(router: Router) -> None:
    router.fleet.written = document(CHAT)
    replica = router.add("i-1")
    router.ready()
    arrived: list[int] = []
    stream = threading.Thread(target=lambda: arrived.append(len(list(_stream(router, n=40, gap_s=0.1)))))
    stream.start()
    router.until(lambda: replica.does.running == 1, "the stream runs")
    replica.does.health = 503
    router.until(lambda: (router.server("i-1") or "").startswith("DOWN"), "i-1 is DOWN")
    stream.join(60)
    assert arrived == [40]


def test_a_machine_that_left_the_inventory_ends_its_streams(router: Router) -> None:
    router.fleet.written = document(CHAT)
    replica = router.add("i-1")
    router.ready()
    arrived: list[int] = []
    stream = threading.Thread(target=lambda: arrived.append(len(list(_stream(router, n=40, gap_s=0.1)))))
    stream.start()
    router.until(lambda: replica.does.running == 1, "the stream runs")
    del router.fleet.machines["i-1"]
    router.until(
        lambda: (router.server("i-1") or "").startswith("MAINT"), "i-1 leaves, though its agent reports ready"
    )
    stream.join(60)
    assert arrived == [40]
    router.until(lambda: router.server("i-1") is None, "i-1 is removed")


def test_a_responding_agent_cannot_restore_a_machine_that_is_being_removed(router: Router) -> None:
    router.fleet.written = document(CHAT)
    leaving = router.add("i-1")
    router.ready()
    leaving.does.hold = True
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(router.chat)
        router.until(lambda: leaving.does.running == 1, "i-1 has a request")
        staying = router.add("i-2")
        router.ready("i-2")
        del router.fleet.machines["i-1"]
        router.until(lambda: (router.server("i-1") or "").startswith("MAINT"), "i-1 leaves")
        end = staying.does.agent_checks + 10
        states: set[str | None] = set()
        served: set[str] = set()
        while staying.does.agent_checks < end:
            states.add(router.server("i-1"))
            served.add(router.chat().headers["x-gpufleet-replica"])
        assert states == {"MAINT"}, "`up ready` undoes maint, so the agent check is off before it"
        assert served == {"i-2"}
        leaving.does.hold = False
        assert running.result().headers["x-gpufleet-replica"] == "i-1"
    router.until(lambda: router.server("i-1") is None, "i-1 is removed")


def test_an_agent_must_send_up_and_ready_for_its_replica_to_return(router: Router) -> None:
    router.fleet.written = document(CHAT)
    replica = router.add("i-1")
    router.ready()
    for trouble, half in (("down", "ready"), ("drain", "up")):
        for word in (trouble, half):
            replica.does.agent = word
            checks = replica.does.agent_checks + 5
            router.until(lambda checks=checks: replica.does.agent_checks >= checks, f"the agent reported {word}")
            assert not (router.server("i-1") or "").startswith("UP"), f"after {trouble}, {word}"
        replica.does.agent = "up ready"
        router.ready()


def test_an_idle_connection_gets_one_more_response_from_the_old_worker(router: Router) -> None:
    router.fleet.written = document(CHAT)
    router.add("i-1")
    router.ready()
    host, _, port = router.url.removeprefix("http://").rpartition(":")
    idle = HTTPConnection(host, int(port), timeout=30)
    idle.connect()
    idle.auto_open = 0  # it must not reopen a closed connection
    try:
        assert _chat_over(idle) == (200, None)
        reloads = router.controller.reloads
        router.fleet.written = document(CHAT, {"name": "more", "model": "models/more"})
        router.until(lambda: router.controller.reloads > reloads, "a reload")
        # the old worker accepts no more connections: it is ending
        router.until(lambda: all(_models(router) == ["chat", "more"] for _ in range(20)), "the new one takes over")
        # without `option idle-close-on-response` the old worker would have closed this connection by now
        assert _chat_over(idle) == (200, "close")
    finally:
        idle.close()


def test_a_changed_canary_survives_a_reload(router: Router) -> None:
    router.fleet.written = document(CHAT, CANARY)
    router.fleet.rules = _canary(0)
    router.add("i-1")
    router.add("i-2", "chat-canary")
    router.ready()
    reloads = router.controller.reloads
    router.fleet.rules = _canary(100)
    router.until(lambda: _pool_of(router, "u1") == "chat-canary", "the canary gets all")
    assert router.controller.reloads == reloads, "moving a canary needs no reload"
    router.fleet.written = document(CHAT, CANARY, {"name": "more", "model": "models/more"})
    router.until(lambda: router.controller.reloads > reloads, "a reload")
    assert {_pool_of(router, f"u{n}") for n in range(20)} == {"chat-canary"}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["{n}", "user-{n}", "key_{n:08d}"], ids=["numbers", "names", "keys"])
def test_canary_users_are_distributed_evenly_and_remain(router: Router, form: str) -> None:
    router.fleet.written = document(CHAT, CANARY)
    router.fleet.rules = _canary(10)
    router.add("i-1")
    router.add("i-2", "chat-canary")
    router.ready()
    users = [form.format(n=n) for n in range(600)]
    router.until(lambda: router.chat(headers={"x-user-id": "x"}).status_code == 200, "it answers")
    tenth = _in_canary(router, users)
    assert 35 <= len(tenth) <= 90, "10 % of 600 users, within chance (plain sdbm gives 1 or 93)"
    assert _in_canary(router, users) == tenth
    router.fleet.rules = _canary(30)
    router.until(lambda: router.controller.describe()["canaries"]["chat"]["percent"] == 30, "30 %")  # type: ignore[index]
    third = _in_canary(router, users)
    assert tenth < third
    assert 130 <= len(third) <= 235
    alike = sum(len(third.intersection(users[n : n + 10])) in (0, 10) for n in range(0, 600, 10))
    assert alike < 15, "neighbours are drawn one by one: 2 of 60 tens are alike by chance, with sdbm most are"
    router.fleet.rules = _canary(10, salt="another")
    router.until(lambda: len(_in_canary(router, users[:200])) < 40, "10 % again")
    assert _in_canary(router, users) != tenth, "another salt draws others"


def test_prompts_stay_on_a_replica_within_the_load_limit(router: Router) -> None:
    router.fleet.written = document(CHAT)
    replicas = [router.add(f"i-{n}") for n in range(3)]
    router.ready()
    for prompt in range(12):
        asked = {_replica_of(router, f"{prompt} {LONG}", f"question {n}") for n in range(4)}
        assert len(asked) == 1, "a conversation that continues stays where its cache is"
    before = [replica.does.requests for replica in replicas]
    assert sum(count > 0 for count in before) >= 2
    for replica in replicas:
        replica.does.hold = True
    with ThreadPoolExecutor(30) as pool:
        asked = [pool.submit(_replica_of, router, f"7 {LONG}", "same") for _ in range(30)]
        router.until(lambda: sum(replica.does.running for replica in replicas) == 30, "thirty at once")
        for replica in replicas:
            replica.does.hold = False
        counts = Counter(call.result() for call in asked)
    most = max(counts.values())
    assert most <= 26, "a hot prompt spills to the others (250 % of the mean)"
    assert most >= 20, "most of it stays where its cache is (with 150 % half of it leaves)"


def test_short_prompts_are_distributed(router: Router) -> None:
    router.fleet.written = document(CHAT)
    for n in range(3):
        router.add(f"i-{n}")
    router.ready()
    counts = Counter(router.chat().headers["x-gpufleet-replica"] for _ in range(30))
    assert len(counts) == 3


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"messages": [{"content": "%s"}], "model": "chat"}' % (b"x" * 300_000), {}, 413),
        (b'{"messages": [{"content": "%s"}], "model": "chat"}' % (b"x" * 300_000), {"x-model": "chat"}, 200),
        (b'{"model": "chat", "messages": [{"content": "%s"}]}' % (b"x" * 300_000), {}, 200),
        (b'{"messages": [{"content": "%s"}], "model": "chat"}' % (b"x" * 100_000), {}, 200),
        (b'{"messages": [{"content": "%s"}], "model": "chat"}' % (b'\\"a\\n' * 40_000), {}, 200),
        (b'{"messages": []}', {}, 400),
        (b'{"metadata": {"model": "other"}, "model": "chat"}', {}, 200),
        (b'{"note": "\\"model\\": \\"other\\"", "model": "chat"}', {}, 200),
        (b'{"model": "c\\u0068at"}', {}, 200),
        (b'{\n  "messages" : [ ],\n  "model" :\t"chat"\n}', {}, 200),
        (b"[" * 100_000, {}, 400),
        (b'{"model": "\xff\xfe"}', {}, 404),
        (b"", {}, 400),
        (b'{"model": "chat", "model": "other"}', {}, 200),
        (b'{"model": "other", "model": "chat"}', {}, 404),
        (b'{"model": ["chat"]}', {}, 400),
        (b'{"tools": %s%s, "model": "chat", "stop": []}' % (b"[" * 30, b"]" * 30), {}, 400),
        (b'{"tools": %s%s, "model": "chat", "stop": []}' % (b"[" * 30, b"]" * 30), {"x-model": "chat"}, 200),
        (b'{"tools": %s%s, "model": "chat", "n": 1}' % (b"[" * 30, b"]" * 30), {}, 200),
    ],
    ids=[
        "large-model-last", "large-with-header", "large-model-first", "fits", "fits-all-escapes", "no-model",
        "nested-lookalike", "lookalike-in-text", "escape", "pretty", "100000-brackets", "invalid-utf8", "empty",
        "two-models", "two-models-unknown-first", "model-is-no-text",
        "deep", "deep-with-header", "deep-model-last",
    ],
)  # fmt: skip
def test_the_model_is_found_or_the_error_gives_the_fix(
    steady: Router, body: bytes, headers: dict[str, str], status: int
) -> None:
    answer = steady.client.post(f"{steady.url}/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == status
    if status in (400, 413):
        assert "x-model" in answer.json()["error"]["message"]


def test_a_chunked_upload_is_read(steady: Router) -> None:
    parts = [b'{"messages": [], ', b'"model": "ch', b'at"}']
    assert steady.client.post(f"{steady.url}/v1/chat/completions", content=iter(parts)).status_code == 200
    large = (b'{"m": "', b"x" * 300_000, b'", "model": "chat"}')
    assert steady.client.post(f"{steady.url}/v1/chat/completions", content=iter(large)).status_code == 413
    named = steady.client.post(f"{steady.url}/v1/chat/completions", content=iter(large), headers={"x-model": "chat"})
    assert named.status_code == 200


def _chat_over(connection: HTTPConnection) -> tuple[int, str | None]:
    """Return the status and the `connection` header."""
    connection.request("POST", "/v1/chat/completions", b'{"model": "chat"}')
    answer = connection.getresponse()
    answer.read()
    return answer.status, answer.headers["connection"]


def _models(router: Router) -> list[str]:
    """Return the listed models, over a new connection."""
    return [model["id"] for model in httpx.get(f"{router.url}/v1/models", timeout=60).json()["data"]]


def _canary(percent: float, salt: str = "first") -> RouterPolicy:
    return RouterPolicy(models={"chat": ModelPolicy(canary=Canary(pool="chat-canary", percent=percent, salt=salt))})


def _pool_of(router: Router, user: str) -> str:
    return router.chat(headers={"x-user-id": user}).headers["x-gpufleet-pool"]


def _in_canary(router: Router, users: list[str]) -> set[str]:
    return {user for user in users if _pool_of(router, user) == "chat-canary"}


def _replica_of(router: Router, system: str, question: str) -> str:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "same first question"}]
    messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": question}]
    body = {"model": "chat", "messages": messages}
    return router.client.post(f"{router.url}/v1/chat/completions", json=body).headers["x-gpufleet-replica"]
