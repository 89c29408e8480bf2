"""Expected cost of a million tokens in a plan: from the measured speed of each pool's machines, or "unknown"."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from app.references import hub_name, measurement
from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud
from gpufleet.prices.plan.cost import CostLine, PlanCost, parts_of
from serving.sizing import measurements
from serving.sizing.validity import not_modelled

_MILLION = Decimal(1_000_000)
_HOUR = Decimal(3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The expected cost of one pool at its desired size and full use."""

    pool: str
    usd_per_million_tokens: Decimal | None
    """Input and output together; None: unknown."""
    basis: str
    """The measurement that it is based on, or why it is unknown."""


def expected(config: Mapping[str, Any], cost: PlanCost) -> list[Expected]:
    """One row for each pool of the settings, in their order."""
    settings = parts_of(config)
    if (cloud := settings.cloud) is None:
        return []
    sources = {model.name: model.source for model in settings.models}
    return [
        _of_pool(pool.name, hub_name(sources.get(pool.model, "")), cloud, cost)
        if (why := not_modelled(pool.engine.kind)) is None
        else Expected(pool=pool.name, usd_per_million_tokens=None, basis=f"unknown: {why}")
        for pool in settings.pools
    ]


def _of_pool(pool: str, model: str | None, cloud: Cloud, cost: PlanCost) -> Expected:
    lines = [line for line in cost.lines if line.pool == pool and line.desired > 0 and _machine(line) is not None]
    if not lines:
        return Expected(pool=pool, usd_per_million_tokens=None, basis="unknown: the desired size has no machine")
    if model is None:
        return Expected(pool=pool, usd_per_million_tokens=None, basis="unknown: its model has no known name on a hub")
    tokens, bases = Decimal(0), list[str]()
    for line in lines:
        machine = catalogue.machine(cloud, _machine(line) or "")
        row = measurements.most_measured(model, machine.gpu, machine.gpu_count)
        if row is None:
            why = f"unknown: no measurement of {model} on {machine.gpu_count} x {machine.gpu}"
            return Expected(pool=pool, usd_per_million_tokens=None, basis=why)
        tokens += line.desired * Decimal(measurements.tokens_per_s(row))
        bases.append(measurement(row))
    usd = sum((line.usd_per_hour for line in lines), Decimal(0)) / (tokens * _HOUR) * _MILLION
    return Expected(
        pool=pool,
        usd_per_million_tokens=usd.quantize(Decimal("0.0001")),
        basis=f"at full use, measured: {'; '.join(dict.fromkeys(bases))}",
    )


def _machine(line: CostLine) -> str | None:
    """The machine type of a line that rents machines."""
    parts = line.sku.split(":")
    return parts[2] if len(parts) == 4 and parts[1] in ("ec2", "compute") else None


def as_text(row: Expected) -> str:
    """One line for people."""
    if row.usd_per_million_tokens is None:
        return f"Pool {row.pool}: USD per million tokens {row.basis}."
    return f"Pool {row.pool}: {row.usd_per_million_tokens} USD per million tokens expected, {row.basis}."


def as_json(row: Expected) -> dict[str, str | None]:
    usd = row.usd_per_million_tokens
    return {"pool": row.pool, "usd_per_million_tokens": None if usd is None else str(usd), "basis": row.basis}
