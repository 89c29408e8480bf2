"""The costs of a fleet over time, with its actions and its waste, as values for the web page. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

from gpufleet.costs.forecast import Cost
from gpufleet.costs.spend import Part, Spend
from gpufleet.costs.waste import Waste
from gpufleet.domain import money
from gpufleet.domain.decisions import LedgerEntry

MAX_SERIES: Final = 7
"""Parts with a colour of their own, those with the highest costs; the others are drawn as one."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Period(StrEnum):
    """The times that can be shown."""

    DAY = "24h"
    WEEK = "7d"
    MONTH = "30d"

    @property
    def step(self) -> timedelta:
        """The length of one interval."""
        return {"24h": timedelta(hours=1), "7d": timedelta(hours=6), "30d": timedelta(days=1)}[self.value]

    @property
    def intervals(self) -> int:
        """The number of intervals."""
        return {"24h": 24, "7d": 28, "30d": 30}[self.value]

    def edges(self, now: datetime) -> list[datetime]:
        """The starts of the intervals, at whole steps (UTC), and `now`, at which the last one ends."""
        last = EPOCH + (now - EPOCH - timedelta(microseconds=1)) // self.step * self.step
        return [*(last - (self.intervals - 1 - number) * self.step for number in range(self.intervals)), now]


class Grouping(StrEnum):
    """What the costs are split by."""

    POOL = "pool"
    MODEL = "model"
    TEAM = "team"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostInterval:
    """The cost of one interval, as `gpufleet report cost` computes it for the same time."""

    start: datetime
    end: datetime
    spend: Spend
    is_collected: bool
    """False: the cost watchdog was not running in a part of it, so instances may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostHistory:
    """What the page shows of one fleet and one period."""

    period: Period
    known_until: datetime | None
    """The last complete pass of the cost watchdog; None: there was none."""
    intervals: Sequence[CostInterval]
    acts: Sequence[LedgerEntry] = ()
    """The last actions of the period, newest first."""
    waste: Sequence[Waste] = ()
    """Of the last 24 hours, the most expensive first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A cost to show."""

    dollar_seconds: Decimal
    is_lower_bound: bool
    """A price is missing, or the ledger has a gap."""

    @property
    def is_known(self) -> bool:
        """A lower bound of 0 is not information."""
        return not self.is_lower_bound or bool(self.dollar_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One part over time."""

    name: str
    amounts: Sequence[Amount]
    """One for each interval."""

    @property
    def total(self) -> Amount:
        """Of the whole period."""
        return added(self.amounts)


def added(amounts: Sequence[Amount]) -> Amount:
    """The exact sum."""
    return Amount(
        dollar_seconds=money.total(one.dollar_seconds for one in amounts),
        is_lower_bound=any(one.is_lower_bound for one in amounts),
    )


def totals(history: CostHistory) -> list[Amount]:
    """The cost of the whole fleet in each interval."""
    return [_amount(one, one.spend.total) for one in history.intervals]


def series(history: CostHistory, by: Grouping) -> list[Series]:
    """Every part with its costs, the most expensive first."""
    names = {name for one in history.intervals for grouping, name in one.spend.by_part if grouping == by}

    def of(part: Part) -> Series:
        return Series(name=part[1], amounts=[_amount(one, one.spend.of(part)) for one in history.intervals])

    return sorted((of((by.value, name)) for name in names), key=lambda one: (-one.total.dollar_seconds, one.name))


def drawn(found: Sequence[Series]) -> list[Series]:
    """The series of the chart: the first ones, and the sum of the others."""
    if len(found) <= MAX_SERIES + 1:
        return list(found)
    smaller = found[MAX_SERIES:]
    others = [added([one.amounts[number] for one in smaller]) for number in range(len(smaller[0].amounts))]
    return [*found[:MAX_SERIES], Series(name=f"{len(smaller)} others", amounts=others)]


def _amount(interval: CostInterval, cost: Cost) -> Amount:
    return Amount(dollar_seconds=cost.amount, is_lower_bound=bool(cost.unpriced) or not interval.is_collected)
