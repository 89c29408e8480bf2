"""The engine of the demo's pool `chat`: a simulated one, or real vLLM on the CPU of this machine. The pool `batch`
always runs simulated vLLM.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml
from localcloud.engine_environment import VLLM as VLLM_ENVIRONMENT
from localcloud.engine_environment import EngineEnvironmentError

from gpufleet.domain.durations import parse as parse_duration
from gpufleet.domain.durations import render as render_duration
from gpufleet.toolchain.folders import Folders
from serving.engines import CONTRACTS

_GATE_IMAGE: Final = f"gpu-fleet/haproxy@sha256:{'0' * 64}"
"""On an emulated machine: the HAProxy of this computer."""
NEEDED_GIB: Final = 6.0
"""Memory for three real engines at once (1 GiB each, more while they load), simulated ones and the control host."""


class VariantError(Exception):
    """The requested engine is unknown or cannot run here. The message states what to do."""


class Engine(StrEnum):
    """The choices of `make demo ENGINE=…`: what serves the pool `chat`."""

    SIMULATED = "simulated"
    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    TRITON = "triton"
    LMDEPLOY = "lmdeploy"
    DYNAMO = "dynamo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What differs between the variants of the demo."""

    engine: Engine
    note: str = ""
    """How the pools differ from the stack's settings; empty: they do not."""
    served: Mapping[str, int]
    """Ready replicas that each pool starts with."""
    wait_s: float
    """Limit of one wait of the demo, in seconds: many times the usual time, since the machine may be busy."""
    clients: int
    """Each with one request at a time."""
    closing: str
    """What was real and what was not."""


_SIMULATED: Final = (
    "Pulumi, Prometheus, HAProxy and every command were real; the cloud, its GPUs, the engines and Slack were "
    "simulated."
)
SIMULATED: Final = Variant(
    engine=Engine.SIMULATED,
    served={"chat": 3, "batch": 2},
    wait_s=180.0,
    clients=6,
    closing=_SIMULATED,
)
VLLM: Final = Variant(
    engine=Engine.VLLM,
    note="two replicas of real vLLM on the CPU serve chat; batch runs simulated vLLM",
    # one reserved and one spot replica: with the stand-in on demand, three real engines share two cores
    served={"chat": 2, "batch": 2},
    wait_s=600.0,
    clients=2,
    closing=f"Pulumi, Prometheus, HAProxy, every command and chat's engines (vLLM {VLLM_ENVIRONMENT.version} on the "
    "CPU) were real; the cloud, its GPUs, batch's engines and Slack were simulated.",
)
_CONTEXT_FLAGS: Final[Mapping[Engine, str]] = {
    Engine.SGLANG: "--context-length",
    Engine.TRTLLM: "--max_seq_len",
    Engine.TRITON: "--max-model-len",
    Engine.LMDEPLOY: "--session-len",
    Engine.DYNAMO: "--max-model-len",
}
"""How simulated engines take the model's context. Those of vLLM are in the stack's settings."""
_RELEASES: Final = {Engine.TRITON: "2.71.0", Engine.LMDEPLOY: "0.16.0", Engine.DYNAMO: "1.6.1"}
"""Releases in the settings, of engines that do not report theirs."""
VARIANTS: Final[Mapping[Engine, Variant]] = {
    Engine.SIMULATED: SIMULATED,
    Engine.VLLM: VLLM,
    **{
        engine: replace(
            SIMULATED,
            engine=engine,
            note=f"simulated {CONTRACTS[engine].title} serves chat; batch runs simulated vLLM",
        )
        for engine in _CONTEXT_FLAGS
    },
}


def choose(name: str) -> Variant:
    """Return the variant with the engine of that name. Raises VariantError."""
    try:
        return VARIANTS[Engine(name)]
    except ValueError as error:
        raise VariantError(f"ENGINE: expected one of {', '.join(Engine)}, got {name!r}") from error


def prepare(note: Callable[[str], None], memory: Path = Path("/proc/meminfo")) -> None:
    """Install the environment of vLLM if it is missing. Raises VariantError."""
    available = _available_gib(memory)
    if available is not None and available < NEEDED_GIB:
        raise VariantError(
            f"{available:.1f} GiB of memory are free and real vLLM needs {NEEDED_GIB:.0f}: "
            "free memory, or use ENGINE=simulated"
        )
    try:
        VLLM_ENVIRONMENT.install(note)
    except (EngineEnvironmentError, OSError) as error:
        raise VariantError(
            f"vLLM cannot be installed: {error}; use ENGINE=simulated, which does not need it"
        ) from error


def _available_gib(memory: Path) -> float | None:
    try:
        lines = memory.read_text("utf-8").splitlines()
        return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def image() -> str:
    """The image that stands for real vLLM on an emulated machine. Its digest is the hash of the lock file of vLLM's
    environment.
    """
    lock = (VLLM_ENVIRONMENT.project / "uv.lock").read_bytes()
    return f"gpu-fleet/vllm-cpu@sha256:{hashlib.sha256(lock).hexdigest()}"


def write_settings(folders: Folders, stack: str, variant: Variant) -> tuple[str, ...]:
    """Write the stack's settings with the variant's engine in `chat` below `.local`. Returns Pulumi's arguments for
    them: none if they do not differ from the stack's own.
    """
    if not variant.note:
        return ()
    shipped = folders.root / "stacks" / "config" / f"Pulumi.{stack}.yaml"
    changed = with_engine(yaml.safe_load(shipped.read_text("utf-8")), variant)
    file = folders.local / "demo" / shipped.name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(changed, sort_keys=False), "utf-8")
    return ("--config-file", str(file.relative_to(folders.root)))


def with_engine(settings: dict[str, Any], variant: Variant) -> dict[str, Any]:
    """Change the settings of a local stack in place: the variant's engine and number of replicas in `chat`."""
    fleet = settings["config"]["gpu-fleet:fleet"]
    pool = next(one for one in fleet["pools"] if one["name"] == "chat")
    pool["target"] = variant.served["chat"]
    if variant.engine is Engine.VLLM:
        pool["engine"]["image"] = image()
    elif variant.engine in _CONTEXT_FLAGS:
        _set_engine(pool, variant.engine)
        fleet["machines"]["gate_image"] = _GATE_IMAGE
    return settings


def _set_engine(pool: dict[str, Any], engine: Engine) -> None:
    contract = CONTRACTS[engine]
    pool["engine"] |= {"kind": engine.value, "args": [_CONTEXT_FLAGS[engine], "2048"]}
    if engine in _RELEASES:
        pool["engine"]["version"] = _RELEASES[engine]
    # both pools' watchdogs are one YAML object
    idle = dict(pool["watchdogs"]["idle"])
    idle["window"] = render_duration(max(parse_duration(idle["window"]), contract.evidence.window))
    pool["watchdogs"] = pool["watchdogs"] | {"idle": idle}
