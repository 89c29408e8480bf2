"""The pool of a request, the reason, and the errors that clients get."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from serving.router.keys import ApiKey, digest
from serving.router.policy import Arm, Canary, ModelPolicy, Placement, PoolPolicy, RouterPolicy
from serving.router.topology import from_document
from tests.fixtures.router.router import Router, document, running

POOLS = tuple(
    {"name": name, "model": f"models/{model}"}
    for name, model in (
        ("chat", "chat"),
        ("chat-large", "chat"),
        ("chat-new", "chat"),
        ("embed", "embedder"),
    )
)
KEYS = (
    ApiKey(sha256=digest("sk-gold"), name="gold", user_class="premium"),
    ApiKey(sha256=digest("sk-slow"), name="slow", requests_per_10s=5),
)
RULES = RouterPolicy(
    embeddings_pool="embed",
    models={
        "chat": ModelPolicy(
            canary=Canary(pool="chat-new", percent=100, salt="s"),
            by_class={"premium": "chat-large"},
            by_cost=("chat", "chat-large"),
        ),
        "embedder": ModelPolicy(by_class={"premium": "chat-large"}),
    },
)


def test_clients_request_the_served_name_of_a_pool_or_its_model() -> None:
    named = {"name": "chat", "model": "models/llama", "served_name": "assistant"}
    topology = from_document(document(named, {"name": "code", "model": "models/coder"}))
    assert topology.models == {"assistant": "chat", "coder": "code"}


def _four_pools(router: Router, rules: RouterPolicy) -> None:
    router.fleet.written = document(*POOLS)
    router.fleet.rules = rules
    router.fleet.clients = KEYS
    for pool in POOLS:
        router.add(f"i-{pool['name']}", pool["name"])
    router.ready()


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with running(tmp_path_factory.mktemp("decided")) as made:
        _four_pools(made, RULES)
        yield made


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """Run a router with a slow cheap pool and a fast one, both measured."""
    with running(tmp_path_factory.mktemp("measured")) as made:
        _four_pools(made, RULES)
        made.replicas["i-chat"].does.delay_s = 2.0
        for pool in ("chat", "chat-large"):
            made.until(lambda pool=pool: _p95_is_looked_up(made, pool), f"{pool}'s p95 is known")
        yield made


@pytest.mark.parametrize(
    ("headers", "pool", "reason"),
    [
        ({}, "chat", "default"),
        ({"authorization": "Bearer sk-gold", "x-user-id": ""}, "chat-new", "canary"),
        ({"x-user-id": "u1"}, "chat-new", "canary"),
        ({"x-user-class": "premium"}, "chat-large", "class"),
        ({"x-model-override": "embed", "x-user-id": "u1"}, "embed", "override"),
        ({"x-max-latency-ms": "100000"}, "chat", "latency"),
        ({"x-max-latency-ms": "100000", "x-user-class": "premium"}, "chat", "latency"),
        ({"x-model": "embedder"}, "embed", "default"),
        ({"x-model": "embedder", "authorization": "Bearer sk-gold"}, "chat-large", "class"),
        ({"x-model": "embedder", "authorization": "Bearer sk-other"}, "embed", "default"),
        ({"x-gpufleet-pool": "embed", "x-gpufleet-reason": "mine"}, "chat", "default"),
    ],
    ids=["default", "key-in-canary", "canary", "class", "override-first", "latency", "latency-before-class", "header",
         "class-of-key", "key-without-class",
         "forged"],
)  # fmt: skip
def test_the_first_matching_rule_wins_and_gives_its_reason(
    decided: Router, headers: dict[str, str], pool: str, reason: str
) -> None:
    if "latency" in reason:
        decided.until(lambda: _p95_is_looked_up(decided, "chat"), "HAProxy knows chat's p95")
    answer = decided.chat(headers=headers)
    assert (answer.headers["x-gpufleet-pool"], answer.headers["x-gpufleet-reason"]) == (pool, reason)


def _p95_is_looked_up(router: Router, pool: str) -> bool:
    """Send a request to the pool, then check whether HAProxy has the pool's p95."""
    router.chat(headers={"x-model-override": pool})
    lines = router.controller.haproxy.admin.ask("show map maps/p95-ms.map").splitlines()
    return any(line.split()[1] == pool for line in lines)


def test_embeddings_have_a_pool_of_their_own(decided: Router) -> None:
    answer = decided.client.post(f"{decided.url}/v1/embeddings", json={"model": "chat", "input": "x"})
    assert (answer.headers["x-gpufleet-pool"], answer.headers["x-gpufleet-reason"]) == ("embed", "embeddings")


@pytest.mark.parametrize(
    ("objective", "pool"), [("1", "chat-large"), ("1500", "chat-large"), ("600000", "chat")],
    ids=["no-replica-holds-it", "one-holds-it", "both-hold-it"],
)  # fmt: skip
def test_an_objective_selects_the_cheapest_pool_that_meets_it_or_the_fastest(
    measured: Router, objective: str, pool: str
) -> None:
    answer = measured.chat(headers={"x-max-latency-ms": objective})
    assert (answer.headers["x-gpufleet-pool"], answer.headers["x-gpufleet-reason"]) == (pool, "latency")


def test_an_override_is_for_trusted_networks(router: Router) -> None:
    _four_pools(router, RouterPolicy(trusted_networks=("10.0.0.0/8",)))
    forged = {"x-model-override": "embed", "x-forwarded-for": "10.1.2.3"}
    refused = router.chat(headers=forged)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "override_not_allowed"
    assert router.chat(headers={"x-user-class": "premium"}).headers["x-gpufleet-reason"] == "default"


def test_an_override_to_an_unknown_pool_lists_the_pools(decided: Router) -> None:
    answer = decided.chat(headers={"x-model-override": "nowhere"})
    assert answer.status_code == 400
    assert "chat-large" in answer.json()["error"]["message"]


def test_the_router_sets_the_client_address(decided: Router) -> None:
    decided.chat(headers={"x-forwarded-for": "6.6.6.6", "x-request-id": "abc-1"})
    seen = decided.replicas["i-chat"].does.seen[-1]["headers"]
    assert seen["x-forwarded-for"] == "127.0.0.1"
    assert seen["x-request-id"] == "abc-1"


def test_clients_cannot_reach_internal_engine_endpoints(decided: Router) -> None:
    for path in (
        *("/metrics", "/sleep", "/v1/../metrics", "/", "/invocations", "/tokenize", "/v1", "/v1/", "/v1/x"),
        *(
            "/v1/%2e%2e/metrics",
            "/v1/..%2fmetrics",
            "/v1/chat%2fcompletions",
            "/v1/chat/completions/",
            "//v1/completions",
        ),
        *(
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
            "/V1/completions",
            "/v1/completions;x",
            "/v1/./completions",
        ),
    ):
        assert _status(decided, "POST", path) == 404, path
    assert not [one["path"] for one in decided.replicas["i-chat"].does.seen if "completions" not in one["path"]]


@pytest.mark.parametrize("require_key", [False, True])
def test_endpoints_accept_only_post(router: Router, require_key: bool) -> None:
    _four_pools(router, RouterPolicy(require_key=require_key))
    if require_key:
        router.until(lambda: _status(router, "POST", "/v1/completions", "") == 401, "keys are asked for")
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert _status(router, method, "/v1/completions") == 404, method
    assert _status(router, "POST", "/v1/completions") == 200
    assert _status(router, "POST", "/v1/completions?stream=1") == 200


@pytest.mark.parametrize("require_key", [False, True])
def test_a_model_restricted_key_gets_no_other_model(router: Router, require_key: bool) -> None:
    rules = RouterPolicy(require_key=require_key, embeddings_pool="embed", trusted_networks=("127.0.0.0/8",))
    _four_pools(router, rules)
    router.fleet.clients = (*KEYS, ApiKey(sha256=digest("sk-bound"), name="bound", models=("chat",)))

    def asked(page: str = "chat/completions", key: str = "sk-bound", **more: Any) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {key}", **more.pop("headers", {})}
        answer = router.client.post(f"{router.url}/v1/{page}", json=more, headers=headers)
        pool = answer.headers.get("x-gpufleet-pool", "")
        return answer.status_code, pool or answer.json()["error"]["code"]

    other = "embedder"
    router.until(lambda: asked(model=other) == (403, "model_not_allowed"), "the key is bound")
    assert asked(model="chat") == (200, "chat")
    assert asked("completions", model=other) == (403, "model_not_allowed")
    assert asked(model="nowhere") == asked() == (403, "model_not_allowed")
    assert asked("embeddings", input="x") == (403, "model_not_allowed")
    assert asked("embeddings", model=other) == (403, "model_not_allowed")
    # a pool of another model is never reached, whatever else names it
    assert asked(model="chat", headers={"x-model": other}) == (403, "model_not_allowed")
    assert asked(model=other, headers={"x-model": "chat"}) == (200, "chat")
    assert asked("embeddings", input="x", headers={"x-model": "chat"}) == (200, "chat")
    assert asked(model="chat", headers={"x-model-override": "embed"}) == (403, "override_not_allowed")
    assert asked(key="sk-slow", model=other)[0] == 200


def test_the_log_has_addresses_of_refused_clients(router: Router) -> None:
    _four_pools(router, RouterPolicy(require_key=True))
    log = router.controller.paths.access_log
    router.until(lambda: _status(router, "POST", "/v1/completions", "sk-wrong") == 401, "keys are asked for")
    assert _status(router, "POST", "/v1/load_lora_adapter", "sk-wrong") == 404
    assert _status(router, "POST", "/v1/completions") == 200

    def lines(status: int) -> list[str]:
        return [line for line in log.read_text().splitlines() if f" status={status} " in line]

    router.until(lambda: bool(lines(401) and lines(404) and lines(200)), "their lines are there")
    assert {line.rpartition(" ")[2] for line in lines(401) + lines(404)} == {"client=127.0.0.1"}
    assert {line.rpartition(" ")[2] for line in lines(200)} == {"client=-"}
    assert "sk-wrong" not in log.read_text()


def test_an_endpoint_that_the_policy_adds_is_served(router: Router) -> None:
    _four_pools(router, RouterPolicy(extra_endpoints=("/v1/pooling",)))
    router.until(lambda: _status(router, "POST", "/v1/pooling") == 200, "the policy is in force")
    assert _status(router, "POST", "/v1/pooling/x") == 404


@pytest.mark.parametrize(
    "page", ["/metrics", "/v1/../x", "/v1/", "/v1/a b", "/v1/load_lora_adapter", "v1/x", "/v1/x\n"]
)
def test_a_policy_cannot_add_endpoints_that_change_an_engine(page: str) -> None:
    with pytest.raises(ValueError, match="extra_endpoints"):
        RouterPolicy(extra_endpoints=(page,))


def _status(router: Router, method: str, path: str, key: str = "sk-slow") -> int:
    """Return the status of a request with exactly this path: a client library would normalize it."""
    address, _, port = router.url.removeprefix("http://").rpartition(":")
    body = b'{"model": "chat"}'
    whose = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{whose}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((address, int(port)), timeout=30) as client:
        client.sendall(head.encode() + body)
        return int(client.makefile("rb").readline().split()[1])


def test_arms_get_their_shares_and_users_keep_their_arm(router: Router) -> None:
    arms = (Arm(pool="chat", percent=50), Arm(pool="chat-large", percent=30), Arm(pool="chat-new", percent=20))
    _four_pools(router, RouterPolicy(models={"chat": ModelPolicy(arms=arms)}))
    router.until(lambda: router.chat().headers["x-gpufleet-reason"] == "arm", "arms are in force")
    pools = {user: _pool(router, f"user-{user}") for user in range(200)}
    shares = [sum(pool == arm.pool for pool in pools.values()) / 2 for arm in arms]
    assert all(abs(share - arm.percent) < 12 for share, arm in zip(shares, arms, strict=True)), shares
    assert all(_pool(router, f"user-{user}") == pools[user] for user in range(40))


def _pool(router: Router, user: str) -> str:
    return router.chat(headers={"x-user-id": user}).headers["x-gpufleet-pool"]


def test_the_limit_of_a_key_does_not_affect_other_keys(router: Router) -> None:
    _four_pools(router, RouterPolicy())
    slow = [router.chat(headers={"authorization": "Bearer sk-slow"}) for _ in range(8)]
    assert [answer.status_code for answer in slow] == [200] * 5 + [429] * 3
    assert slow[-1].headers["retry-after"] == "10"
    assert slow[-1].json()["error"]["code"] == "rate_limit_exceeded"
    assert {router.chat(headers={"authorization": "Bearer sk-gold"}).status_code for _ in range(8)} == {200}
    table = router.controller.haproxy.admin.ask("show table keys_rate")
    assert digest("sk-slow") in table
    assert "sk-slow" not in table


def test_a_required_key_is_required(router: Router) -> None:
    _four_pools(router, RouterPolicy(require_key=True))
    assert router.chat().status_code == 401
    assert router.chat(headers={"authorization": "Bearer wrong"}).status_code == 401
    assert router.chat(headers={"authorization": "Bearer sk-gold"}).status_code == 200
    router.fleet.clients = ()
    router.until(
        lambda: router.chat(headers={"authorization": "Bearer sk-gold"}).status_code == 401, "a key is revoked"
    )
    log = router.controller.paths.access_log.read_text()
    assert "key=gold" in log
    assert "sk-gold" not in log


def test_a_full_queue_is_reported_and_premium_is_served_first(router: Router) -> None:
    router.fleet.written = document(POOLS[0])
    router.fleet.rules = RouterPolicy(pools={"chat": PoolPolicy(most_per_replica=1, queue=3)})
    replica = router.add("i-1")
    router.ready()
    replica.does.hold = True

    def ask(kind: str) -> int:
        return router.chat(headers={"x-user-class": kind, "x-request-id": kind}).status_code

    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(ask, "standard")
        router.until(lambda: replica.does.running == 1, "one runs")
        waiting = []
        for place, kind in enumerate(("batch", "standard", "premium"), start=1):
            waiting.append(pool.submit(ask, kind))
            router.until(lambda place=place: router.queued("chat") == place, f"{kind} waits")
        late = router.chat()
        assert late.status_code == 429
        assert late.headers["retry-after"] == "2"
        assert late.json()["error"]["code"] == "queue_full"
        replica.does.hold = False
        assert [call.result() for call in (first, *waiting)] == [200] * 4
    assert [seen["headers"]["x-request-id"] for seen in replica.does.seen[:4]] == [
        "standard", "premium", "standard", "batch",
    ]  # fmt: skip
    assert replica.does.max_running == 1


def test_reserved_capacity_is_used_first(router: Router) -> None:
    router.fleet.written = document(POOLS[0])
    rules = PoolPolicy(placement=Placement.RESERVED_FIRST, most_per_replica=2)
    router.fleet.rules = RouterPolicy(pools={"chat": rules})
    kinds = ("on-demand", "spot", "reserved")
    replicas = {kind: router.add(f"i-{kind}", capacity_type=kind) for kind in kinds}
    router.ready()
    assert {router.chat().headers["x-gpufleet-replica"] for _ in range(6)} == {"i-reserved"}
    for replica in replicas.values():
        replica.does.hold = True
        replica.does.requests = 0
    with ThreadPoolExecutor(5) as pool:
        calls = []
        for number in range(1, 6):
            calls.append(pool.submit(router.chat))
            router.until(lambda n=number: sum(r.does.running for r in replicas.values()) == n, f"{number} run")
        for replica in replicas.values():
            replica.does.hold = False
        assert {call.result().status_code for call in calls} == {200}
    assert {kind: replica.does.requests for kind, replica in replicas.items()} == {
        "reserved": 2, "spot": 2, "on-demand": 1,
    }  # fmt: skip


def test_an_empty_pool_holds_requests_until_its_first_replica(router: Router) -> None:
    router.fleet.written = document(POOLS[0])
    router.until(lambda: router.chat(model="nothing").status_code == 404, "the document is read")
    found: list[tuple[int, str]] = []

    def ask() -> None:
        answer = router.chat()
        found.append((answer.status_code, answer.headers.get("x-gpufleet-replica", "")))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    router.until(lambda: router.controller.activator.held() == {"chat": 4}, "four are held")
    page = router.client.get(router.url.replace(":8080", ":8404") + "/router/metrics").text
    assert 'gpufleet_held_requests{pool="chat"} 4' in page
    router.add("i-1")
    for thread in threads:
        thread.join(60)
    assert found == [(200, "i-1")] * 4
    assert router.controller.activator.held() == {"chat": 0}


def test_an_empty_pool_holds_requests_up_to_its_limits(router: Router) -> None:
    router.fleet.written = document(POOLS[0])
    router.fleet.rules = RouterPolicy(pools={"chat": PoolPolicy(hold=1, hold_seconds=6)})
    router.until(lambda: router.chat(model="nothing").status_code == 404, "the document is read")
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(router.chat)
        router.until(lambda: router.controller.activator.held() == {"chat": 1}, "one is held")
        over = router.chat()
        assert (over.status_code, over.headers["retry-after"]) == (503, "10")
        answer = held.result()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
    assert answer.json()["error"]["code"] == "no_replica_ready"


def test_a_disconnected_client_is_not_held(router: Router) -> None:
    router.fleet.written = document(POOLS[0])
    router.until(lambda: router.chat(model="nothing").status_code == 404, "the document is read")
    address, _, port = router.url.removeprefix("http://").rpartition(":")
    body = b'{"model": "chat"}'
    with socket.create_connection((address, int(port)), timeout=60) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        router.until(lambda: router.controller.activator.held() == {"chat": 1}, "it is held")
    router.until(lambda: router.controller.activator.held() == {"chat": 0}, "it is not held any more")
