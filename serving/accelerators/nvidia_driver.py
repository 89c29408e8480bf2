"""Versions of NVIDIA's driver that engines need.

The kernel module writes its version to `/proc/driver/nvidia/version`. A program built with any CUDA release of one
major version runs with the minimum driver of that major version (NVIDIA's table of minor version compatibility).
"""

import re
from collections.abc import Mapping
from typing import Final

from serving.accelerators.launch import DriverVersion

PLACE: Final = "proc/driver/nvidia/version"
REQUIRE: Final = "NVIDIA_REQUIRE_CUDA"
"""Environment variable in which a container states its requirement to NVIDIA's runtime, such as `cuda>=13.0`."""
MIN_DRIVER: Final[Mapping[int, int]] = {11: 450, 12: 525, 13: 580}
"""CUDA major version -> minimum driver branch."""
_VERSION: Final = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_NEEDS: Final = re.compile(r"cuda>=(\d+)(?:\.\d+)?")
_NO_CHECK: Final = ("NVIDIA_DISABLE_REQUIRE", "VLLM_ENABLE_CUDA_COMPATIBILITY")
"""Environment variables with which an engine uses its own user-mode libraries, or disables the check."""


def why_too_old(version: str, env: Mapping[str, str], cuda: int) -> str | None:
    """Return why an engine cannot run with this driver (name, value, fix); None if it can or has no known need."""
    if _unchecked(env):
        return None
    stated = env.get(REQUIRE)
    stated_cuda = _NEEDS.fullmatch(stated.strip()) if stated is not None else None
    if stated is not None and stated_cuda is None:
        # NVIDIA's runtime evaluates alternatives and brands.
        return None
    needed = int(stated_cuda[1]) if stated_cuda else cuda
    least = MIN_DRIVER.get(needed)
    if least is None or _branch(version) >= least:
        return None
    return (
        f"GPU driver: is {version}, but an engine built with CUDA {needed} needs {least} or newer: use a machine "
        "image with that driver, or an engine image built with an older CUDA, stated in its env "
        f"({REQUIRE}: cuda>=…)"
    )


def states_cuda(env: Mapping[str, str]) -> bool:
    """Return whether an engine's environment states its driver requirement or disables the check."""
    return REQUIRE in env or _unchecked(env)


def driver_hint(version: str | None) -> str:
    """Return a hint about the driver for an engine that did not start; empty if the driver is new enough for all."""
    newest = max(MIN_DRIVER)
    if version is None or _branch(version) >= MIN_DRIVER[newest]:
        return ""
    return f" (the GPU driver is {version}: an engine built with CUDA {newest} needs {MIN_DRIVER[newest]})"


def _unchecked(env: Mapping[str, str]) -> bool:
    return any(env.get(name, "").strip().lower() in ("1", "true") for name in _NO_CHECK)


def _branch(version: str) -> int:
    return int(version.partition(".")[0])


DRIVER: Final = DriverVersion(place=PLACE, pattern=_VERSION, why_too_old=why_too_old, hint=driver_hint)
