"""How many prompt blocks meet a warm cache: prefix affinity beside the fewest requests, on a public trace.

`GPUFLEET_BENCH_TRACE` names the trace: conversation_trace.jsonl of Mooncake (FAST '25 artifact, Apache-2.0), lines of
`{"timestamp", "input_length", "output_length", "hash_ids"}`. Each replica has a block cache (LRU) that is
counted here.
"""

import json
import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.table import Table
from serving.router.policy import Balance, PoolPolicy, RouterPolicy
from tests.router.conftest import Router, document, running

REQUESTS = int(os.environ.get("GPUFLEET_BENCH_PREFIX_REQUESTS", "2000"))
REPLICAS = 8
BLOCKS = 6_000
"""Of one replica's cache: blocks of 512 tokens, 3 million tokens."""


@dataclass
class Cache:
    """Least recently used blocks go first; a block counts as hit only when all before it did."""

    room: int
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict[int, None])

    def serve(self, prompt: list[int]) -> int:
        """Blocks that were there."""
        hits = 0
        for block in prompt:
            if block not in self.blocks:
                break
            hits += 1
        for block in prompt:
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > self.room:
            self.blocks.popitem(last=False)
        return hits


def run() -> Iterator[Table]:
    """The trace, once for each way to choose a replica."""
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
    found["one cache for all (the most there is)"] = best
    rows = tuple((name, f"{hits / total:.1%}", f"{hits / best:.2f}") for name, hits in found.items())
    yield Table(
        title=f"Router: prefix hits of {len(prompts):,} conversations on {REPLICAS} replicas",
        columns=("choice", "blocks found", "of the most"),
        rows=rows,
        notes=("Requests one after the other; blocks of 512 tokens, 6,000 in each replica's cache.",),
    )


def _hits(prompts: list[list[int]], balance: Balance) -> int:
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as router:
        router.fleet.written = document({"name": "chat", "model": "models/chat"})
        router.fleet.rules = RouterPolicy(pools={"chat": PoolPolicy(balance=balance)})
        caches = {f"i-{n}": Cache(BLOCKS) for n in range(REPLICAS)}
        for name in caches:
            router.add(name)
        router.ready()
        return sum(caches[_ask(router, prompt)].serve(prompt) for prompt in prompts)


def _ask(router: Router, prompt: list[int]) -> str:
    system, *rest = [f"block {block} of the prompt, with words of its own. " * 2 for block in prompt]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "".join(rest)}]
    return router.chat(messages=messages).headers["x-gpufleet-replica"]
