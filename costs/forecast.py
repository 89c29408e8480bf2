"""What the month will cost, and how much of the budget that is. Pure.

Method: what the month has cost so far, plus its remaining days at the mean of the known full days (at most 28); the
range takes the 10th and 90th percentile of those days instead of the mean. A day on which nobody collected costs is
unknown: it tells nothing of other days, and a day of the month is expected to have cost as much as a known one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from zoneinfo import ZoneInfo

from gpufleet.domain import money
from ledger.teams import Interval

THRESHOLDS = (Decimal("0.5"), Decimal("0.8"), Decimal("1"))
"""Shares of a budget at which people are told."""
KNOWN_DAYS = timedelta(days=28)
"""How far back full days make a forecast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The month's cost in USD."""

    spent: Decimal
    expected: Decimal
    low: Decimal
    high: Decimal
    days_known: int
    """Full days that the rest was computed from; with none there is only what was spent."""
    days_unknown: int = 0
    """Full days of the same span on which nobody collected costs."""
    days_lost: int = 0
    """Those of the month. `expected` takes each for as dear as a known day, `spent` holds a lower bound of them."""
    unpriced: tuple[str, ...] = ()
    """What of the month has no price: neither sum holds it."""

    @property
    def unknown(self) -> tuple[str, ...]:
        """What of the month is not in `spent`, which is a lower bound then."""
        days = (f"{self.days_lost} days of the month were not collected",) if self.days_lost else ()
        return (*days, *(f"no price of {name}" for name in self.unpriced))


class BudgetState(StrEnum):
    """How a budget stands."""

    WITHIN = "within"
    UNKNOWN = "unknown in part"
    """What is known is within it."""
    WARNED = "above a threshold"
    WILL_EXCEED = "will be exceeded"
    EXCEEDED = "exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """A monthly budget and what is used of it."""

    usd_per_month: Decimal
    spent: Decimal
    expected: Decimal
    state: BudgetState
    crossed: tuple[Decimal, ...]
    """Thresholds that what was spent has reached."""
    unknown: tuple[str, ...] = ()
    """What is not in `spent`, which is a lower bound then."""

    @property
    def share(self) -> Decimal:
        """Used share; of a budget of nothing, 1 as soon as anything was spent."""
        if self.usd_per_month == 0:
            return Decimal(1) if self.spent else Decimal(0)
        return (self.spent / self.usd_per_month).quantize(Decimal("0.0001"))


def month_of(moment: datetime, timezone: str) -> tuple[datetime, datetime]:
    """Start and end of the month in a time zone; a DST change makes it an hour longer or shorter."""
    local = moment.astimezone(ZoneInfo(timezone))
    start = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
    following = (start.replace(day=28) + timedelta(days=4)).replace(day=1)
    return start.astimezone(UTC), following.astimezone(UTC)


def local_days(since: datetime, until: datetime, timezone: str) -> list[tuple[datetime, datetime]]:
    """Full days of a time zone that lie inside a window: 23, 24 or 25 hours long."""
    zone = ZoneInfo(timezone)
    start = since.astimezone(zone)
    first = start.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if first < start:
        first += timedelta(days=1)
    days: list[tuple[datetime, datetime]] = []
    while first + timedelta(days=1) <= until.astimezone(zone):
        # wall-clock arithmetic: the next midnight, whatever happens at night; in UTC, where differences are true
        days.append((first.astimezone(UTC), (first + timedelta(days=1)).astimezone(UTC)))
        first += timedelta(days=1)
    return days


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """The month that a moment lies in, cut into intervals whose costs make its forecast."""

    days: Sequence[Interval]
    """Full days that are known, at most 28; they may lie before the month."""
    beside: Sequence[Interval]
    """What of the month lies beside its full days. Teams are split by the same days everywhere."""
    start: datetime
    days_left: Decimal

    @property
    def intervals(self) -> list[Interval]:
        """All of them."""
        return [*self.days, *self.beside]

    def forecast(
        self,
        amounts: Mapping[Interval, Decimal],
        uncollected: Collection[Interval] = (),
        unpriced: Sequence[str] = (),
    ) -> Forecast:
        """The forecast from what each interval cost, in dollar-seconds. `uncollected`: days of which nothing is known
        but a lower bound; `unpriced`: what of the month has no price.
        """
        inside = [day for day in self.days if day[0] >= self.start]
        spent = money.usd(money.total(amounts[interval] for interval in (*inside, *self.beside)))
        known = [money.usd(amounts[day]) for day in self.days if day not in uncollected]
        lost = [money.usd(amounts[day]) for day in inside if day in uncollected]
        return replace(
            forecast(spent, known, self.days_left, lost),
            days_unknown=len(self.days) - len(known),
            days_lost=len(lost),
            unpriced=tuple(unpriced),
        )


def month(moment: datetime, timezone: str, begun: datetime | None) -> Month:
    """The month of a moment. `begun`: since when costs are known; None: they are not."""
    start, end = month_of(moment, timezone)
    since = moment if begun is None else max(begun, moment - KNOWN_DAYS)
    days = local_days(since, moment, timezone)
    inside = [day for day in days if day[0] >= start]
    parts = [(start, inside[0][0]), (inside[-1][1], moment)] if inside else [(start, moment)]
    left = Decimal(str((end - moment).total_seconds())) / 86_400
    return Month(
        days=days,
        beside=[(first, last) for first, last in parts if first < last],
        start=start,
        days_left=max(left, Decimal(0)),
    )


def forecast(
    spent: Decimal, full_days: Sequence[Decimal], days_left: Decimal, lost: Sequence[Decimal] = ()
) -> Forecast:
    """The month's cost from what was spent and what full days cost. `lost`: what is known of days of the month that
    nobody collected; it is in `spent`, too.
    """
    known = sorted(full_days[-28:])
    if not known:
        return Forecast(spent=spent, expected=spent, low=spent, high=spent, days_known=0)
    mean = sum(known, money.ZERO) / len(known)
    low, high = known[(len(known) - 1) * 10 // 100], known[-1 - (len(known) - 1) * 10 // 100]
    steps = [
        (spent + day * days_left + money.total(max(money.ZERO, day - part) for part in lost)).quantize(money.CENT)
        for day in (mean, low, high)
    ]
    return Forecast(spent=spent, expected=steps[0], low=steps[1], high=steps[2], days_known=len(known))


def budget_use(usd_per_month: Decimal, month: Forecast, thresholds: Sequence[Decimal] = THRESHOLDS) -> BudgetUse:
    """How a budget stands."""
    crossed = tuple(share for share in sorted(thresholds) if month.spent and month.spent >= share * usd_per_month)
    if month.spent > usd_per_month:
        state = BudgetState.EXCEEDED
    elif month.expected > usd_per_month:
        state = BudgetState.WILL_EXCEED
    elif crossed:
        state = BudgetState.WARNED
    else:
        state = BudgetState.UNKNOWN if month.unknown else BudgetState.WITHIN
    return BudgetUse(
        usd_per_month=usd_per_month,
        spent=month.spent,
        expected=month.expected,
        state=state,
        crossed=crossed,
        unknown=month.unknown,
    )
