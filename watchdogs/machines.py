"""Facts of the catalogue about the machine types of instances. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud, Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Facts by machine type. A machine type that the catalogue does not know is absent."""

    gpus_expected: Mapping[str, int]
    watts_rated: Mapping[str, float]
    """Rated power of one GPU."""
    without_local_disks: frozenset[str]


def machine_facts(cloud: Cloud, instances: Sequence[Instance]) -> MachineFacts:
    """The facts about the machine types of these instances. The GPU of a known machine type may be unknown."""
    names = {instance.machine_type for instance in instances}
    machines = {machine.name: machine for machine in catalogue.known(cloud, names)}
    return MachineFacts(
        gpus_expected={name: machine.gpu_count for name, machine in machines.items()},
        watts_rated={name: watts for name in machines if (watts := catalogue.rated_watts(cloud, name)) is not None},
        without_local_disks=frozenset(name for name, machine in machines.items() if machine.nvme_disks == 0),
    )
