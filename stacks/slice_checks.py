"""Checks of how a pool's GPUs are divided."""

from collections.abc import Iterator

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import AcceleratorKind
from gpufleet.domain.slices import MIG_GPUS, plain
from gpufleet.settings.environment import PoolSettings, Settings, Slices
from gpufleet.settings.problems import Problem


def check(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    """Yield every problem of a pool's slices."""
    slices, where = pool.slices, f"{path}.slices"
    if slices is None:
        return
    needs, other = ("profile", "replicas") if slices.kind == "mig" else ("replicas", "profile")
    if getattr(slices, other) is not None:
        yield Problem(path=f"{where}.{other}", wrong=f"is not a setting of {slices.kind}", remedy="remove it")
    if getattr(slices, needs) is None:
        remedy = "write a MIG profile such as 1g.10gb" if needs == "profile" else "write the users of each GPU"
        yield Problem(path=f"{where}.{needs}", wrong="is missing", remedy=remedy)
        return
    for name in pool.capacity.machine_types:
        yield from _machine(settings, slices, where, name)


def _machine(settings: Settings, slices: Slices, where: str, name: str) -> Iterator[Problem]:
    try:
        machine = catalogue.machine(settings.cloud, name)
    except catalogue.UnknownMachineError:
        return  # the check of machine types reports it
    remedy, profile, path = "remove slices, or choose other machine types", slices.profile, f"{where}.profile"
    if profile is None:
        if machine.accelerator is not AcceleratorKind.NVIDIA:
            wrong = f"needs an NVIDIA GPU, and {name} has {machine.gpu}"
            yield Problem(path=f"{where}.kind", wrong=wrong, value=slices.kind, remedy=remedy)
        return
    known = MIG_GPUS.get(machine.gpu)
    if known is None:
        wrong = f"needs a GPU with MIG, and {name} has {machine.gpu}"
        yield Problem(path=path, wrong=wrong, value=profile, remedy=remedy)
    elif plain(profile) not in known.profiles:
        wrong = f"is not a profile of {machine.gpu} ({name})"
        yield Problem(path=path, wrong=wrong, value=profile, remedy=f"write one of {', '.join(known.profiles)}")
