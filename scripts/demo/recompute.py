"""The report's numbers again, from its own JSON: seconds times prices, and differences of counters."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

CENT_PARTS: Final = Decimal("0.000001")
"""Amounts have nine decimals; sums of a few dozen of them may differ by that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """What a reader of the JSON gets with a pocket calculator."""

    usd: Decimal
    charges: int
    prompt: int
    generation: int
    blended: Decimal | None
    """USD per million tokens of the instances in the ledger."""


def recompute(report: dict[str, Any]) -> Recomputed:
    """Add up a report's charges and engines. Raises ValueError where a row or a sum disagrees with it."""
    usd = Decimal(0)
    for row in report["charges"]:
        amount = Decimal(row["usd"])
        if row["kind"] not in ("interrupted by the cloud",):
            _same(f"{row['resource']} ({row['state']})", _amount(row), amount)
        usd += amount
    prompt, generation = (sum(_served(engine, name) for engine in report["engines"]) for name in _COUNTED)
    total = report["total"]
    _same("the total", usd, Decimal(total["usd"]))
    for by, rows in report["by"].items():
        _same(f"the sum by {by}", sum((Decimal(row["usd"]) for row in rows.values()), Decimal(0)), usd)
    costed = sum(_served(engine, name) for engine in report["engines"] if engine["machine_type"] for name in _COUNTED)
    blended = usd / costed * 1_000_000 if costed else None
    if (prompt, generation) != (total["tokens"]["prompt"], total["tokens"]["generation"]):
        raise ValueError(
            f"the differences of the counters are {prompt} + {generation} tokens; the report has {total['tokens']}"
        )
    reported = total["usd_per_million_tokens"]["blended"]
    if blended is not None:
        _same("USD per million tokens", round(blended, 3), round(Decimal(reported), 3))
    return Recomputed(usd=usd, charges=len(report["charges"]), prompt=prompt, generation=generation, blended=blended)


_COUNTED: Final = ("prompt", "generation")


def _amount(row: dict[str, Any]) -> Decimal:
    return Decimal(row["seconds"]) * Decimal(row["usd_per_hour"]) / 3600


def _served(engine: dict[str, Any], counter: str) -> int:
    """Last minus first reading; an engine that restarted counts from zero again, so its row says the sum itself."""
    if engine["tokens"]["resets"]:
        return int(engine["tokens"][counter])
    first = engine["base"] or {counter: 0}
    return int(engine["last"][counter]) - int(first[counter])


def _same(what: str, ours: Decimal, theirs: Decimal) -> None:
    if abs(ours - theirs) > CENT_PARTS:
        raise ValueError(f"{what}: {ours} USD recomputed, {theirs} in the report")
