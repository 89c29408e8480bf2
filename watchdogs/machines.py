"""Facts of the catalogue about the machine types of instances. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import UnknownMachineError
from gpufleet.domain.model import Cloud, Instance

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Facts by machine type. A machine type that the catalogue does not know is absent."""

    gpus_expected: Mapping[str, int]
    watts_rated: Mapping[str, float]
    """Rated power of one GPU."""
    without_local_disks: frozenset[str]


def known_of(cloud: Cloud, instances: Sequence[Instance]) -> MachineFacts:
    """The facts about the machine types of these instances. The GPU of a known machine type may be unknown."""
    machines = _found({instance.machine_type for instance in instances}, partial(catalogue.machine, cloud))
    gpus = _found({machine.gpu for machine in machines.values()}, catalogue.gpu)
    return MachineFacts(
        gpus_expected={name: machine.gpu_count for name, machine in machines.items()},
        watts_rated={
            name: float(watts)
            for name, machine in machines.items()
            if machine.gpu in gpus and (watts := gpus[machine.gpu].watts) is not None
        },
        without_local_disks=frozenset(name for name, machine in machines.items() if machine.nvme_disks == 0),
    )


def _found(names: Iterable[str], find: Callable[[str], _T]) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for name in names:
        try:
            found[name] = find(name)
        except UnknownMachineError:
            continue  # unknown, so absent
    return found
