"""The metrics and labels of accelerator units, from the contracts of all accelerators."""

from typing import Final

from gpufleet.costs.unit_samples import UnitKind, UnitNames
from serving.accelerators import CONTRACTS, metrics
from serving.accelerators.contract import FACTORS, AcceleratorContract, Scope
from serving.accelerators.evidence import CLOCK_RATES
from serving.accelerators.queries import (
    DEVICE_LABEL,
    DOUBT_LABEL,
    KIND_LABEL,
    SCOPE_LABEL,
    SLICE_LABEL,
    UNIT_LABEL,
    VETO,
)
from serving.engines.reading import EVIDENCE
from serving.metrics import Metric, MetricKind


def _kind(contract: AcceleratorContract) -> UnitKind:
    rule, identity = contract.evidence, contract.identity
    used = {*rule.work, *rule.idle}
    return UnitKind(
        tenants=identity.tenants,
        sharing=identity.sharing,
        profile=identity.profile or "",
        work=tuple(metric.name for metric in rule.work),
        idle=tuple(metric.name for metric in rule.idle),
        counters=frozenset(metric.name for metric in used if metric.kind is MetricKind.COUNTER),
        program=rule.program or "",
        pulse=_name(rule.pulse),
        clock=_name(rule.clock),
        window=rule.window,
    )


def _name(metric: Metric | None) -> str:
    return "" if metric is None else metric.name


UNIT_NAMES: Final = UnitNames(
    kinds={kind: _kind(contract) for kind, contract in CONTRACTS.items()},
    active=metrics.ACTIVE.name,
    scales={unit.value: factor for unit, (of, factor) in FACTORS.items() if of == metrics.SHARE},
    kind=KIND_LABEL,
    device=DEVICE_LABEL,
    slice=SLICE_LABEL,
    unit=UNIT_LABEL,
    scope=SCOPE_LABEL,
    device_scopes=(Scope.DEVICE.value, Scope.HOST.value),
    coarse=(EVIDENCE, VETO),
    joules={unit.value: factor for unit, (of, factor) in FACTORS.items() if of == metrics.ENERGY.unit},
    clock_rates=CLOCK_RATES,
    doubt=DOUBT_LABEL,
)
