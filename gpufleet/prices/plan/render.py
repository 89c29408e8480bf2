"""A plan's cost for people (Markdown for a pull request) and for programs (JSON, version 1)."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from gpufleet.domain.money import CENT, HOURS_PER_MONTH
from gpufleet.prices.plan import slices
from gpufleet.prices.plan.cost import CostLine, PlanCost


def money(amount: Decimal) -> str:
    """`1,234.50`, rounded half to even to the cent."""
    return f"{amount.quantize(CENT):,}"


def headline(before: PlanCost, after: PlanCost) -> str:
    """One sentence: the planned cost, and the difference from the present cost."""
    change = after.usd_per_month - before.usd_per_month
    sign = "+" if change >= 0 else "-"
    return (
        f"{money(after.usd_per_hour)} USD/h at the desired size ({money(after.usd_per_hour_low)} at least,"
        f" {money(after.usd_per_hour_high)} at most), {money(after.usd_per_month)} USD a month"
        f" ({sign}{money(abs(change))} against now)"
    )


def rows(cost: PlanCost) -> Iterator[tuple[str, ...]]:
    """Pool, what, units, price, USD per hour (least, desired, most), USD per month."""
    for line in cost.lines:
        yield (
            line.pool,
            line.what + (f" ({line.note})" if line.note else ""),
            _units(line),
            _price(line),
            money(line.usd_per_hour_low),
            money(line.usd_per_hour),
            money(line.usd_per_hour_high),
            money(line.usd_per_month),
        )


HEADINGS = ("pool", "what", "units", "USD/h each", "least", "desired", "most", "USD/month")


def notes(cost: PlanCost) -> Iterator[str]:
    """Notes on the table: lost spot capacity, resources billed by use, sources, unverified prices."""
    for fallback in cost.fallbacks:
        yield (
            f"If all spot of {fallback.pool} is lost: {fallback.on_demand} {fallback.kind} replace it for"
            f" {money(fallback.usd_per_hour)} USD/h"
            + (f", {fallback.missing} replicas of the target are missing." if fallback.missing else ".")
        )
    for price in cost.slices:
        yield f"Slices of {slices.as_text(price)}"
    if cost.by_use:
        yield f"Billed by use and not in these sums: {', '.join(cost.by_use)}."
    yield f"A month has {HOURS_PER_MONTH} hours. Spot: p5 to p95 of its price in the last 30 days, if known."
    sources = {(p.source, f"{p.as_of:%Y-%m-%d}", p.unverified) for line in cost.lines for p in line.price.prices}
    for source, day, unverified in sorted(sources):
        yield f"Prices from {source}, as of {day}{' (UNVERIFIED)' if unverified else ''}."


def markdown(before: PlanCost, after: PlanCost) -> str:
    """The cost as Markdown for a comment on a pull request."""
    table = [HEADINGS, ("---",) * 3 + ("---:",) * 5, *rows(after)]
    lines = ["### Cost of this plan", "", f"**{headline(before, after)}**", ""]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
    lines += ["", *(f"- {note}" for note in notes(after))]
    return "\n".join(lines) + "\n"


def as_json(before: PlanCost, after: PlanCost) -> dict[str, Any]:
    """All figures and their sources. Amounts are exact, as text."""
    return {
        "version": 1,
        "currency": "USD",
        "hours_per_month": HOURS_PER_MONTH,
        "now": _sums(before),
        "planned": _sums(after),
        "usd_per_month_change": str(after.usd_per_month - before.usd_per_month),
        "lines": [_line(line) for line in after.lines],
        "fallback": [
            {
                "pool": f.pool,
                "on_demand": f.on_demand,
                "missing": f.missing,
                "usd_per_hour": str(f.usd_per_hour),
            }
            for f in after.fallbacks
        ],
        "slices": [
            {
                "pool": price.pool,
                "machine_type": price.machine_type,
                "capacity_type": price.capacity_type,
                "slice": price.division.name,
                "slices_per_instance": price.division.slices,
                "usd_per_slice_hour": str(price.usd_per_slice_hour),
                "stranded_share": str(price.division.stranded),
            }
            for price in after.slices
        ],
        "billed_by_use": list(after.by_use),
    }


def _sums(cost: PlanCost) -> dict[str, str]:
    return {
        "usd_per_hour": str(cost.usd_per_hour),
        "usd_per_hour_least": str(cost.usd_per_hour_low),
        "usd_per_hour_most": str(cost.usd_per_hour_high),
        "usd_per_month": str(cost.usd_per_month),
    }


def _line(line: CostLine) -> dict[str, Any]:
    return {
        "pool": line.pool,
        "what": line.what,
        "sku": line.sku,
        "units": {"least": str(line.least), "desired": str(line.desired), "most": str(line.most)},
        "usd_per_hour_each": {
            "now": str(line.price.usd_per_hour),
            "low": str(line.price.low),
            "high": str(line.price.high),
        },
        "usd_per_hour": str(line.usd_per_hour),
        "usd_per_month": str(line.usd_per_month),
        "note": line.note,
        "prices": [
            {
                "sku": p.sku,
                "region": p.region,
                "zone": p.zone,
                "usd_per_hour": str(p.usd_per_hour),
                "source": p.source,
                "as_of": p.as_of.isoformat(),
                "unverified": p.unverified,
            }
            for p in dict.fromkeys(line.price.prices)
        ],
    }


def _units(line: CostLine) -> str:
    if line.least == line.desired == line.most:
        return f"{line.desired.normalize():f}"
    return f"{line.desired.normalize():f} ({line.least.normalize():f} to {line.most.normalize():f})"


def _price(line: CostLine) -> str:
    mark = " (unverified)" if line.price.unverified else ""
    now, low, high = line.price.usd_per_hour, line.price.low, line.price.high
    if low == high:
        return f"{now.normalize():f}{mark}"
    return f"{now.normalize():f} ({low.normalize():f} to {high.normalize():f}){mark}"
