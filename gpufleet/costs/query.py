"""Reads the facts of one fleet for several windows: each fact once, over the longest of them.

The reports, forecasts and budgets of one use case are then computed from memory. Activity and tokens are larger than
memory: they are read window by window, and only where a report needs them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import pairwise

from sqlalchemy import Engine

from gpufleet.costs import closing, cost_owners, declarations
from gpufleet.costs.allocation import Charge, ClosedFacts, LedgerFacts, charges
from gpufleet.costs.closing import Closing
from gpufleet.costs.commitments import Coverage, DeclaredCosts
from gpufleet.costs.energy import InstanceEnergy, factor_spans, split_by_instance
from gpufleet.costs.pricing import FOREVER, PricingPeriod
from gpufleet.costs.report import NONE, QUIET, Report, ReportScope, WindowFacts, compute, uncollected
from gpufleet.costs.series import priced_alone
from gpufleet.costs.slice_bills import SliceReport, by_slice, node_bills, with_energy
from gpufleet.costs.slices import allocate
from gpufleet.costs.tokens import EngineTokens, engine_tokens
from gpufleet.costs.uncertainty import known_until
from gpufleet.domain import money
from gpufleet.domain.prices import Price
from gpufleet.ledger import declared as ledger_declared
from gpufleet.ledger import history, rollups, units
from gpufleet.ledger.closed_periods import BillConfirmation, closed_periods
from gpufleet.ledger.energy import energy_uses
from gpufleet.ledger.facts import CostPass, Reservation, Run
from gpufleet.ledger.reservations import reservations
from gpufleet.ledger.teams import Interval, team_uses
from gpufleet.prices.book import Packaged, PriceBook


class CostQuery:
    """The facts of one fleet. Call `read` with all windows first, then `known` or `report` with one of them."""

    def __init__(  # noqa: PLR0913 - what a ledger does not know of a fleet's costs
        self,
        engine: Engine,
        fleet: str,
        region: str,
        *,
        overrides: Iterable[Price] = (),
        packaged: Packaged,
        declared: DeclaredCosts = DeclaredCosts(),
    ) -> None:
        """`overrides` and `declared`: today's settings, which apply where the ledger has no declaration."""
        stated = tuple(overrides)
        self._engine, self._fleet, self._today = engine, fleet, replace(declared, prices=stated)
        with engine.connect() as connection:
            self.begun = history.first_pass_at(connection, fleet)
            """The first complete pass; None: there was none."""
            self._last = history.last_pass(connection, fleet)
            self._unreadable = list[str]()
            observed = history.prices(connection, region, unreadable=self._unreadable)
            self._kept = declarations.read(ledger_declared.declarations(connection, fleet))
            """Declarations, oldest first."""
        if self._kept and self._kept[-1].declared != self._today:
            # no pass has read it yet: only its prices apply, and only if no other price is known
            self._kept.append(declarations.StoredDeclaration(FOREVER, self._today))
        self.book = PriceBook(region=region, overrides=stated, observed=observed, packaged=packaged)

    def read(self, windows: Sequence[Interval]) -> None:
        """Read the facts of these windows, at least one."""
        since, until = min(start for start, _ in windows), max(end for _, end in windows)
        with self._engine.connect() as connection:
            self._runs = history.runs(connection, self._fleet, since, until, unended=True)
            self._first_readings = rollups.first_readings(connection, self._fleet)
            self._reservations = reservations(connection, self._fleet, since, until)
            self._gaps = history.gaps(connection, self._fleet, since, until, QUIET)
            self._confirmed = closed_periods(connection, self._fleet, since, until)
            declared = (self._today, *(one.declared for one in self._kept))
            split = any(one.split_by_team or one.adapters for one in declared)
            self._uses = team_uses(connection, self._fleet, windows) if split else {}
        closed = sorted(self._confirmed, key=lambda one: one.at)
        self._declarations = declarations.Declarations(self._kept, closed, self.book)
        self._closings = closing.read(closed)

    def known(self, since: datetime, until: datetime) -> WindowFacts:
        """The facts of one window. Activity is read when it is needed."""
        closings = self._touching(since, until)
        if closing.cover(closings, since, until):
            gaps = sorted({gap for one in closings for gap in one.gaps})
            seen = _ObservedFacts(closings[0].begun, closings[-1].last, self._runs, self._reservations, gaps)
            unreadable = list[str]()
        else:
            seen, unreadable = self._observed(), self._unreadable
        parts = [self._closed_facts(one, max(one.since, since), min(one.until, until)) for one in closings]
        if len(parts) == 1 and (parts[0].since, parts[0].until) == (since, until):
            facts = parts[0].facts
        else:
            facts = replace(self._facts(seen, since, until), closed=parts)
        return WindowFacts(
            facts=facts,
            book=facts.periods[-1].book if facts.periods else self.book,
            last=seen.last,
            begun=seen.begun,
            gaps=_inside(seen.gaps, since, until),
            confirmed=self._bills(since, until),
            uses=self._uses.get((since, until), {}),
            unreadable_prices=unreadable,
        )

    def _observed(self) -> "_ObservedFacts":
        return _ObservedFacts(self.begun, self._last, self._runs, self._reservations, self._gaps)

    def _touching(self, since: datetime, until: datetime) -> list[Closing]:
        return [one for one in self._closings if one.since < until and one.until > since]

    def _closed_facts(self, of: Closing, since: datetime, until: datetime) -> ClosedFacts:
        seen = _ObservedFacts(of.begun, of.last, of.runs, of.reservations, of.gaps)
        return ClosedFacts(since=since, until=until, facts=self._facts(seen, since, until))

    def _facts(self, seen: "_ObservedFacts", since: datetime, until: datetime) -> LedgerFacts:
        runs = [
            run
            for run in seen.runs
            # a run without a known end may have continued, unobserved
            if run.started_at < until and (run.ended_at is None or run.ended_at > since or run.started_at >= since)
        ]
        periods = self._declarations.periods(runs, since, until)
        declared = periods[-1].declared if periods else self._today
        return LedgerFacts(
            runs=runs,
            activity=history.ActivitySlots(
                self._engine, self._fleet, since, until, [run.instance_id for run in runs]
            ),
            first_readings=self._first_readings,
            reservations=[one for one in seen.reservations if one.started_at < until and known_until(one) > since],
            declared=declared,
            coverage=periods[-1].coverage if periods else Coverage(declared, runs),
            known=None if seen.begun is None or seen.last is None else (seen.begun, seen.last.at),
            gaps=_inside(seen.gaps, since, until),
            periods=periods,
        )

    def closing(self, since: datetime, until: datetime, at: datetime) -> Closing:
        """The facts of a window, for its closing."""
        known = self.known(since, until)
        return Closing(
            since=since,
            until=until,
            at=at,
            begun=known.begun,
            last=known.last,
            gaps=known.gaps,
            runs=known.facts.runs,
            reservations=known.facts.reservations,
        )

    def closed(self, since: datetime, until: datetime) -> list[BillConfirmation]:
        """The bills that closed parts of the window, oldest span first."""
        return [one for one in self._bills(since, until) if one.facts is not None]

    def _bills(self, since: datetime, until: datetime) -> list[BillConfirmation]:
        return [one for one in self._confirmed if one.since < until and one.until > since]

    def uncollected(self, since: datetime, horizon: datetime) -> list[Interval]:
        """Times without a pass, in a span that has been read."""
        gaps = _inside(self._gaps, since, horizon)
        known = WindowFacts(facts=LedgerFacts(runs=()), book=self.book, last=self._last, begun=self.begun, gaps=gaps)
        return uncollected(known, since, horizon)

    @property
    def last(self) -> datetime | None:
        """The last complete pass; None: there was none."""
        return None if self._last is None else self._last.at

    def report(self, scope: ReportScope, *, with_energy: bool = True) -> Report:
        """The report of one window. Raises MissingPriceError unless the scope allows unpriced rows.

        `with_energy`: false for callers that use money and tokens only, because energy of a part of an hour is slow
        to read.
        """
        closings = self._touching(scope.since, scope.until)
        is_closed = closing.cover(closings, scope.since, scope.until)
        if is_closed:
            scope = replace(scope, now=max(one.at for one in closings))
        known = self.known(scope.since, scope.until)
        tokens = self._tokens(scope.since, scope.until, known.facts.periods)
        energy = self._energy(scope.since, scope.until, known.facts.periods) if with_energy else ()
        found = compute(scope, known, tokens, energy)
        found = replace(found, slices=self._slices(found))
        return replace(found, would_change=list(self._would_change(found))) if is_closed else found

    def _slices(self, found: Report) -> SliceReport:
        """The cost by slice of the nodes that have any."""
        since, until = found.scope.since, found.scope.until
        with self._engine.connect() as connection:
            seen = units.sightings(connection, self._fleet, since, until)
            if not seen:
                return SliceReport()
            bills = node_bills(found.charges, seen.keys())
            slices = by_slice(allocate(bills, units.unit_hours(connection, self._fleet, since, until), seen))
        return with_energy(slices, _measured_mj(found))

    def _would_change(self, closed: Report) -> Iterator[str]:
        """The differences that today's settings and facts would make to a closed window."""
        since, until = closed.scope.since, closed.scope.until
        facts = priced_alone(self._facts(self._observed(), since, until))
        today = replace(
            facts, periods=(), whose=facts.periods, declared=self._today, coverage=Coverage(self._today, facts.runs)
        )
        before = _by_name(closed.charges)
        after = _by_name(charges(today, self.book, since, until, allow_unpriced=True))
        moved = {
            name: money.usd(money.EXACT.subtract(after[name], before[name]), money.CENT)
            for name in sorted(before.keys() | after.keys())
        }
        parts = [f"{name} {usd:+}" for name, usd in moved.items() if name and usd]
        if parts:
            yield (
                "closed by a bill, so settings, prices and facts of today change nothing here; with them it would"
                f" have cost {moved['']:+} USD ({', '.join(parts)})"
            )

    def _tokens(self, since: datetime, until: datetime, periods: Sequence[PricingPeriod]) -> list[EngineTokens]:
        """Tokens per engine in a window, for each time in which no pool changed its model, engine or owner."""
        edges = [since, *cost_owners.changes(periods, since, until), until]
        with self._engine.connect() as connection:
            return [
                one
                for start, end in pairwise(edges)
                for one in engine_tokens(rollups.reading_spans(connection, self._fleet, start, end), start, end)
            ]

    def _energy(self, since: datetime, until: datetime, periods: Sequence[PricingPeriod]) -> list[InstanceEnergy]:
        """Energy per instance in a window, for each time in which no owner, model and grid factor changed."""
        factors = factor_spans(self._kept, self._today, self._closings, since, until)
        cuts = {*cost_owners.changes(periods, since, until), *(one.since for one in factors[1:])}
        spans = list(pairwise([since, *sorted(cuts), until]))
        with self._engine.connect() as connection:
            uses = [(start, end, energy_uses(connection, self._fleet, start, end)) for start, end in spans]
        return split_by_instance(uses, factors)


@dataclass(frozen=True, slots=True)
class _ObservedFacts:
    """The facts of a window, from the passes of the cost watchdog up to the last one considered."""

    begun: datetime | None
    last: CostPass | None
    runs: Sequence[Run]
    reservations: Sequence[Reservation]
    gaps: Sequence[Interval]


def _inside(gaps: Iterable[Interval], since: datetime, until: datetime) -> list[Interval]:
    """The intervals that overlap the window."""
    return [(start, end) for start, end in gaps if start < until and end > since]


def _measured_mj(found: Report) -> dict[str, int]:
    """The measured energy of each instance in millijoules."""
    sums = defaultdict[str, int](int)
    for _, one in found.energies:
        if one.use.measured_us:
            sums[one.instance_id] += one.use.millijoules
    return sums


def _by_name(rows: Iterable[Charge]) -> defaultdict[str, Decimal]:
    """Amounts by pool and by team; the total has the key ""."""
    sums = defaultdict[str, Decimal](Decimal, {"": money.ZERO})
    for row in rows:
        for name in ("", f"pool {row.pool or NONE}", f"team {row.owner or NONE}"):
            sums[name] = money.EXACT.add(sums[name], row.amount or money.ZERO)
    return sums
