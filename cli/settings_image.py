"""Checks from the machine image's name whether it has the agent's Python and the engines' GPU driver."""

import re
from collections.abc import Iterator
from typing import Final

from gpufleet.domain.catalogue import AcceleratorKind
from gpufleet.settings import KEY
from gpufleet.settings.environment import PoolSettings, Settings
from gpufleet.settings.problems import Problem
from serving.accelerators import nvidia_driver as driver
from serving.engine_container import find_launch
from serving.user_data import MIN_PYTHON
from stacks import pools

_DRIVER: Final = re.compile(r"nvidia-(\d{3})(?!\d)")
"""The form of names of Google's Deep Learning VM images: `common-cu129-ubuntu-2404-nvidia-580-v20260819`."""
NEWEST: Final = max(driver.MIN_DRIVER.values())
_SYSTEM: Final = re.compile(r"(?<![a-z])(debian|ubuntu)[a-z-]*-(\d{2})\.?(?:04)?(?!\d)")
_OLD: Final = {("debian", "11"): "3.9", ("ubuntu", "20"): "3.8", ("ubuntu", "22"): "3.10"}
"""Systems whose `python3` is older than the node agent needs."""


def problems(settings: Settings) -> Iterator[Problem]:
    """A problem if the node agent cannot run on that system, and one for each pool whose engine may not run with that
    driver.

    An engine may not run if it needs a newer driver, or might need one and does not state its requirement.
    """
    image = settings.machines.image
    system = _SYSTEM.search(image)
    if system is not None and (python := _OLD.get((system[1], system[2]))) is not None:
        least = ".".join(map(str, MIN_PYTHON))
        yield Problem(
            path=f"{KEY}.machines.image",
            wrong=f"has Python {python} as python3, but the node agent needs {least}: its instances would power off",
            value=image,
            remedy="use an image with Ubuntu 24.04, Debian 12 or newer",
        )
    yield from _drivers(settings)


def _drivers(settings: Settings) -> Iterator[Problem]:
    named = _DRIVER.search(settings.machines.image)
    if named is None:
        return
    for index, pool in enumerate(settings.pools):
        if pools.accelerator_of(settings, pool) is not AcceleratorKind.NVIDIA:
            continue
        if (wrong := _wrong(named[1], pool)) is not None:
            yield Problem(
                path=f"{KEY}.pools.{index}.engine",
                wrong=wrong,
                value=pool.engine.image,
                remedy=f"use a machine image with driver {NEWEST} or newer, or an engine image built with an older"
                f" CUDA, and name the CUDA version in engine.env: {driver.REQUIRE}: cuda>=12.9",
            )


def _wrong(branch: str, pool: PoolSettings) -> str | None:
    env, launch = pool.engine.env, find_launch(pool.engine.kind)
    if launch is None:
        return None  # another check reports it
    if driver.why_too_old(branch, env, launch.cuda) is not None:
        return f"needs a newer GPU driver than version {branch} of machines.image"
    if int(branch) >= NEWEST or driver.states_cuda(env):
        return None
    return f"may need a newer GPU driver than the {branch} of machines.image: its CUDA version is not stated"
