"""Cost anomalies: USD per hour and USD per million tokens, compared with the same hour of earlier weeks. Pure.

A change of cost is split into three parts that add up to it exactly. With C = price × hours and hours = tokens ×
hours per token: volume = P0·E0·(V1−V0), efficiency = P0·V1·(E1−E0), price = H1·(P1−P0). Where either hour has no
tokens, hours per token is undefined: the part that is not price counts as efficiency (idle capacity). Where either
hour has no instance hours, the whole change counts as volume.

A cost without a price, or that was not collected, does not count as 0: an increase is judged by the lower bound of a
figure, a decrease by its upper bound, if there is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Final, TypeVar

from gpufleet.costs.allocation import Charge, ChargeKind
from gpufleet.costs.figures import Figure
from gpufleet.domain import money
from gpufleet.domain.model import CapacityType

Item = TypeVar("Item")

FACTOR: Final = Fraction(3, 2)
"""A figure is an anomaly above (or its inverse below) this multiple of the usual."""

MIN_USD_PER_HOUR: Final = Fraction(1)
"""Smaller changes are not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """The cost and the tokens of one hour."""

    usd: Fraction
    """The value used."""
    instance_hours: Fraction
    tokens: int
    too_much: Fraction = Fraction(0)
    """The largest amount by which `usd` may be too high."""
    too_little: Fraction | None = Fraction(0)
    """The largest amount by which `usd` may be too low; None: something has no price or was not collected."""

    @property
    def least(self) -> Fraction:
        return self.usd - self.too_much

    @property
    def most(self) -> Fraction | None:
        return None if self.too_little is None else self.usd + self.too_little


@dataclass(frozen=True, slots=True, kw_only=True)
class CostChange:
    """The causes of a change of cost, in USD per hour; the parts add up exactly."""

    price: Fraction
    volume: Fraction
    efficiency: Fraction

    @property
    def whole(self) -> Fraction:
        return self.price + self.volume + self.efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """A figure far from its usual value."""

    what: str
    """`USD/h` or `USD per million tokens`."""
    now: Fraction
    usual: Fraction
    split: CostChange
    cause: str
    now_at_least: bool = False
    """Whether `now` excludes costs without a price or uncollected time."""
    usual_at_least: bool = False


def hour_of(figure: Figure, *, collected: bool = True) -> Hour:
    """The hour of a report's figure. `collected`: whether all of it was collected."""
    seconds = sum((Fraction(money.seconds(time)) for time in figure.times.values()), Fraction(0))
    is_bounded = collected and figure.most is not None
    return Hour(
        usd=Fraction(figure.allocation) / 3600,
        instance_hours=seconds / 3600,
        tokens=figure.tokens.total or 0,
        too_much=Fraction(figure.too_much) / 3600,
        too_little=Fraction(figure.too_little) / 3600 if is_bounded else None,
    )


def split_change(before: Hour, after: Hour) -> CostChange:
    """The change of cost in parts that add up to it exactly."""
    if before.instance_hours == 0 or after.instance_hours == 0:
        return CostChange(price=Fraction(0), volume=after.usd - before.usd, efficiency=Fraction(0))
    old_price = before.usd / before.instance_hours
    price = after.usd - after.instance_hours * old_price
    if before.tokens == 0 or after.tokens == 0:
        rest = old_price * (after.instance_hours - before.instance_hours)
        return CostChange(price=price, volume=Fraction(0), efficiency=rest)
    old_rate = before.instance_hours / before.tokens
    volume = old_price * old_rate * (after.tokens - before.tokens)
    efficiency = old_price * (after.instance_hours - after.tokens * old_rate)
    return CostChange(price=price, volume=volume, efficiency=efficiency)


def usual(hours: Sequence[Hour]) -> Hour | None:
    """The median of comparable hours by cost, in any order; of an even number the mean of the two in the
    middle. None without any.
    """
    if not hours:
        return None
    ordered = sorted(hours, key=lambda hour: (hour.usd, hour.instance_hours, hour.tokens))
    low, high = _middle(ordered)
    usd = (low.usd + high.usd) / 2
    least = sum(_middle(sorted(hour.least for hour in hours)), Fraction(0)) / 2
    # a missing upper bound sorts above every other
    bounded = sorted(hour.most for hour in hours if hour.most is not None)
    is_bounded = len(hours) // 2 < len(bounded)
    most = sum((bounded[(len(hours) - 1) // 2], bounded[len(hours) // 2]), Fraction(0)) / 2 if is_bounded else None
    return Hour(
        usd=usd,
        instance_hours=(low.instance_hours + high.instance_hours) / 2,
        tokens=(low.tokens + high.tokens) // 2,
        too_much=usd - least,
        too_little=None if most is None else most - usd,
    )


def _middle(ordered: Sequence[Item]) -> tuple[Item, Item]:
    return ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]


def anomalies(now: Hour, weeks: Sequence[Hour], cause: str) -> list[Anomaly]:
    """The figures that are far from their usual value, which may be 0. Empty without comparable hours."""
    before = usual(weeks)
    if before is None:
        return []
    split = split_change(before, now)
    unknown = {"now_at_least": now.most is None, "usual_at_least": before.most is None}
    found: list[Anomaly] = []
    if _differs(now, before) and _is_far(now, before, Fraction(1)):
        found.append(Anomaly(what="USD/h", now=now.usd, usual=before.usd, split=split, cause=cause, **unknown))
    if before.tokens and now.tokens and now.usd >= MIN_USD_PER_HOUR:
        old, new = before.usd * 1_000_000 / before.tokens, now.usd * 1_000_000 / now.tokens
        if _is_far(now, before, Fraction(now.tokens, before.tokens)):
            found.append(
                Anomaly(what="USD per million tokens", now=new, usual=old, split=split, cause=cause, **unknown)
            )
    return found


def _differs(now: Hour, before: Hour) -> bool:
    rise = before.most is not None and now.least - before.most >= MIN_USD_PER_HOUR
    return rise or (now.most is not None and before.least - now.most >= MIN_USD_PER_HOUR)


def _is_far(now: Hour, before: Hour, volume: Fraction) -> bool:
    """Whether the hour is far from `volume` times the usual one for every value within the bounds of both."""
    rise = before.most is not None and now.least > before.most * volume * FACTOR
    return rise or (now.most is not None and now.most * FACTOR < before.least * volume)


def name_cause(before: Sequence[Charge], after: Sequence[Charge], since: datetime) -> str:
    """Describe the largest change of cost: capacity type, zone, pool, start time and USD per hour."""
    old, new = _by_kind(before), _by_kind(after)
    changes = {key: new.get(key, Fraction(0)) - old.get(key, Fraction(0)) for key in old.keys() | new.keys()}
    if not changes:
        return "nothing ran"
    key = max(changes, key=lambda k: (abs(changes[k]), k))
    pool, capacity, zone = key
    change = changes[key]
    starts = [
        charge.start
        for charge in after
        if (charge.pool or "", charge.capacity_type.value, charge.zone) == key and charge.kind is ChargeKind.TIME
    ]
    began = f" since {min(starts):%H:%M}" if starts and min(starts) > since else ""
    sign = "+" if change > 0 else "−"
    amount = f"{sign}{float(abs(change)):.2f} USD/h"
    spot_fell = any(k[0] == pool and k[1] == CapacityType.SPOT.value and c < 0 for k, c in changes.items())
    if capacity == CapacityType.ON_DEMAND.value and change > 0 and spot_fell:
        return f"spot fell back to on-demand in {zone} (pool {pool}){began}: {amount}"
    return f"{capacity} in {zone} (pool {pool or 'none'}){began}: {amount}"


def _by_kind(charges: Sequence[Charge]) -> dict[tuple[str, str, str], Fraction]:
    sums: dict[tuple[str, str, str], Fraction] = {}
    for charge in charges:
        if charge.amount is not None:
            key = (charge.pool or "", charge.capacity_type.value, charge.zone)
            sums[key] = sums.get(key, Fraction(0)) + Fraction(charge.amount) / 3600
    return sums
