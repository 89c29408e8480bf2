"""Energy and power at the metrics store, in the units that costs use. Standard library only."""

import math
from collections.abc import Mapping
from typing import Final

from serving.accelerators import metrics
from serving.accelerators.contract import EXPORTED, FACTORS, AcceleratorContract, SeriesUnit, matches
from serving.accelerators.queries import DOUBT_LABEL, KIND_LABEL, SLICE_LABEL, TENANT_LABEL, UNIT_LABEL
from serving.metrics import Metric

Contracts = Mapping[str, AcceleratorContract]
"""Contracts by kind."""
_PER_JOULE: Final = 1_000


def copy_labels(contracts: Contracts) -> frozenset[str]:
    """Labels that mark copies of a device's number on one page: for each slice, pod or job of the device."""
    names = {SLICE_LABEL, TENANT_LABEL, DOUBT_LABEL}
    for contract in contracts.values():
        of = contract.identity
        names |= {*of.tenants, *of.sharing, *of.copies, *of.slice, *((of.profile,) if of.profile else ())}
    return frozenset(names | {EXPORTED + name for name in names})


def millijoules(contracts: Contracts, labels: Mapping[str, str], value: float) -> int | None:
    """The value of a series of `metrics.ENERGY` in millijoules; None: it is not a measurement."""
    joules = _measured(metrics.ENERGY, contracts, labels, value)
    return None if joules is None else round(joules * _PER_JOULE)


def watts(contracts: Contracts, labels: Mapping[str, str], value: float) -> float | None:
    """The value of a series of `metrics.POWER` in watts; None: it is not a measurement."""
    return _measured(metrics.POWER, contracts, labels, value)


def _measured(metric: Metric, contracts: Contracts, labels: Mapping[str, str], value: float) -> float | None:
    unit, contract = labels.get(UNIT_LABEL, ""), contracts.get(labels.get(KIND_LABEL, ""))
    if unit not in FACTORS or FACTORS[SeriesUnit(unit)][0] != metric.unit or contract is None:
        return None
    if not math.isfinite(value) or value < 0 or contract.is_blank(value):
        return None
    if any(value == 0 and metric in spot.metrics and matches(spot.labels, labels) for spot in contract.blind_spots):
        return None
    converted = SeriesUnit(unit).convert(value)
    lowest, highest = metrics.RANGES.get(metric, (0.0, math.inf))
    return converted if lowest <= converted <= highest else None
