"""A canary and experiment arms: selected users, while shares change, replicas end and a second router answers."""

import threading
from collections import defaultdict
from pathlib import Path

import httpx

from serving.router.policy import Arm, Canary, ModelPolicy, PoolPolicy, RouterPolicy
from tests.fixtures.router.router import FakeFleet, Router, document, running

CHAT = {"name": "chat", "model": "models/chat"}
CANARY = {"name": "chat-canary", "model": "models/chat"}
ARMS = ({"name": "arm", "model": "models/arm"}, {"name": "leg", "model": "models/arm"})
POOLS = ("chat", "chat-canary", "arm", "leg")
SHARES = "show map maps/canary-share.map"


def _rules(percent: float, pool: PoolPolicy | None = None) -> RouterPolicy:
    canary = Canary(pool="chat-canary", percent=percent, salt="s")
    return RouterPolicy(models={"chat": ModelPolicy(canary=canary)}, pools={"chat-canary": pool or PoolPolicy()})


class Crowd:
    """Users who send requests without pause; it records the pools of each user, in order."""

    def __init__(self, router: Router, users: int, clients: int) -> None:
        self.pools = defaultdict[str, list[str]](list)
        self.failed: list[str] = []
        self._url = f"{router.url}/v1/chat/completions"
        self._end = threading.Event()
        shares = [[f"user-{n}" for n in range(first, users, clients)] for first in range(clients)]
        self._threads = [threading.Thread(target=self._ask, args=(share,)) for share in shares]
        self._users = users

    def __enter__(self) -> "Crowd":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(60)

    def rounds(self) -> int:
        """Return the minimum number of responses that every user has."""
        return min(map(len, self.pools.copy().values())) if len(self.pools) == self._users else 0

    def inside(self) -> set[str]:
        """Return the users whose last response came from the canary."""
        return {user for user, pools in self.pools.copy().items() if pools[-1] == "chat-canary"}

    def _ask(self, users: list[str]) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._end.is_set():
                for user in users:
                    try:
                        answer = client.post(self._url, json={"model": "chat"}, headers={"x-user-id": user})
                    except httpx.HTTPError as error:
                        self.failed.append(repr(error))
                        continue
                    self.pools[user].append(answer.headers["x-gpufleet-pool"])
                    if answer.status_code != 200:
                        self.failed.append(str(answer.status_code))


def test_a_growing_canary_keeps_its_users_under_load(router: Router) -> None:
    router.fleet.written = document(CHAT, CANARY)
    router.fleet.rules = _rules(0)
    for name, pool in (("i-1", "chat"), ("i-2", "chat"), ("i-3", "chat-canary"), ("i-4", "chat-canary")):
        router.add(name, pool)
    router.ready()
    reloads = router.controller.reloads
    inside: list[set[str]] = []
    with Crowd(router, users=40, clients=4) as crowd:
        router.until(lambda: crowd.rounds() > 0, "everybody was answered")
        for percent in (10.0, 40.0, 80.0):
            router.fleet.rules = _rules(percent)
            share = str(round(percent * 100))
            router.until(lambda s=share: s in router.controller.haproxy.admin.ask(SHARES).split(), f"{percent} %")
            before = crowd.rounds()
            router.until(lambda n=before: crowd.rounds() > n + 2, "everybody was answered again")
            inside.append(crowd.inside())
    assert not crowd.failed
    assert router.controller.reloads == reloads
    assert inside[0] < inside[1] < inside[2], "who is in stays in"
    assert 20 <= len(inside[2]) < 40
    for user, pools in crowd.pools.items():
        moves = [pool == "chat-canary" for pool in pools]
        assert moves == sorted(moves), f"{user} went back and forth"


def test_a_retry_never_changes_the_version(router: Router) -> None:
    router.fleet.written = document(CHAT, CANARY)
    router.fleet.rules = _rules(100, PoolPolicy(hold_seconds=0))
    stable = router.add("i-1")
    lost, left = router.add("i-2", "chat-canary"), router.add("i-3", "chat-canary")
    router.ready()
    lost.close()
    answers = [router.chat(headers={"x-user-id": f"u{n}"}) for n in range(20)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-gpufleet-replica"] for answer in answers} == {"i-3"}
    left.close()
    last = router.chat(headers={"x-user-id": "u1"})
    assert last.status_code in (502, 503)
    assert stable.does.requests == 0


def test_two_routers_select_the_same_pool_for_every_user(tmp_path: Path) -> None:
    fleet = FakeFleet()
    fleet.written = document(CHAT, CANARY, *ARMS)
    arms = (Arm(pool="arm", percent=50), Arm(pool="leg", percent=50))
    fleet.rules = RouterPolicy(models={**_rules(50).models, "arm": ModelPolicy(arms=arms)})
    with running(tmp_path / "a", fleet) as first, running(tmp_path / "b", fleet) as second:
        for pool in POOLS:
            first.add(f"i-{pool}", pool)
        first.ready()
        for pool in POOLS:
            second.until(
                lambda name=f"i-{pool}": (second.server(name) or "").startswith("UP"), f"{pool} at the other"
            )
        found = {
            (user, model): [_pool(router, user, model) for router in (first, second)]
            for user in range(30)
            for model in ("chat", "arm")
        }
    assert all(one == other for one, other in found.values()), found
    assert {one for one, _ in found.values()} == set(POOLS)


def _pool(router: Router, user: int, model: str) -> str:
    return router.chat(model, headers={"x-user-id": f"user-{user}"}).headers["x-gpufleet-pool"]
