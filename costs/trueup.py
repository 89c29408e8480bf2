"""A bill against the ledger: the difference of each resource and why. Pure.

Resources are compared over the whole span; those that differ by more than half a cent are compared again hour by hour
(day by day, where the bill has no hours). There: hours part = (billed − known hours) × the known price, and the rest
is price, so that both add up to the difference exactly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final

from costs.allocation import Charge, Facts, Kind, charges
from costs.bills import Bill, BillError, Line
from prices.book import PriceBook

SAME: Final = Decimal("0.005")
"""Differences up to half a cent are none: bills round their lines."""


class Cause(StrEnum):
    """Why bill and ledger differ."""

    PRICE = "price"
    HOURS = "hours"
    PRICE_OR_HOURS = "price or hours"
    """The bill does not count hours."""
    UNKNOWN = "unknown resource"
    """Billed, and not in the ledger."""
    UNBILLED = "not in the bill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One resource; `parts` add up to billed − computed."""

    resource: str
    billed: Fraction
    computed: Fraction
    parts: Mapping[Cause, Fraction]

    @property
    def usd(self) -> Fraction:
        return self.billed - self.computed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueUp:
    """A whole bill against the same span of the ledger, in USD."""

    since: datetime
    until: datetime
    billed: Fraction
    computed: Fraction
    same: int
    """Resources that agree."""
    differences: Sequence[Difference]

    @property
    def by_cause(self) -> dict[Cause, Fraction]:
        sums = {cause: Fraction(0) for cause in Cause}
        for one in self.differences:
            for cause, usd in one.parts.items():
                sums[cause] += usd
        return sums


def span_of(bill: Bill) -> tuple[datetime, datetime]:
    """From the first to the last moment that the bill has a line for. Raises BillError without any."""
    if not bill.lines:
        raise BillError(f"the {bill.form} has no line of an instance or a capacity reservation")
    return min(line.start for line in bill.lines), max(line.end for line in bill.lines)


def true_up(bill: Bill, facts: Facts, book: PriceBook, since: datetime, until: datetime) -> TrueUp:
    """Compare. Lines outside of the span are left out. Raises BillError for a bill that is short."""
    inside = [line for line in bill.lines if since <= line.start < until]
    ours = _sums(charges(facts, book, since, until, allow_unpriced=True))
    _refuse_short(inside, facts, since, until)
    theirs: dict[str, list[Line]] = {}
    for line in inside:
        theirs.setdefault(line.resource, []).append(line)
    found: list[Difference] = []
    same = 0
    step = _step(inside)
    for resource in sorted(ours.keys() | theirs.keys()):
        billed = sum((Fraction(line.usd) for line in theirs.get(resource, ())), Fraction(0))
        computed = ours.get(resource, (Fraction(0), Fraction(0)))[0]
        if abs(billed - computed) <= Fraction(SAME) and resource in ours and resource in theirs:
            same += 1
            continue
        if billed == computed:
            continue  # nothing on either side
        parts = _parts(resource, theirs.get(resource), ours.get(resource), (facts, book, since, until, step))
        found.append(Difference(resource=resource, billed=billed, computed=computed, parts=parts))
    return TrueUp(
        since=since,
        until=until,
        billed=sum((Fraction(line.usd) for line in inside), Fraction(0)),
        computed=sum((usd for usd, _ in ours.values()), Fraction(0)),
        same=same,
        differences=sorted(found, key=lambda one: (-abs(one.usd), one.resource)),
    )


_Sum = tuple[Fraction, Fraction]
"""USD and instance hours."""


def _sums(found: Iterable[Charge]) -> dict[str, _Sum]:
    sums: dict[str, _Sum] = {}
    for charge in found:
        usd, hours = sums.get(charge.resource, (Fraction(0), Fraction(0)))
        if charge.amount is not None:
            usd += Fraction(charge.amount) / 3600
        if charge.kind in (Kind.TIME, Kind.RESERVATION):
            hours += Fraction(charge.duration // timedelta(microseconds=1), 3_600_000_000)
        sums[charge.resource] = usd, hours
    return sums


def _parts(
    resource: str,
    lines: Sequence[Line] | None,
    ours: _Sum | None,
    world: tuple[Facts, PriceBook, datetime, datetime, timedelta | None],
) -> dict[Cause, Fraction]:
    billed = sum((Fraction(line.usd) for line in lines or ()), Fraction(0))
    if ours is None:
        return {Cause.UNKNOWN: billed}
    if lines is None:
        return {Cause.UNBILLED: -ours[0]}
    if all(line.hours is None for line in lines):
        return {Cause.PRICE_OR_HOURS: billed - ours[0]}
    parts = {Cause.PRICE: Fraction(0), Cause.HOURS: Fraction(0)}
    rest = ours[0]
    for (start, end), mine in _cells(lines, world[2:]).items():
        known = _of(resource, world[0], world[1], start, end)
        rest -= known[0]
        usd = sum((Fraction(line.usd) for line in mine), Fraction(0))
        hours = sum((Fraction(line.hours) for line in mine if line.hours is not None), Fraction(0))
        by_hours = (hours - known[1]) * known[0] / known[1] if known[1] else usd - known[0]
        parts[Cause.HOURS] += by_hours
        parts[Cause.PRICE] += usd - known[0] - by_hours
    parts[Cause.HOURS] -= rest  # hours that the bill has no line for
    return parts


def _of(resource: str, facts: Facts, book: PriceBook, start: datetime, end: datetime) -> _Sum:
    runs = [run for run in facts.runs if run.instance_id == resource]
    paid = [one for one in facts.reservations if one.reservation == resource]
    mine = Facts(runs=facts.runs, reservations=paid) if paid else Facts(runs=runs)
    found = charges(mine, book, start, end, allow_unpriced=True)
    return _sums(found).get(resource, (Fraction(0), Fraction(0)))


def _step(lines: Iterable[Line]) -> timedelta | None:
    """The finest grid that no line crosses: an hour, a day, or None."""
    steps = (timedelta(hours=1), timedelta(days=1))
    kept = list(lines)
    return next((step for step in steps if all(_floor(line.start, step) + step >= line.end for line in kept)), None)


def _floor(moment: datetime, step: timedelta) -> datetime:
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (moment - midnight) // step * step


def _cells(
    lines: Iterable[Line], span: tuple[datetime, datetime, timedelta | None]
) -> dict[tuple[datetime, datetime], list[Line]]:
    since, until, step = span
    cells: dict[tuple[datetime, datetime], list[Line]] = {}
    for line in lines:
        begin = since if step is None else max(_floor(line.start, step), since)
        end = until if step is None else min(_floor(line.start, step) + step, until)
        cells.setdefault((begin, end), []).append(line)
    return cells


def _refuse_short(lines: Sequence[Line], facts: Facts, since: datetime, until: datetime) -> None:
    """A day on which the ledger knows instances and the bill nothing at all is missing from the bill."""
    day = timedelta(days=1)
    billed = {
        _floor(line.start, day) + n * day
        for line in lines
        for n in range(max(1, -((_floor(line.start, day) - line.end) // day)))
    }
    missing: list[datetime] = []
    at = _floor(since, day)
    while at < until:
        begin, end = max(at, since), min(at + day, until)
        ran = any(run.started_at < end and (run.ended_at or run.last_seen_at) > begin for run in facts.runs)
        if ran and at not in billed:
            missing.append(at)
        at += day
    if missing:
        raise BillError(
            f"the bill has no line for {len(missing)} days on which instances ran ({missing[0]:%Y-%m-%d} to"
            f" {missing[-1]:%Y-%m-%d}): it is short; wait for the whole bill, or name its part with"
            " --since and --until"
        )
