"""Who plays in the demo: simulated engines everywhere, or real vLLM on this machine's CPU for the pool `chat`."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml
from localcloud.vllm.environment import PROJECT, VLLM_VERSION, VllmError, install

from gpufleet.toolchain.folders import Folders

NEEDED_GIB: Final = 6.0
"""Memory for three real engines at once (1 GiB each, more while they load), simulated ones and the control host."""


class CastError(Exception):
    """The engine that was asked for cannot play here; says why and what to do."""


class Engine(StrEnum):
    """What serves the pool `chat`."""

    SIMULATED = "simulated"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """What a story differs in."""

    engine: Engine
    served: Mapping[str, int]
    """Ready replicas that each pool starts with."""
    wait_s: float
    """Most that a wait of the story takes: many times what it takes, for a machine with other work to do."""
    clients: int
    """Each with one request at a time."""
    closing: str
    """What was real and what was not."""


SIMULATED: Final = Cast(
    engine=Engine.SIMULATED,
    served={"chat": 3, "batch": 2},
    wait_s=180.0,
    clients=6,
    closing="Pulumi, Prometheus, HAProxy and every command were real; the cloud, its GPUs, the engines and Slack "
    "were simulated.",
)
VLLM: Final = Cast(
    engine=Engine.VLLM,
    # one reserved and one spot replica: with the stand-in on demand, three real engines share two cores
    served={"chat": 2, "batch": 2},
    wait_s=600.0,
    clients=2,
    closing=f"Pulumi, Prometheus, HAProxy, every command and chat's engines (vLLM {VLLM_VERSION} on the CPU) were "
    "real; the cloud, its GPUs, batch's engines and Slack were simulated.",
)


def choose(name: str) -> Cast:
    """The cast of that name. Raises CastError."""
    casts = {one.engine.value: one for one in (SIMULATED, VLLM)}
    if name not in casts:
        known = " or ".join(casts)
        raise CastError(f"ENGINE: expected {known}, got {name!r}")
    return casts[name]


def prepare(note: Callable[[str], None], memory: Path = Path("/proc/meminfo")) -> None:
    """Have vLLM's environment, installed when it is missing. Raises CastError."""
    available = _available_gib(memory)
    if available is not None and available < NEEDED_GIB:
        raise CastError(
            f"{available:.1f} GiB of memory are free and real vLLM needs {NEEDED_GIB:.0f}: "
            "free memory, or use ENGINE=simulated"
        )
    try:
        install(note)
    except (VllmError, OSError) as error:
        raise CastError(f"vLLM cannot be installed: {error}; use ENGINE=simulated, which does not need it") from error


def _available_gib(memory: Path) -> float | None:
    try:
        lines = memory.read_text("utf-8").splitlines()
        return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def image() -> str:
    """The image that stands for real vLLM on an emulated machine; its digest is the one of what it was made from."""
    return f"gpu-fleet/vllm-cpu@sha256:{hashlib.sha256((PROJECT / 'uv.lock').read_bytes()).hexdigest()}"


def write_settings(folders: Folders, stack: str) -> tuple[str, ...]:
    """The stack's settings with real vLLM in `chat`, below `.local`. Returns the arguments of Pulumi for them."""
    shipped = folders.root / "stacks" / "config" / f"Pulumi.{stack}.yaml"
    changed = with_vllm(yaml.safe_load(shipped.read_text("utf-8")))
    file = folders.local / "demo" / shipped.name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(changed, sort_keys=False), "utf-8")
    return ("--config-file", str(file.relative_to(folders.root)))


def with_vllm(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a local stack, changed in place: the pool `chat` on real vLLM, with fewer replicas."""
    pool = next(one for one in settings["config"]["gpu-fleet:fleet"]["pools"] if one["name"] == "chat")
    pool["engine"]["image"] = image()
    pool["target"] = VLLM.served["chat"]
    return settings
