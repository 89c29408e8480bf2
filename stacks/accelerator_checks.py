"""Checks of the accelerators of a pool's machine types, and which were not tried on hardware."""

from collections.abc import Iterator

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import AcceleratorKind, MachineType
from gpufleet.domain.model import Cloud
from gpufleet.settings.environment import PoolSettings, Settings
from gpufleet.settings.problems import Problem
from serving.accelerators import CONTRACTS
from serving.accelerators.launch import ExporterContainer


def machines_of(cloud: Cloud, pool: PoolSettings) -> tuple[MachineType, ...]:
    """Return the machine types of a pool that the catalogue contains, each once, in the order of the settings.

    Another check reports the others.
    """
    return catalogue.known(cloud, pool.capacity.machine_types)


def kinds_of(cloud: Cloud, pool: PoolSettings) -> tuple[AcceleratorKind, ...]:
    """Return the kinds of accelerators of the pool's machine types."""
    return tuple(dict.fromkeys(machine.accelerator for machine in machines_of(cloud, pool)))


def check_pool(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    """Yield a problem if the pool has several kinds of accelerators, or if the settings do not name its kind."""
    kinds = kinds_of(settings.cloud, pool)
    if len(kinds) > 1:
        yield Problem(
            path=f"{path}.capacity",
            wrong=f"has machine types with {' and '.join(f'{CONTRACTS[kind].title}s' for kind in kinds)}",
            value=", ".join(machine.name for machine in machines_of(settings.cloud, pool)),
            remedy="write a pool for each: the engine's image and the machine image are of one kind",
        )
        return
    for kind in kinds:
        named = settings.machines.accelerators.get(kind)
        users = [one for one in settings.pools if kind in kinds_of(settings.cloud, one)]
        if kind is AcceleratorKind.NVIDIA or users[:1] != [pool]:
            continue
        place = f"{path.rpartition('.pools.')[0]}.machines.accelerators.{kind}"
        wrong = f"is missing, and the machine types of pool {pool.name} have {CONTRACTS[kind].title}s"
        image = f"an image of {CONTRACTS[kind].exporters[0].name} by its digest"
        needs_image = isinstance(CONTRACTS[kind].launch.exporter, ExporterContainer)
        if named is None:
            entry = f"with exporter_image, {image}" if needs_image else "as {}"
            remedy = f"write it {entry}: with it you accept a launch that was not tried on hardware"
            yield Problem(path=place, wrong=wrong, remedy=remedy)
        elif needs_image and named.exporter_image is None:
            yield Problem(path=f"{place}.exporter_image", wrong=wrong, remedy=f"name {image}")


def check(settings: Settings, path: str) -> Iterator[Problem]:
    """Yield a problem if the settings of NVIDIA GPUs are in the wrong place."""
    if AcceleratorKind.NVIDIA in settings.machines.accelerators:
        yield Problem(
            path=f"{path}.machines.accelerators.{AcceleratorKind.NVIDIA}",
            wrong="is not read",
            remedy="write machines.image and machines.dcgm_image instead: they are the settings of NVIDIA GPUs",
        )


def not_tried(settings: Settings) -> str:
    """Return a note on the pools' machine types on which this project never ran; empty: all were tried."""
    machines = {machine.name: machine for pool in settings.pools for machine in machines_of(settings.cloud, pool)}
    names = [
        f"{one.name} ({CONTRACTS[one.accelerator].title})" for one in machines.values() if not one.tried_on_hardware
    ]
    return f"not tried on hardware: {', '.join(names)}" if names else ""
