"""Queries for canonical metrics at the metrics store, in SI units.

Relabelling (`serving.accelerators.relabelling`) renames series and adds the labels of this module, but cannot change
values. It adds `unit`; `scaled` converts by it.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from serving.accelerators import metrics
from serving.accelerators.contract import (
    FACTORS,
    HEALTHY_AT,
    SeriesUnit,
    UnknownCode,
)
from serving.engines.reading import EVIDENCE
from serving.metrics import Metric

KIND_LABEL: Final = "accelerator"
DEVICE_LABEL: Final = "accelerator_device"
SLICE_LABEL: Final = "accelerator_slice"
SCOPE_LABEL: Final = "accelerator_scope"
"""The part of the hardware that the number describes. Numbers of a device are repeated for each of its slices."""
UNIT_LABEL: Final = "unit"
VETO: Final = "veto"
"""Value of the label `evidence` for a number that can show work, but whose 0 proves nothing."""
DOUBT_LABEL: Final = "accelerator_doubt"
"""Why a 0 proves nothing for the unit, whatever other numbers it has: a value of `UnknownCode`."""
TENANT_LABEL: Final = "accelerator_tenant"
"""The program that the exporter attributes a number to. Several values on one unit: it is shared."""
DIVISION_LABEL: Final = "accelerator_part"
"""The part of the unit's number that a series has: the values with different parts add up to it."""
IDENTITY_LABELS: Final = (KIND_LABEL, DEVICE_LABEL, SLICE_LABEL)
"""`max by (instance_id, …)` of them counts copies once."""
_BY_METRIC: Final[Mapping[str, tuple[tuple[SeriesUnit, float], ...]]] = {
    target: tuple((unit, factor) for unit, (other, factor) in FACTORS.items() if other == target)
    for target, _ in FACTORS.values()
}
_NO_SCALE: Final = 1.0


def scaled(metric: Metric, matchers: str = "", over: tuple[str, timedelta] | None = None) -> str:
    """Return a query fragment for the metric in SI units.

    `matchers`: label matchers, as `environment="prod"`. `over`: a function over a range and its length, such as
    `("max_over_time", timedelta(minutes=30))`; it must be linear in the values.

    Raises:
        ValueError: health over a range, which is not linear. Use a subquery.
    """
    if metric is metrics.HEALTHY:
        if over is not None:
            raise ValueError(f"{metric}: a function over a range needs a subquery, because health is compared")
        parts = [f"({_series(metric, matchers, unit, None)} == bool {at:g})" for unit, at in HEALTHY_AT.items()]
    else:
        parts = [
            _series(metric, matchers, unit, over) + ("" if factor == _NO_SCALE else f" * {factor:.12g}")
            for unit, factor in _BY_METRIC[metric.unit]
        ]
    return f"({' or '.join(parts)})"


def _series(metric: Metric, matchers: str, unit: SeriesUnit, over: tuple[str, timedelta] | None) -> str:
    labels = ",".join(part for part in (matchers, f'{UNIT_LABEL}="{unit}"') if part)
    selected = f"{metric}{{{labels}}}"
    return selected if over is None else f"{over[0]}({selected}[{duration(over[1])}])"


def duration(span: timedelta) -> str:
    """Return a duration of at least a millisecond as a query writes it."""
    milliseconds = max(1, round(span / timedelta(milliseconds=1)))
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


def misnamed_shares(matchers: str, over: tuple[str, timedelta] | None = None) -> str:
    """Return a query fragment for activity between 0 and 1 in percent. Percentages are whole numbers, so such a value
    is a share under the name of a percentage.
    """
    return f"({_series(metrics.ACTIVE, matchers, SeriesUnit.PERCENT, over)} > 0 < 1)"


def activity(by: str, matchers: str = "") -> str:
    """Return a query for the activity of each schedulable unit, 0 to 1. Its labels are `by` and the unit's.

    A number whose 0 proves nothing counts where the unit has no other. Numbers that are not measured are left out.
    """
    more = f"{matchers}," if matchers else ""
    units = f"{by}, {', '.join(IDENTITY_LABELS)}"
    lowest, highest = metrics.RANGES[metrics.ACTIVE]

    def highest_copy(evidence: str) -> str:
        active = f"{scaled(metrics.ACTIVE, f'{more}{evidence}')} >= {lowest:g} <= {highest:g}"
        return f"max by ({units}) ({active} unless {misnamed_shares(f'{more}{evidence}')})"

    measured = f'{DOUBT_LABEL}!="{UnknownCode.PARTITION}"'
    proving, coarse = highest_copy(f'{EVIDENCE}!="{VETO}"'), highest_copy(f'{EVIDENCE}="{VETO}",{measured}')
    return f"({proving} or {coarse})"


def memory(metric: Metric, by: str, matchers: str = "") -> str:
    """Return a query for a memory metric of each schedulable unit, in bytes. Its labels are `by` and the unit's."""
    units = f"{by}, {', '.join(IDENTITY_LABELS)}"
    parts = f"max by ({units}, {DIVISION_LABEL}) ({scaled(metric, matchers)} < {metrics.MAX_MEMORY:.0f})"
    return f"sum by ({units}) ({parts})"
