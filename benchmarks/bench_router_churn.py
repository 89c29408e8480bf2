"""Adds and removes replicas under load: how fast a change is applied, and how many requests fail (none may)."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.table import Table
from tests.fixtures.router.router import Router, document, instance, running

CHAT = {"name": "chat", "model": "models/chat"}
SHARE = float(os.environ.get("GPUFLEET_BENCH_CHURN", "1"))
"""Fraction of the full benchmark to run."""
CHANGES, RELOADS, DRAINS = int(1000 * SHARE), int(100 * SHARE), int(50 * SHARE)
REPLICAS = 300
STREAMED = 40


@dataclass
class Load:
    """Clients that send plain requests and streams continuously."""

    url: str
    answered: int = 0
    failed: list[str] = field(default_factory=list[str])
    streams: int = 0
    cut: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def plain(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post(f"{self.url}/v1/chat/completions", json={"model": "chat", "messages": []})
                    self.answered += 1
                    if answer.status_code != 200:
                        self.failed.append(str(answer.status_code))
                except httpx.HTTPError as error:
                    self.failed.append(repr(error))

    def stream(self) -> None:
        body = {"model": "chat", "messages": [], "stream": True, "n": STREAMED, "gap_s": 0.05}
        with httpx.Client(timeout=60) as client:
            while not self._stop.is_set():
                try:
                    with client.stream("POST", f"{self.url}/v1/chat/completions", json=body) as answer:
                        chunks = sum(line.startswith("data: {") for line in answer.iter_lines())
                    self.streams += 1
                    self.cut += chunks != STREAMED
                except httpx.HTTPError:
                    self.cut += 1

    def during(self, work: Callable[[], None]) -> None:
        """Run `work` while two clients send requests and three use streams."""
        threads = [threading.Thread(target=self.plain) for _ in range(2)]
        threads += [threading.Thread(target=self.stream) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            work()
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(60)


def run() -> Iterator[Table]:
    """Yield the change of a large pool, then a rapid series of changes."""
    with tempfile.TemporaryDirectory() as folder:
        yield _large_pool(Path(folder))
        yield _storm(Path(folder))


def _large_pool(folder: Path) -> Table:
    with running(folder / "large") as router:
        router.fleet.written = document(CHAT)
        network = router.url.removeprefix("http://").rpartition(".1:")[0]
        machines = {
            f"i-{n:04}": instance(f"i-{n:04}", f"{network}.{n % 250 + 2}", "chat") for n in range(REPLICAS + 1)
        }
        last = f"i-{REPLICAS:04}"
        first = {name: one for name, one in machines.items() if name != last}
        everything = _timed(router, lambda: router.fleet.machines.update(first), lambda n: len(n) == REPLICAS)
        reloads = router.controller.reloads
        one = _timed(router, lambda: router.fleet.machines.update(machines), lambda names: last in names)
        removed = _timed(router, lambda: router.fleet.machines.pop(last), lambda names: last not in names)
        router.add("serving")
        router.ready("serving")
        served = _timed(router, lambda: router.fleet.machines.pop("serving"), lambda names: "serving" not in names)
        reloaded = router.controller.reloads - reloads
    rows = (
        (f"{REPLICAS} replicas at once", f"{everything:.2f}"),
        ("one more", f"{one:.2f}"),
        ("one removed that received no requests", f"{removed:.2f}"),
        (
            "one removed while it served (0.5 s of it is a wait, because inventories can omit instances briefly)",
            f"{served:.2f}",
        ),
    )
    return Table(
        title=f"Router: a change in a pool of {REPLICAS} replicas",
        columns=("change", "seconds until HAProxy has it"),
        rows=rows,
        notes=(f"{reloaded} reloads were needed.",),
    )


def _timed(router: Router, change: Callable[[], object], done: Callable[[set[str]], bool]) -> float:
    began = time.perf_counter()
    change()
    router.until(lambda: done({server.name for server in router.controller.haproxy.admin.servers()}), "the change")
    return time.perf_counter() - began


def _storm(folder: Path) -> Table:
    with running(folder / "storm") as router:
        router.fleet.written = document(CHAT)
        for n in range(4):
            router.add(f"i-{n}")
        router.ready()
        load = Load(router.url)
        began = time.perf_counter()
        load.during(lambda: _weather(router))
        took = time.perf_counter() - began
    row = (
        str(CHANGES), str(RELOADS), str(DRAINS), f"{load.answered:,}", str(len(load.failed)), str(load.streams),
        str(load.cut),
    )  # fmt: skip
    return Table(
        title="Router: membership changes, reloads and drains under load",
        columns=("changes", "reloads", "drains", "requests", "failed", "streams", "cut"),
        rows=(row,),
        notes=(f"Within {took:.0f} s; {', '.join(sorted(set(load.failed))) or 'no failure'}.",),
    )


def _weather(router: Router) -> None:
    network = router.url.removeprefix("http://").rpartition(".1:")[0]
    # replicas that never become ready; only their addition and removal matter
    names = [f"i-x{n}" for n in range(100)]
    changes = 0
    while changes < CHANGES:
        for name in names:
            router.fleet.machines[name] = instance(name, f"{network}.200", "chat")
        router.until(lambda: all(router.server(name) for name in names), "they came")
        for name in names:
            del router.fleet.machines[name]
        router.until(lambda: not any(router.server(name) for name in names), "they went")
        changes += 2 * len(names)
    for n in range(RELOADS):
        before = router.controller.reloads
        more = ({"name": "other", "model": "models/other"},) if n % 2 == 0 else ()
        router.fleet.written = document(CHAT, *more)
        router.until(lambda before=before: router.controller.reloads > before, "a reload")
    for n in range(DRAINS):
        replica = router.replicas[f"i-{n % 4}"]
        replica.does.agent = "drain"
        router.until(lambda n=n: (router.server(f"i-{n % 4}") or "").startswith("DRAIN"), "it drains")
        replica.does.agent = "up ready"
        router.ready(f"i-{n % 4}")
