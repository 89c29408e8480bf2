"""Counts how many prompt blocks find a warm cache: prefix affinity against other strategies and another router, on a
public trace.

`GPUFLEET_BENCH_TRACE` names the trace: conversation_trace.jsonl of Mooncake (FAST '25 artifact, Apache-2.0), lines of
`{"timestamp", "input_length", "output_length", "hash_ids"}`. The benchmark simulates a block cache (LRU) for each
replica.
"""

import json
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.rivals import vllm_router
from benchmarks.table import Table
from serving.router.policy import Balance, PoolPolicy, RouterPolicy
from tests.fixtures.networks import free_network
from tests.fixtures.router.replica import Replica
from tests.fixtures.router.router import Router, document, running

REQUESTS = int(os.environ.get("GPUFLEET_BENCH_PREFIX_REQUESTS", "2000"))
REPLICAS = 8
BLOCKS = 6_000
"""Cache size of one replica: blocks of 512 tokens, 3 million tokens."""


@dataclass
class Cache:
    """An LRU block cache. A block is a hit only if all blocks before it are hits."""

    capacity: int
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict[int, None])

    def serve(self, prompt: list[int]) -> int:
        """Return the number of blocks that were in the cache."""
        hits = 0
        for block in prompt:
            if block not in self.blocks:
                break
            hits += 1
        for block in prompt:
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > self.capacity:
            self.blocks.popitem(last=False)
        return hits


def run() -> Iterator[Table]:
    """Run the trace once per strategy."""
    trace = os.environ.get("GPUFLEET_BENCH_TRACE", "")
    if not Path(trace).is_file():
        rows = (("no trace: set GPUFLEET_BENCH_TRACE",),)
        yield Table(title="Router: prefix hits", columns=("missing",), rows=rows)
        return
    with Path(trace).open() as lines:
        prompts = [json.loads(line)["hash_ids"] for _, line in zip(range(REQUESTS), lines, strict=False)]
    total = sum(map(len, prompts))
    one = Cache(BLOCKS * REPLICAS)
    best = sum(one.serve(prompt) for prompt in prompts)
    found = {
        "prefix affinity (ours)": _hits(prompts, Balance.PREFIX),
        "fewest requests": _hits(prompts, Balance.LEAST),
    }
    even = [Cache(BLOCKS) for _ in range(REPLICAS)]
    found["round robin"] = sum(even[n % REPLICAS].serve(prompt) for n, prompt in enumerate(prompts))
    theirs = _rival_hits(prompts)
    found |= {"vllm-router, cache_aware (its default)": theirs} if isinstance(theirs, int) else {}
    found["one cache for all (the most there is)"] = best
    rows = tuple((name, f"{hits / total:.1%}", f"{hits / best:.2f}") for name, hits in found.items())
    yield Table(
        title=f"Router: prefix hits of {len(prompts):,} conversations on {REPLICAS} replicas",
        columns=("choice", "blocks found", "of the most"),
        rows=rows,
        notes=(
            "Requests one after the other; blocks of 512 tokens, 6,000 in each replica's cache.",
            *([theirs] if isinstance(theirs, str) else []),
        ),
    )


def _hits(prompts: list[list[int]], balance: Balance) -> int:
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as router:
        router.fleet.written = document({"name": "chat", "model": "models/chat"})
        router.fleet.rules = RouterPolicy(pools={"chat": PoolPolicy(balance=balance)})
        for n in range(REPLICAS):
            router.add(f"i-{n}")
        router.ready()
        return _served(prompts, lambda messages: _ours(router, messages))


def _ours(router: Router, messages: list[dict[str, Any]]) -> str:
    return router.chat(messages=messages).headers["x-gpufleet-replica"]


def _rival_hits(prompts: list[list[int]]) -> int | str:
    """Return the number of hits, or why there is no result."""
    network = free_network()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = [stack.enter_context(Replica(f"{network}.1.{n + 1}")) for n in range(REPLICAS)]
        urls = [f"http://{engine.address}:8000" for engine in engines]
        rival = stack.enter_context(vllm_router(folder, urls, "cache_aware"))
        if isinstance(rival, str):
            return rival
        client = stack.enter_context(httpx.Client(timeout=60))
        page = f"{rival.url}/v1/chat/completions"

        def ask(messages: list[dict[str, Any]]) -> str:
            answer = client.post(page, json={"model": "chat", "messages": messages})
            # the mock replica responds with its address
            return str(answer.json()["choices"][0]["message"]["content"])

        return _served(prompts, ask)


def _served(prompts: list[list[int]], ask: Callable[[list[dict[str, Any]]], str]) -> int:
    """Return the number of hits in the caches of the replicas that `ask` returns."""
    caches: dict[str, Cache] = {}
    return sum(caches.setdefault(ask(_messages(prompt)), Cache(BLOCKS)).serve(prompt) for prompt in prompts)


def _messages(prompt: list[int]) -> list[dict[str, Any]]:
    system, *rest = [f"block {block} of the prompt, with its own text. " * 2 for block in prompt]
    return [{"role": "system", "content": system}, {"role": "user", "content": "".join(rest)}]
