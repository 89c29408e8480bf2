"""Compares a bill with the ledger: the difference of each resource and its cause. Pure.

It compares: instances and capacity reservations by their ids; shared resources by their sku (the ids of volumes and
gateways are only in the bill); a Capacity Block together with its instances, since its fee pays for them; and the
unused part of all spend commitments together.

Everything is compared over the whole span. Differences of more than half a cent are compared again hour by hour (day
by day, if the bill has no hours). There, the hours part is (billed − known hours) × the known price, and the price
part is the remainder, so that both add up to the difference exactly.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Final

from gpufleet.costs.allocation import Charge, ChargeKind, LedgerFacts, charges, declared_spans
from gpufleet.costs.bills import Bill, BillError, BillLine
from gpufleet.costs.commitments import BlockCommitment, end_of
from gpufleet.prices.book import PriceBook

SAME: Final = Decimal("0.005")
"""Differences up to half a cent are ignored: bills round their lines."""

_Cell = tuple[datetime, datetime]

COMMITMENTS: Final = "commitments, not used"
"""The key of all Savings Plans and CUDs: bills name them by ids, documents by names."""


class DifferenceCause(StrEnum):
    """The cause of a difference between bill and ledger."""

    PRICE = "price"
    HOURS = "hours"
    PRICE_OR_HOURS = "price or hours"
    """The bill does not count hours."""
    UNKNOWN = "unknown resource"
    """Billed, and not in the ledger."""
    UNBILLED = "not in the bill"
    AHEAD = "paid ahead"
    """A fee is billed upfront, and computed over its time."""
    COVERAGE = "use of commitments"
    """The cloud covered other hours than the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One resource; `parts` add up to billed − computed."""

    resource: str
    billed: Fraction
    computed: Fraction
    parts: Mapping[DifferenceCause, Fraction]

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
    agreeing: Fraction
    """The sum of their differences, each less than half a cent."""
    not_compared: Fraction
    """Lines of shared resources that the fleet document does not list; not in `billed`."""
    differences: Sequence[Difference]
    unpriced: tuple[str, ...] = ()
    """Items without a price. If there are any, `computed` is a lower bound; their bill is a price difference."""

    @property
    def by_cause(self) -> dict[DifferenceCause, Fraction]:
        sums = {cause: Fraction(0) for cause in DifferenceCause}
        for one in self.differences:
            for cause, usd in one.parts.items():
                sums[cause] += usd
        return sums


def span_of(bill: Bill) -> tuple[datetime, datetime]:
    """From the first to the last moment that the bill has a line for. Raises BillError without any."""
    lines = [line for line in bill.lines if line.resource and not line.fee]
    if not lines:
        raise BillError(f"the {bill.form} has no line for an instance or a capacity reservation")
    return min(line.start for line in lines), max(line.end for line in lines)


def true_up(bill: Bill, facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime) -> TrueUp:
    """Compare the bill with the facts, without lines outside the span. Raises BillError if days are missing."""
    keys = _Keys(facts)
    inside = [line for line in bill.lines if line.resource and since <= line.start < until]
    _refuse_short(inside, facts, since, until)
    bill_of_ours = list(charges(facts, book, since, until, allow_unpriced=True))
    ours = _ours(bill_of_ours, _shared_units(facts, book, since, until), keys)
    theirs, not_compared = dict[str, list[_Billed]](), Fraction(0)
    for line in bill.lines:
        billed, key = keys.share(line, _within(line, since, until)), keys.of_line(line)
        if billed is not None and key is not None:
            theirs.setdefault(key, []).append(billed)
        elif billed is not None:
            not_compared += billed.usd
    found: list[Difference] = []
    same, agreeing = 0, Fraction(0)
    for key in sorted(ours.keys() | theirs.keys()):
        billed, computed = _sum(theirs.get(key, ())), _sum(ours.get(key, ()))
        if abs(billed - computed) <= Fraction(SAME) and key in ours and key in theirs:
            same, agreeing = same + 1, agreeing + billed - computed
        elif billed != computed:
            parts = _parts(theirs.get(key), ours.get(key), (since, until), keys.special(key))
            found.append(Difference(resource=key, billed=billed, computed=computed, parts=parts))
    return TrueUp(
        since=since,
        until=until,
        billed=_sum(line for lines in theirs.values() for line in lines),
        computed=_sum(piece for pieces in ours.values() for piece in pieces),
        same=same,
        agreeing=agreeing,
        not_compared=not_compared,
        differences=sorted(found, key=lambda one: (-abs(one.usd), one.resource)),
        unpriced=tuple(sorted({charge.priced_as for charge in bill_of_ours if charge.amount is None})),
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """USD and hours over a span, even within it."""

    start: datetime
    end: datetime
    usd: Fraction
    hours: Fraction


@dataclass(frozen=True, slots=True)
class _Billed:
    """The part of a line that is in the window."""

    start: datetime
    end: datetime
    usd: Fraction
    hours: Fraction | None
    fee: bool


class _Keys:
    """The keys under which charges and bill lines are compared."""

    def __init__(self, facts: LedgerFacts) -> None:
        every = [facts.declared, *(period.declared for period in facts.periods)]
        self._blocks = {block.reservation: block for declared in every for block in declared.blocks}
        self._in_block = {
            run.instance_id: run.reservation
            for run in facts.runs
            if run.reservation is not None and run.reservation in self._blocks
        }
        self._known = {run.instance_id for run in facts.runs} | {one.reservation for one in facts.reservations}
        self._declared_shares = {
            one.reservation: Fraction(one.seats, one.instances)
            for one in facts.reservations
            if one.seats is not None and one.seats < one.instances
        }
        self._shared = {one.sku for declared in every for one in declared.shared}
        self._commitments = any(declared.spends for declared in every)

    def share(self, line: BillLine, billed: "_Billed | None") -> "_Billed | None":
        """A line of a shared reservation, reduced to this fleet's share: the bill contains all unused instances."""
        part = self._declared_shares.get(line.resource)
        return billed if billed is None or part is None else replace(billed, usd=billed.usd * part)

    def of_charge(self, charge: Charge) -> str:
        if charge.kind is ChargeKind.COMMITTED:
            return COMMITMENTS
        if charge.kind is ChargeKind.SHARED:
            return charge.machine_type
        return self._in_block.get(charge.resource, charge.resource)

    def of_line(self, line: BillLine) -> str | None:
        """None: the line is not compared."""
        if line.unused:
            return COMMITMENTS if self._commitments else None
        if not line.resource or (line.resource not in self._known and line.sku in self._shared):
            return line.sku if line.sku in self._shared else None
        return self._in_block.get(line.resource, line.resource)

    def special(self, key: str) -> BlockCommitment | None | DifferenceCause:
        """A Capacity Block, or the one cause that a key can have."""
        return DifferenceCause.COVERAGE if key == COMMITMENTS else self._blocks.get(key)


def _ours(
    bill: Iterable[Charge], shared: Iterable[tuple[str, datetime, datetime, Decimal]], keys: _Keys
) -> dict[str, list[_Piece]]:
    found: dict[str, list[_Piece]] = {}
    for charge in bill:
        usd = Fraction(0) if charge.amount is None else Fraction(charge.amount) / 3600
        counts = charge.kind in (ChargeKind.TIME, ChargeKind.RESERVATION)
        piece = _Piece(charge.start, charge.end, usd, _hours(charge.duration) if counts else Fraction(0))
        found.setdefault(keys.of_charge(charge), []).append(piece)
    for sku, start, end, units in shared:
        found.setdefault(sku, []).append(_Piece(start, end, Fraction(0), _hours(end - start) * Fraction(units)))
    return found


def _shared_units(
    facts: LedgerFacts, book: PriceBook, since: datetime, until: datetime
) -> Iterator[tuple[str, datetime, datetime, Decimal]]:
    """The units of each shared sku over time, because its charges are split over the pools."""
    with_each = [(run.started_at, end_of(run)) for run in facts.runs]
    for declared in declared_spans(facts.over_time(book), since, until):
        one = declared.shared
        for span in with_each if one.per_instance else [facts.known]:
            start, end = (max(span[0], declared.start), min(span[1], declared.end)) if span else (until, until)
            if start < end:
                yield one.sku, start, end, one.units


def _within(line: BillLine, since: datetime, until: datetime) -> _Billed | None:
    """Lines of instances count where they start, because bills split them by hour; others by their share."""
    usd, hours = Fraction(line.usd), None if line.hours is None else Fraction(line.hours)
    if line.resource or line.start >= line.end:
        inside = since <= line.start < until
        return _Billed(line.start, line.end, usd, hours, line.fee) if inside else None
    start, end = max(line.start, since), min(line.end, until)
    if start >= end:
        return None
    share = _hours(end - start) / _hours(line.end - line.start)
    return _Billed(start, end, usd * share, None if hours is None else hours * share, line.fee)


def _parts(
    lines: Sequence[_Billed] | None,
    ours: Sequence[_Piece] | None,
    window: tuple[datetime, datetime],
    special: BlockCommitment | None | DifferenceCause,
) -> dict[DifferenceCause, Fraction]:
    billed, computed = _sum(lines or ()), _sum(ours or ())
    if isinstance(special, DifferenceCause):
        return {special: billed - computed}
    if special is not None and (ahead := _ahead(special, lines or (), computed)) is not None:
        return ahead
    if ours is None:
        return {DifferenceCause.UNKNOWN: billed}
    if lines is None:
        return {DifferenceCause.UNBILLED: -computed}
    if all(line.hours is None for line in lines):
        return {DifferenceCause.PRICE_OR_HOURS: billed - computed}
    parts = {DifferenceCause.PRICE: Fraction(0), DifferenceCause.HOURS: Fraction(0)}
    cells = _cells(lines, window)
    known = _cut(ours, sorted(cells))
    for cell, mine in cells.items():
        usd, hours = _sum(mine), sum((line.hours for line in mine if line.hours is not None), Fraction(0))
        known_usd, known_hours = known[cell]
        by_hours = (hours - known_hours) * known_usd / known_hours if known_hours else usd - known_usd
        parts[DifferenceCause.HOURS] += by_hours
        parts[DifferenceCause.PRICE] += usd - known_usd - by_hours
    # hours without a line in the bill
    parts[DifferenceCause.HOURS] -= computed - sum((usd for usd, _ in known.values()), Fraction(0))
    return parts


def _ahead(
    block: BlockCommitment, lines: Sequence[_Billed], computed: Fraction
) -> dict[DifferenceCause, Fraction] | None:
    """The parts of a fee that is billed upfront; None: the bill spreads it over time."""
    billed, upfront = _sum(lines), Fraction(block.upfront_usd)
    if any(line.fee for line in lines):
        return {DifferenceCause.PRICE: billed - upfront, DifferenceCause.AHEAD: upfront - computed}
    return {DifferenceCause.AHEAD: -computed} if not billed else None


def _cut(pieces: Iterable[_Piece], cells: Sequence[_Cell]) -> dict[_Cell, tuple[Fraction, Fraction]]:
    """USD and hours of the pieces in each cell. `cells` are ordered and do not overlap.

    The states of a span share its time, so each piece is split evenly; the sums over all states are exact.
    """
    found = {cell: (Fraction(0), Fraction(0)) for cell in cells}
    ends = [end for _, end in cells]
    for piece in pieces:
        length = piece.end - piece.start
        for index in range(bisect_right(ends, piece.start), len(cells)):
            cell = cells[index]
            if cell[0] > piece.start and cell[0] >= piece.end:
                break
            start, end = max(cell[0], piece.start), min(cell[1], piece.end)
            if start > end or (start == end and length):
                continue
            share = _hours(end - start) / _hours(length) if length else Fraction(1)
            usd, hours = found[cell]
            found[cell] = usd + piece.usd * share, hours + piece.hours * share
    return found


def _sum(parts: Iterable[_Piece | _Billed]) -> Fraction:
    return sum((part.usd for part in parts), Fraction(0))


def _hours(duration: timedelta) -> Fraction:
    return Fraction(duration // timedelta(microseconds=1), 3_600_000_000)


def _step(lines: Iterable[_Billed]) -> timedelta | None:
    """The finest grid that no line crosses: an hour, a day, or None."""
    steps = (timedelta(hours=1), timedelta(days=1))
    kept = list(lines)
    return next((step for step in steps if all(_floor(line.start, step) + step >= line.end for line in kept)), None)


def _floor(moment: datetime, step: timedelta) -> datetime:
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (moment - midnight) // step * step


def _cells(lines: Sequence[_Billed], window: tuple[datetime, datetime]) -> dict[_Cell, list[_Billed]]:
    since, until = window
    step = _step(lines)
    cells: dict[_Cell, list[_Billed]] = {}
    for line in lines:
        begin = since if step is None else max(_floor(line.start, step), since)
        end = until if step is None else min(_floor(line.start, step) + step, until)
        cells.setdefault((begin, end), []).append(line)
    return cells


def _refuse_short(lines: Sequence[BillLine], facts: LedgerFacts, since: datetime, until: datetime) -> None:
    """Raises BillError if the bill has no line for a day on which instances ran."""
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
            f" {missing[-1]:%Y-%m-%d}): it is incomplete; wait for the complete bill, or select its part with"
            " --since and --until"
        )
