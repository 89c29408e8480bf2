"""Batch and online requests: separate pools do not affect each other; in a shared pool, batch requests yield."""

import re
import statistics
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from serving.router.keys import ApiKey, digest
from serving.router.policy import ModelPolicy, PoolPolicy, RouterPolicy
from tests.fixtures.router.router import Router, document

BATCH = {"authorization": "Bearer sk-nightly", "x-request-id": "batch"}
ONLINE = {"x-request-id": "online"}
_LINE = re.compile(r"^request t=\S+ id=(batch|online) status=200 .* queue=(\d+) ", re.MULTILINE)


def _most_queued(router: Router, pool: str) -> int:
    """Return the maximum number of requests that waited at once for the pool or for one of its replicas."""
    lines = [line.split(",") for line in router.controller.haproxy.admin.ask("show stat -1 6 -1").splitlines()]
    return max(int(most or 0) for name, _, _, most, *_ in lines if name == f"pool_{pool}")


@pytest.mark.slow
def test_a_full_batch_pool_does_not_affect_the_online_pool(router: Router) -> None:
    router.fleet.written = document(
        {"name": "online", "model": "models/chat"}, {"name": "nightly", "model": "models/chat"}
    )
    router.fleet.rules = RouterPolicy(
        models={"chat": ModelPolicy(default="online", by_class={"batch": "nightly"})},
        pools={"nightly": PoolPolicy(most_per_replica=2, queue=6)},
    )
    router.fleet.clients = (ApiKey(sha256=digest("sk-nightly"), name="nightly", user_class="batch"),)
    router.add("i-online", "online")
    batch = router.add("i-nightly", "nightly")
    router.ready()
    batch.does.hold = True
    with ThreadPoolExecutor(8) as pool:
        stuck = [pool.submit(router.chat, headers=BATCH) for _ in range(8)]
        router.until(lambda: batch.does.running == 2 and router.queued("nightly") == 6, "the batch pool is full")
        answers = [router.chat(headers=ONLINE) for _ in range(40)]
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.headers["x-gpufleet-replica"] for answer in answers} == {"i-online"}
        assert router.chat(headers=BATCH).json()["error"]["code"] == "queue_full", "only batch requests are refused"
        assert router.queued("nightly") == 6
        assert batch.does.running == 2
        batch.does.hold = False
        assert [one.result().status_code for one in stuck] == [200] * 8
    assert _most_queued(router, "online") == 0, "no online request ever waited"
    assert _most_queued(router, "nightly") == 6


@pytest.mark.slow
def test_batch_requests_yield_to_online_requests_in_a_shared_pool(router: Router) -> None:
    """Eight batch clients and one person send requests without pause. First-come order would delay the person."""
    router.fleet.written = document({"name": "chat", "model": "models/chat"})
    router.fleet.rules = RouterPolicy(pools={"chat": PoolPolicy(most_per_replica=1)})
    router.fleet.clients = (ApiKey(sha256=digest("sk-nightly"), name="nightly", user_class="batch"),)
    replica = router.add("i-1")
    router.ready()
    replica.does.delay_s = 0.02
    stop = threading.Event()

    def work() -> int:
        done = 0
        while not stop.is_set():
            assert router.chat(headers=BATCH).status_code == 200
            done += 1
        return done

    with ThreadPoolExecutor(8) as pool:
        workers = [pool.submit(work) for _ in range(8)]
        try:
            router.until(lambda: router.queued("chat") >= 6, "batch work waits")
            for _ in range(25):
                assert router.chat(headers=ONLINE).status_code == 200
        finally:
            stop.set()
        done = sum(worker.result() for worker in workers)
    assert done > 25, "batch requests continued in between"
    waits = _waits(router, 25)
    assert statistics.median(waits["online"]) * 2 < statistics.median(waits["batch"]), waits


def _waits(router: Router, online: int) -> dict[str, list[int]]:
    """Return queue times in ms from HAProxy's log, when it has all requests of `online`."""

    def read() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"online": [], "batch": []}
        for kind, ms in _LINE.findall(router.controller.paths.access_log.read_text()):
            found[kind].append(int(ms))
        return found

    router.until(lambda: len(read()["online"]) == online, "every line is written")
    return read()
