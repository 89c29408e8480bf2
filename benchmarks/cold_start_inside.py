"""Runs in vLLM's own Python: reads jobs as JSON from standard input, and writes seconds as JSON.

The import runs once and is reported separately. Each start is its own process, forked after the import.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.vllm.inside import forked


def start(job: dict[str, Any]) -> dict[str, Any]:
    """Start one engine and generate the first token. Return durations in seconds."""
    from vllm import LLM, SamplingParams
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    if job["cold"]:
        forget(Path(job["model"]))
    loaded = time_of(BaseModelLoader)
    began = time.perf_counter()
    engine = LLM(
        model=job["model"],
        max_model_len=512,
        max_num_seqs=4,
        kv_cache_memory_bytes=16 << 20,
        block_size=32,
        enforce_eager=True,
        distributed_executor_backend="uni",
        **job["options"],
    )
    ready = time.perf_counter()
    engine.generate(["hello"], SamplingParams(max_tokens=1, ignore_eos=True), use_tqdm=False)
    return {"engine": ready - began, "load": sum(loaded), "token": time.perf_counter() - ready}


def time_of(loader: Any) -> list[float]:
    """Return a list to which each later model construction and load appends its seconds."""
    found: list[float] = []
    load = loader.load_model

    def timed(self: Any, *args: Any, **more: Any) -> Any:
        began = time.perf_counter()
        try:
            return load(self, *args, **more)
        finally:
            found.append(time.perf_counter() - began)

    loader.load_model = timed
    return found


def forget(model: Path) -> None:
    """Drop the weights from the page cache, so that they are read from disk."""
    for path in model.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def each(jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the results in order. Options that fail are tried only once."""
    broken: dict[str, dict[str, Any]] = {}
    for job in jobs:
        name = json.dumps(job["options"], sort_keys=True)
        answer = broken.get(name) or forked(start, job)
        if "error" in answer:
            broken[name] = answer
        yield answer


def main() -> None:
    """Run the jobs."""
    jobs = json.load(sys.stdin)
    # libraries print to standard output, which is reserved for the results
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began = time.perf_counter()
    import vllm.entrypoints.llm  # noqa: F401 - what every start pays

    imports = time.perf_counter() - began
    with answer:
        json.dump({"imports": imports, "starts": list(each(jobs))}, answer)


if __name__ == "__main__":
    main()
