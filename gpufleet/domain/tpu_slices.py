"""TPU slices: the chips that Google rents and replaces together. Not tried on hardware. Source: `data/SOURCE.md`."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import prod

from gpufleet.domain.catalogue import AcceleratorKind, MachineType


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuSlice:
    """Chips that are joined by the inter-chip interconnect, in one machine or in several."""

    machine_type: str
    topology: str
    """Chips in each dimension: `4x4`, `2x2x4`."""
    chips: int
    hosts: int
    """Machines. They are created, and lost, together."""

    @property
    def is_multi_host(self) -> bool:
        """Whether the loss of one machine ends the work of others."""
        return self.hosts > 1


def tpu_slices(machine: MachineType) -> tuple[TpuSlice, ...]:
    """Return the common slices of machines of this type, smallest first; none for other accelerators.

    Machines with all chips of a host (8 of v5e and v6e) and with one chip do not join others.
    """
    if machine.accelerator is not AcceleratorKind.TPU:
        return ()
    found: list[TpuSlice] = []
    for topology in _topologies().get(machine.gpu, ()):
        chips = prod(int(side) for side in topology.split("x"))
        hosts, rest = divmod(chips, machine.gpu_count)
        if rest == 0 and (hosts == 1 or machine.gpu_count == _CHIPS_THAT_JOIN):
            found.append(
                TpuSlice(machine_type=machine.name, topology=topology, chips=chips, hosts=hosts),
            )
    return tuple(found)


_CHIPS_THAT_JOIN = 4
"""Chips of the machines that slices with several hosts consist of."""


@cache
def _topologies() -> dict[str, tuple[str, ...]]:
    text = resources.files("gpufleet.domain.data").joinpath("tpu_topologies.csv").read_text(encoding="utf-8")
    found: dict[str, tuple[str, ...]] = {}
    for row in csv.DictReader(text.splitlines()):
        found[row["tpu"]] = (*found.get(row["tpu"], ()), row["topology"])
    return found
