"""The forecast of the month's cost, and how much of the budget it uses. Pure.

Method: the cost of the month so far, plus its remaining days at the mean of the full days (at most 28). The range
uses the 10th and 90th percentile of those days instead of the mean. Each day has the weight of its collected share
(a pass covers the hour before it); the range leaves out days of which less than half was collected. Time of the month
that was not collected is expected to cost as much as a known day. Time before the ledger began is not estimated.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from zoneinfo import ZoneInfo

from gpufleet.domain import money
from gpufleet.ledger.teams import Interval

_DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
_HALF = Decimal("0.5")
THRESHOLDS = (Decimal("0.5"), Decimal("0.8"), Decimal("1"))
"""Shares of a budget at which people are notified."""
KNOWN_DAYS = timedelta(days=28)
"""The forecast is based on the full days of this span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one interval: amounts in dollar-seconds, or in USD where stated."""

    amount: Decimal
    """The value used."""
    too_much: Decimal = money.ZERO
    """The largest amount by which `amount` may be too high: see gpufleet.costs.uncertainty."""
    too_little: Decimal = money.ZERO
    """The largest amount by which `amount` may be too low, as far as prices are known."""
    unpriced: frozenset[str] = frozenset()
    """Charges without a price; no amount includes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The month's cost in USD."""

    spent: Decimal
    """The value used; it is between `at_least` and `at_most`."""
    expected: Decimal
    low: Decimal
    high: Decimal
    days_known: Decimal
    """Full days that the remaining days are estimated from, weighted by their collected share; 0: no estimate, only
    `spent`."""
    days_unknown: Decimal = money.ZERO
    """The part of those days that was not collected. `expected` includes its part in the month at the cost of a known
    day."""
    too_much: Decimal = money.ZERO
    """The largest amount by which `spent` may be too high."""
    too_little: Decimal = money.ZERO
    """The largest amount by which `spent` may be too low, of time that was collected and has a price."""
    unpriced: tuple[str, ...] = ()
    """Charges of the month without a price; no sum includes them."""
    not_collected: tuple[Interval, ...] = ()
    """Times of the month without a pass since the ledger began."""
    before: Interval | None = None
    """The time of the month before the ledger began; no sum includes runs that had ended by then."""

    @property
    def at_least(self) -> Decimal:
        """The lower bound of `spent`."""
        return self.spent - self.too_much

    @property
    def at_most(self) -> Decimal | None:
        """The upper bound of `spent`; None: something has no price or was not collected."""
        if self.unpriced or self.not_collected or self.before is not None:
            return None
        return self.spent + self.too_little

    @property
    def unknown(self) -> tuple[str, ...]:
        """The reasons why `spent` is not exact, for people."""
        found: list[str] = []
        if self.before is not None:
            found.append(f"not collected before {self.before[1]:%Y-%m-%d %H:%M} UTC")
        if self.not_collected:
            hours = sum((end - start for start, end in self.not_collected), timedelta()) / HOUR
            start, end = self.not_collected[0]
            more = f", and {len(self.not_collected) - 1} more" if len(self.not_collected) > 1 else ""
            found.append(f"{hours:,.1f} h not collected ({start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC{more})")
        found += [f"no price for {name}" for name in self.unpriced]
        if self.too_little or self.too_much:
            less = f", or {self.too_much.quantize(money.CENT)} USD less" if self.too_much else ""
            more = self.too_little.quantize(money.CENT)
            found.append(f"known between bounds: at most {more} USD more{less}")
        return tuple(found)


class BudgetState(StrEnum):
    """The state of a budget."""

    WITHIN = "within"
    UNKNOWN = "unknown in part"
    """The known cost is within the budget."""
    WARNED = "above a threshold"
    WILL_EXCEED = "will be exceeded"
    EXCEEDED = "exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """A monthly budget and its use."""

    usd_per_month: Decimal
    spent: Decimal
    expected: Decimal
    state: BudgetState
    crossed: tuple[Decimal, ...]
    """Thresholds that `spent` has reached."""
    unknown: tuple[str, ...] = ()
    """The reasons why `spent` is not exact, for people."""
    at_least: Decimal = money.ZERO
    """The lower bound of `spent`."""
    at_most: Decimal | None = None
    """The upper bound of `spent`; None: something has no price or was not collected."""
    lacking: bool = False
    """Whether a price or collected time is missing, or the upper bound exceeds the budget."""

    @property
    def is_lower_bound(self) -> bool:
        """Whether `spent` is a lower bound."""
        return bool(self.unknown) and self.at_least == self.spent

    @property
    def share(self) -> Decimal:
        """The used share of the budget; for a budget of 0, 1 as soon as anything was spent."""
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
    """Full days of a time zone inside a window: 23, 24 or 25 hours long."""
    zone = ZoneInfo(timezone)
    start = since.astimezone(zone)
    first = start.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if first < start:
        first += timedelta(days=1)
    days: list[tuple[datetime, datetime]] = []
    while first + timedelta(days=1) <= until.astimezone(zone):
        # wall-clock arithmetic finds the next midnight across DST changes; UTC makes differences exact
        days.append((first.astimezone(UTC), (first + timedelta(days=1)).astimezone(UTC)))
        first += timedelta(days=1)
    return days


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """The month of a moment, cut into the intervals whose costs its forecast needs."""

    days: Sequence[Interval]
    """Known full days, at most 28; they may be before the month."""
    edges: Sequence[Interval]
    """The time of the month outside its full days. Costs of teams are split by the same intervals."""
    start: datetime
    moment: datetime
    begun: datetime | None
    """Since when costs are known; None: they are not."""
    days_left: Decimal

    @property
    def intervals(self) -> list[Interval]:
        """All of them."""
        return [*self.days, *self.edges]

    def forecast(
        self,
        costs: Mapping[Interval, Cost],
        uncollected: Collection[Interval] = (),
        last: datetime | None = None,
    ) -> Forecast:
        """The forecast from what each interval cost, in dollar-seconds. `uncollected`: times without a pass; `last`:
        the last pass.
        """
        of_month = [*(day for day in self.days if day[0] >= self.start), *self.edges]
        total = sum_of(costs[interval] for interval in of_month)
        gaps = [span for span in uncollected if self.begun is not None and span[1] > self.begun]
        # a pass sees what ended within the hour before it
        lost = [(start, end - HOUR if last is not None and end <= last else end) for start, end in gaps]
        whole = [IntervalCost(money.usd(costs[day].amount), *_lengths(day, lost)) for day in self.days]
        inside = [IntervalCost(money.usd(costs[part].amount), *_lengths(part, lost)) for part in of_month]
        before = min(self.begun or self.moment, self.moment)
        return replace(
            forecast(money.usd(total.amount), whole, self.days_left, inside),
            too_much=money.usd(total.too_much),
            too_little=money.usd(total.too_little),
            unpriced=tuple(sorted(total.unpriced)),
            not_collected=tuple(
                (max(start, self.start), end) for start, end in gaps if end > self.start and start < self.moment
            ),
            before=(self.start, before) if before > self.start else None,
        )


@dataclass(frozen=True, slots=True)
class IntervalCost:
    """The cost of an interval in USD, its length in days, and the days that were not collected."""

    usd: Decimal
    days: Decimal
    lost: Decimal

    @property
    def known(self) -> Decimal:
        """The collected share."""
        return 1 - self.lost / self.days if self.days else Decimal(1)

    def missing(self, usd_per_day: Decimal) -> Decimal:
        """The missing cost, if time that was not collected cost `usd_per_day`."""
        if not self.lost:
            return money.ZERO
        return max(money.ZERO, usd_per_day * self.days - self.usd) * self.lost / self.days


def _lengths(interval: Interval, lost: Collection[Interval]) -> tuple[Decimal, Decimal]:
    start, end = interval
    spans = ((max(start, since), min(end, until)) for since, until in lost)
    missing = sum((until - since for since, until in spans if since < until), timedelta())
    return _days(end - start), _days(missing)


def _days(duration: timedelta) -> Decimal:
    return money.seconds(duration) / money.seconds(_DAY)


def sum_of(costs: Iterable[Cost]) -> Cost:
    """All of them."""
    every = list(costs)
    return Cost(
        amount=money.total(one.amount for one in every),
        too_much=money.total(one.too_much for one in every),
        too_little=money.total(one.too_little for one in every),
        unpriced=frozenset[str]().union(*(one.unpriced for one in every)),
    )


def month(moment: datetime, timezone: str, begun: datetime | None) -> Month:
    """The month of a moment. `begun`: since when costs are known; None: they are unknown."""
    start, end = month_of(moment, timezone)
    since = moment if begun is None else max(begun, moment - KNOWN_DAYS)
    days = local_days(since, moment, timezone)
    inside = [day for day in days if day[0] >= start]
    parts = [(start, inside[0][0]), (inside[-1][1], moment)] if inside else [(start, moment)]
    left = Decimal(str((end - moment).total_seconds())) / 86_400
    return Month(
        days=days,
        edges=[(first, last) for first, last in parts if first < last],
        start=start,
        moment=moment,
        begun=begun,
        days_left=max(left, Decimal(0)),
    )


def forecast(
    spent: Decimal, days: Sequence[IntervalCost], days_left: Decimal, month: Sequence[IntervalCost] = ()
) -> Forecast:
    """The month's cost from what was spent and what full days cost. `month`: the intervals of the month."""
    some = [day for day in days[-28:] if day.known > 0]
    if not some:
        unknown = sum((1 - day.known for day in days[-28:]), money.ZERO)
        return Forecast(
            spent=spent, expected=spent, low=spent, high=spent, days_known=money.ZERO, days_unknown=unknown
        )
    weight = sum((day.known for day in some), money.ZERO)
    mean = sum((day.usd * day.known for day in some), money.ZERO) / weight
    usual = sorted(day.usd for day in some if day.known >= _HALF) or [mean]
    low, high = usual[(len(usual) - 1) * 10 // 100], usual[-1 - (len(usual) - 1) * 10 // 100]
    steps = [
        (spent + day * days_left + sum((part.missing(day) for part in month), money.ZERO)).quantize(money.CENT)
        for day in (mean, low, high)
    ]
    known = weight.quantize(money.CENT)
    return Forecast(
        spent=spent,
        expected=steps[0],
        low=min(steps),
        high=max(steps),
        days_known=known,
        days_unknown=len(days[-28:]) - known,
    )


def budget_use(usd_per_month: Decimal, month: Forecast, thresholds: Sequence[Decimal] = THRESHOLDS) -> BudgetUse:
    """The use and the state of a budget."""
    crossed = tuple(share for share in sorted(thresholds) if month.spent and month.spent >= share * usd_per_month)
    if month.spent > usd_per_month:
        state = BudgetState.EXCEEDED
    elif month.expected > usd_per_month:
        state = BudgetState.WILL_EXCEED
    elif crossed:
        state = BudgetState.WARNED
    else:
        state = BudgetState.UNKNOWN if month.unknown else BudgetState.WITHIN
    most = month.spent + month.too_little
    return BudgetUse(
        usd_per_month=usd_per_month,
        spent=month.spent,
        expected=month.expected,
        state=state,
        crossed=crossed,
        unknown=month.unknown,
        at_least=month.at_least,
        at_most=month.at_most,
        lacking=bool(month.unpriced or month.not_collected) or most > usd_per_month,
    )
