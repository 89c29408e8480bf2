"""The energy of each cell of a report: the names of an instance in every grouping. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from gpufleet.costs.allocation import Charge, ChargeKind
from gpufleet.costs.energy import Energy, InstanceEnergy, device_time, energy_of, is_compared
from gpufleet.costs.tokens import EngineTokens
from gpufleet.domain.model import Cloud
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.energy import PLAUSIBLE_WATTS
from gpufleet.ledger.facts import Run

Cell = tuple[str, ...]
"""The names of a charge or run in every grouping."""
_Instance = tuple[Cell, str]
"""Cell and instance id."""


def energy_by_cell(
    cell_of: Callable[[Charge | Run], Cell],
    bill: Iterable[Charge],
    served: Iterable[tuple[EngineTokens, Run | None]],
    energies: Iterable[tuple[Run | None, InstanceEnergy]],
) -> dict[Cell, Energy]:
    """The energy of each cell, and of its instances what is compared with tokens."""
    ran: defaultdict[_Instance, timedelta] = defaultdict(timedelta)
    machines: dict[_Instance, tuple[Cloud, str]] = {}
    for charge in bill:
        if charge.kind is ChargeKind.TIME:
            ran[cell_of(charge), charge.resource] += charge.duration
            machines[cell_of(charge), charge.resource] = charge.cloud, charge.machine_type
    tokens: defaultdict[_Instance, Tokens] = defaultdict(Tokens)
    for engine, run in served:
        if run is not None:
            tokens[cell_of(run), engine.instance_id] += engine.tokens
    found: defaultdict[_Instance, Energy] = defaultdict(Energy)
    devices: defaultdict[_Instance, int] = defaultdict(int)
    for run, one in energies:
        if run is not None:
            instance = cell_of(run), one.instance_id
            found[instance] += energy_of(one.use, one.factor)
            devices[instance] = max(devices[instance], one.use.devices)
    cells: defaultdict[Cell, Energy] = defaultdict(Energy)
    for instance in found.keys() | ran.keys():
        whole = found[instance]
        if instance in machines:
            time = device_time(ran[instance], *machines[instance], seen=devices[instance])
            whole = replace(whole, device_us=time)
        if is_compared(whole, tokens[instance]):
            whole = whole.compared_with(tokens[instance])
        cells[instance[0]] += whole
    return cells


def energy_notes(energies: Sequence[tuple[Run | None, InstanceEnergy]]) -> Iterable[str]:
    """Notes about counters, for people."""
    resets, rejected = (sum(getattr(one.use, name) for _, one in energies) for name in ("resets", "rejected"))
    if resets:
        yield f"{resets} resets of energy counters: the energy across a reset is unknown"
    if rejected:
        yield (
            f"{rejected} spans of energy with a mean power outside {PLAUSIBLE_WATTS[0]} to {PLAUSIBLE_WATTS[1]:,} W"
            " per device were rejected: the unit of a counter may be wrong"
        )
    if foreign := sorted({one.instance_id for run, one in energies if run is None}):
        yield f"energy of {len(foreign)} instances that are not in the ledger is in no figure ({foreign[0]})"
