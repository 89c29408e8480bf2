"""Does the GPU driver of the machine image, where its name tells it, fit the engines? Asked before any is rented."""

import re
from collections.abc import Iterator
from typing import Final

from node import driver
from node.settings import EngineSettings
from serving.engine import EngineKind
from stacks.problems import Problem
from stacks.settings import KEY, Pool, Settings

_TOLD: Final = re.compile(r"nvidia-(\d{3})(?!\d)")
"""As Google's Deep Learning VM images are named: `common-cu129-ubuntu-2204-nvidia-580-v20260818`."""
NEWEST: Final = max(driver.LEAST_DRIVER.values())


def problems(settings: Settings) -> Iterator[Problem]:
    """One for each pool whose engine cannot run on that driver, or might not and does not say what it needs."""
    told = _TOLD.search(settings.machines.image)
    if told is None:
        return
    for index, pool in enumerate(settings.pools):
        if (wrong := _wrong(told[1], pool)) is not None:
            yield Problem(
                path=f"{KEY}.pools.{index}.engine",
                wrong=wrong,
                value=pool.engine.image,
                remedy=f"take a machine image with driver {NEWEST} or newer, or an engine image built with an older"
                f" CUDA, and say which in engine.env: {driver.REQUIRE}: cuda>=12.9",
            )


def _wrong(branch: str, pool: Pool) -> str | None:
    env = pool.engine.env
    engine = EngineSettings(
        kind=EngineKind(pool.engine.kind), image=pool.engine.image, args=pool.engine.args, env=env
    )
    if driver.why_too_old(branch, engine) is not None:
        return f"needs a newer GPU driver than the {branch} of machines.image"
    if int(branch) >= NEWEST or driver.is_judged(env):
        return None
    return f"may need a newer GPU driver than the {branch} of machines.image, and does not say what it was built with"
