"""Measures the steps from an empty disk to the first token, with real vLLM on the CPU, and the effect of its load
formats.

The boot of the machine depends on the cloud and is not included. `/status` of each instance contains the later steps
of its node agent. The model is small on purpose: compare shares and ratios, not seconds.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from localcloud.engine_environment import VLLM
from localcloud.vllm import ENVIRONMENT

from benchmarks import object_server
from benchmarks.table import Table
from gpufleet.clouds.aws.signature import Credentials
from gpufleet.clouds.aws.signed import S3Store, Session
from localcloud import tiny_model
from serving.cache import manifest as manifests
from serving.cache import publish
from serving.cache.disk import Cache
from serving.cache.store import FolderStore
from serving.cache.sync import Sync

ROOT: Final = Path(__file__).parents[1]
INSIDE: Final = Path(__file__).with_name("cold_start_inside.py")
ROUNDS: Final = int(os.environ.get("GPUFLEET_BENCH_ROUNDS", "3"))
LIMIT_S: Final = 900
SHAPE: Final = tiny_model.TinyModelShape(hidden=1024, layers=6, heads=16, kv_heads=4, head_dim=64, intermediate=3072)
"""73 million parameters in 147 MB."""
PLAIN: Final = "auto: safetensors, mapped"
FORMATS: Final[Mapping[str, Mapping[str, str]]] = {
    PLAIN: {"load_format": "auto"},
    "safetensors, eager": {"load_format": "safetensors", "safetensors_load_strategy": "eager"},
    "safetensors, prefetch": {"load_format": "safetensors", "safetensors_load_strategy": "prefetch"},
    "dummy (random weights: nothing is read)": {"load_format": "dummy"},
    "runai_streamer": {"load_format": "runai_streamer"},
    "fastsafetensors": {"load_format": "fastsafetensors"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Starts:
    """All starts with one format."""

    warm: Sequence[Mapping[str, float]]
    cold: Sequence[Mapping[str, float]]
    error: str | None = None


def run() -> Iterator[Table]:
    """Yield a table of the steps of a cold start, then a table of the formats."""
    vllm = VLLM.install(lambda line: print(line, file=sys.stderr, flush=True))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, size, sync_s = _synced(folder)
        imports, starts = _started(vllm, model, folder / "log")
        yield _startup_parts(size, sync_s, imports, starts[PLAIN])
        yield _formats(size, starts)


def _synced(folder: Path) -> tuple[Path, int, float]:
    """Return the model as an instance has it, its size in bytes, and the duration of its verified sync in seconds."""
    tiny_model.make(folder / "source", SHAPE)
    manifest = manifests.describe(folder / "source", name="bench", revision="bench")
    publish.add(FolderStore(folder / "bucket"), folder / "source", manifest)
    seconds: list[float] = []
    path = folder
    with object_server.started(folder / "bucket") as url:
        keys = Credentials(access_key="a", secret_key="b")  # noqa: S106 - nobody looks at them
        session = Session(region="us-east-1", credentials=lambda: keys, endpoint=url)
        for number in range(ROUNDS):
            cache = Cache(folder / f"cache{number}")
            sync = Sync(store=S3Store(session, object_server.BUCKET), cache=cache, model="models/bench")
            began = time.perf_counter()
            path = sync.bring(manifest.digest, datetime.now(UTC))
            seconds.append(time.perf_counter() - began)
    return path, manifest.size, statistics.median(seconds)


def _started(vllm: Path, model: Path, log: Path) -> tuple[float, dict[str, _Starts]]:
    """Return the duration of vLLM's imports in seconds, and all starts. Rounds alternate, so slow periods of the
    machine affect all formats.
    """
    order = [(label, cold) for _ in range(ROUNDS) for label in FORMATS for cold in (False, True)]
    jobs = [{"model": str(model), "cold": cold, "options": FORMATS[label]} for label, cold in order]
    with log.open("w") as output:
        done = subprocess.run(
            [str(vllm / "bin" / "python"), str(INSIDE)],
            input=json.dumps(jobs),
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        )
    if done.returncode != 0:
        raise RuntimeError(f"vLLM ended with {done.returncode}: {log.read_text()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    answers = list(zip(order, found["starts"], strict=True))
    return found["imports"], {label: _starts(label, answers) for label in FORMATS}


def _starts(label: str, answers: Sequence[tuple[tuple[str, bool], dict[str, Any]]]) -> _Starts:
    mine = [(cold, answer) for (of, cold), answer in answers if of == label]
    if error := next((answer["error"] for _, answer in mine if "error" in answer), None):
        return _Starts(warm=(), cold=(), error=str(error))
    return _Starts(warm=[answer for cold, answer in mine if not cold], cold=[answer for cold, answer in mine if cold])


def _median(starts: Sequence[Mapping[str, float]], part: str) -> float:
    return statistics.median(one[part] for one in starts)


def _startup_parts(size: int, sync_s: float, imports: float, plain: _Starts) -> Table:
    load, engine = _median(plain.warm, "load"), _median(plain.warm, "engine")
    parts = {
        "sync from a bucket on loopback, each chunk verified": sync_s,
        "vLLM's imports": imports,
        "model built and filled": load,
        "other parts of the engine's start": engine - load,
        "first token": _median(plain.warm, "token"),
    }
    whole = sum(parts.values())
    rows = [(name, f"{seconds:.2f}", f"{100 * seconds / whole:.0f} %") for name, seconds in parts.items()]
    return Table(
        title=f"Cold start of a model of {size / 1e6:.0f} MB, by part",
        columns=("part", "s", "share"),
        rows=(*rows, ("whole", f"{whole:.2f}", "")),
        notes=(
            f"Medians of {ROUNDS} (imports: once), eager, one process; weights in the page cache, as right after a "
            f"sync. The load average at the end was {os.getloadavg()[0]:.1f}.",
        ),
    )


def _formats(size: int, starts: Mapping[str, _Starts]) -> Table:
    there = {label: found for label, found in starts.items() if found.error is None}
    base = _median(there[PLAIN].warm, "load")
    rows = tuple(
        (
            label,
            f"{_median(found.warm, 'load'):.2f}",
            f"{_median(found.cold, 'load'):.2f}",
            f"{_median(found.warm, 'load') / base:.2f}",
            f"{_median(found.warm, 'engine'):.2f}",
        )
        for label, found in there.items()
    )
    return Table(
        title=f"vLLM's load formats on the CPU, {size / 1e6:.0f} MB",
        columns=("format", "filled, from the page cache, s", "from the disk, s", "÷ auto", "engine up, s"),
        rows=rows,
        notes=(
            f"Medians of {ROUNDS} alternating starts. instanttensor and ipc_cache need CUDA and were not tried.",
            *(f"{label} does not run here: {found.error}." for label, found in starts.items() if found.error),
        ),
    )
