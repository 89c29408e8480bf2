"""Energy and CO2e of a report as text, and as values for JSON and CSV. Unknown values are `?` or null, never 0."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from gpufleet.costs.energy import Energy, energy_of, joules
from gpufleet.costs.figures import Figure
from gpufleet.costs.report import By, Report
from gpufleet.domain import money
from gpufleet.domain.energy import GridFactor

Row = tuple[str, ...]

HEADINGS: Final[Row] = ("", "MJ", "used", "idle", "unknown state", "measured", "g CO2e", "J/M", "g CO2e/M", "$/M")
"""Energy and CO2e by part, and per million tokens next to USD."""
_STEP: Final = Decimal("0.001")
_MILLIJOULES_PER_MJ: Final = -9
_SECONDS: Final = -6
UNKNOWN: Final = "?"
SCOPE: Final = "accelerators only: without hosts, network and cooling"


def rows(report: Report, by: By) -> list[Row]:
    """One row per part and the total. Megajoules add up, down and across."""
    groups = sorted(report.groups[by].items(), key=lambda item: (-(item[1].energy.millijoules or 0), item[0]))
    figures = [figure for _, figure in groups]
    lines = _megajoules([figure.energy for figure in figures], report.total.energy)
    names = [*(name for name, _ in groups), "total"]
    return [
        (name, *cells, *_rates(figure))
        for name, figure, cells in zip(names, [*figures, report.total], lines, strict=True)
    ]


def _megajoules(parts: Sequence[Energy], whole: Energy) -> list[Row]:
    """Sum and states of each part and of the whole, rounded together."""
    totals = money.rounded_parts(_states(whole), sum(_states(whole), money.ZERO), _STEP)
    columns = [
        money.rounded_parts([_states(part)[index] for part in parts], total, _STEP) if parts else ()
        for index, total in enumerate(totals)
    ]
    lines = [*([column[row] for column in columns] for row in range(len(parts))), list(totals)]
    return [
        (UNKNOWN,) * (len(totals) + 1)
        if energy.millijoules is None
        else tuple(f"{cell:,}" for cell in (sum(line, money.ZERO), *line))
        for line, energy in zip(lines, [*parts, whole], strict=True)
    ]


def _states(energy: Energy) -> list[Decimal]:
    amounts = (energy.used_mj, energy.idle_mj, energy.other_mj)
    return [Decimal(amount).scaleb(_MILLIJOULES_PER_MJ) for amount in amounts]


def _rates(figure: Figure) -> Row:
    energy, usd = figure.energy, figure.unit_costs().blended
    return (
        "–" if energy.coverage is None else f"{energy.coverage:.1%}",
        shown(energy.grams, Decimal("0.1")),
        shown(energy.joules_per_million_tokens, Decimal(1)),
        shown(energy.grams_per_million_tokens, Decimal("0.01")),
        "–" if usd is None else f"{usd.quantize(Decimal('0.0001')):,}",
    )


def shown(value: Decimal | None, step: Decimal) -> str:
    """A number with thousands separators; unknown is a question mark."""
    return UNKNOWN if value is None else f"{value.quantize(step):,}"


def lines(report: Report) -> list[str]:
    """Notes for people: what is measured, what it is compared with, and the grid factors."""
    energy = report.total.energy
    if energy.millijoules is None:
        return ["energy: unknown: no energy counter of an accelerator was measured in this window"]
    found = [
        f"energy: {shown(joules(energy.millijoules), Decimal(1))} J ({SCOPE});"
        f" {energy.coverage or 0:.1%} of the device time was measured, the energy of the remainder is unknown"
    ]
    if energy.compared_tokens:
        tokens = energy.compared_tokens / (report.total.served.total or energy.compared_tokens)
        part = energy.compared_mj / (energy.millijoules or 1)
        found.append(
            f"energy per million tokens: {shown(energy.joules_per_million_tokens, Decimal(1))} J, from"
            f" {tokens:.1%} of the tokens and {part:.1%} of the energy: instances whose tokens are known and whose"
            " energy was measured for at least 90% of their device time"
        )
    factors = dict.fromkeys(one.factor for _, one in report.energies if one.use.millijoules)
    stated = "; ".join(factor.as_text for factor in factors if factor is not None)
    if energy.grams is not None:
        per_million = shown(energy.grams_per_million_tokens, Decimal("0.01"))
        found.append(
            f"CO2e: {shown(energy.grams, Decimal('0.1'))} g, {per_million} g per million tokens, at {stated}"
        )
    elif stated:
        found.append(f"CO2e: unknown: a part of the energy has no stated grid factor; stated: {stated}")
    else:
        found.append("CO2e: unknown: the settings state no grid factor (`carbon`)")
    return found


def energy_json(energy: Energy) -> dict[str, Any]:
    """The energy of one part; null: unknown."""
    measured = energy.millijoules is not None
    return {
        "joules": text(joules(energy.millijoules)) if energy.millijoules is not None else None,
        "joules_used": text(joules(energy.used_mj)) if measured else None,
        "joules_idle": text(joules(energy.idle_mj)) if measured else None,
        "joules_unknown_state": text(joules(energy.other_mj)) if measured else None,
        "device_seconds": text(Decimal(energy.device_us).scaleb(_SECONDS)),
        "measured_device_seconds": text(Decimal(energy.measured_us).scaleb(_SECONDS)),
        "measured_share": None if energy.coverage is None else round(energy.coverage, 6),
        "co2e_grams": _or_none(energy.grams),
        "compared_joules": text(joules(energy.compared_mj)),
        "compared_tokens": energy.compared_tokens,
        "joules_per_million_tokens": _or_none(energy.joules_per_million_tokens),
        "co2e_grams_per_million_tokens": _or_none(energy.grams_per_million_tokens),
    }


def instance_rows(report: Report) -> Iterable[dict[str, Any]]:
    """The energy of each instance, with its grid factor: the inputs of all sums."""
    for run, one in report.energies:
        use = one.use
        yield {
            "instance": one.instance_id,
            "pool": None if run is None else run.pool,
            "model": None if run is None else run.model,
            "team": None if run is None else run.owner,
            "since": one.since,
            "until": one.until,
            "devices": use.devices,
            "joules_used": text(joules(use.used_mj)),
            "joules_idle": text(joules(use.idle_mj)),
            "joules_unknown_state": text(joules(use.other_mj)),
            "measured_device_seconds": text(Decimal(use.measured_us).scaleb(_SECONDS)),
            "resets": use.resets,
            "rejected": use.rejected,
            "grid_factor": None if one.factor is None else factor_json(one.factor),
        }


def factor_json(factor: GridFactor) -> dict[str, Any]:
    """A stated grid factor."""
    return {
        "grams_per_kwh": text(factor.grams_per_kwh),
        "pue": _or_none(factor.pue),
        "source": factor.source,
    }


FIGURE_COLUMNS: Final = {
    "energy_joules": "joules",
    "energy_joules_idle": "joules_idle",
    "energy_measured_share": "measured_share",
    "joules_per_million_tokens": "joules_per_million_tokens",
    "co2e_grams": "co2e_grams",
    "co2e_grams_per_million_tokens": "co2e_grams_per_million_tokens",
}
"""Column of CSV to the key of `energy_json`."""


def figure_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a figure's energy in CSV. `values`: of `energy_json`."""
    return {column: values[key] for column, key in FIGURE_COLUMNS.items()}


CSV_COLUMNS: Final = ("joules", "joules_idle", "measured_device_seconds", "co2e_grams")
"""Columns of the rows of kind `energy`."""


def csv_rows(report: Report) -> Iterable[dict[str, Any]]:
    """The measured energy of each instance, and of each time with one owner, model and grid factor."""
    for run, one in report.energies:
        energy = energy_of(one.use, one.factor)
        if run is None or energy.millijoules is None:
            continue
        yield {
            "kind": "energy",
            "resource": one.instance_id,
            "zone": run.zone,
            "pool": run.pool,
            "model": run.model,
            "team": run.owner,
            "machine_type": run.machine_type,
            "capacity_type": run.capacity_type.value,
            "start": one.since,
            "end": one.until,
            "joules": text(joules(energy.millijoules)),
            "joules_idle": text(joules(energy.idle_mj)),
            "measured_device_seconds": text(Decimal(energy.measured_us).scaleb(_SECONDS)),
            "co2e_grams": _or_none(energy.grams),
        }


def _or_none(value: Decimal | None) -> str | None:
    return None if value is None else text(value)


def text(value: Decimal) -> str:
    """A decimal without an exponent."""
    return format(value, "f")
