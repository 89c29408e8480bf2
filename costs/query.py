"""Reads what one fleet's ledger knows of several windows: each fact once, over the longest of them.

The reports, forecasts and budgets of one use case are then computed from memory. What instances did and the tokens
that they served are larger than memory: they are read window by window, and only where a report needs them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Engine

from costs import declarations
from costs.allocation import Facts, charges
from costs.commitments import Coverage, Declared
from costs.pricing import FOREVER
from costs.report import NONE, QUIET, By, Known, Report, Scope, Standing, compute
from costs.tokens import EngineTokens, served
from gpufleet.domain import money
from gpufleet.domain.prices import Price
from ledger import declared as ledger_declared
from ledger import history, rollups
from ledger.finals import finals
from ledger.reservations import reservations
from ledger.teams import Interval, team_uses
from prices.book import Packaged, PriceBook


def _cents(amount: Decimal) -> Decimal:
    return money.usd(amount, money.CENT)


class CostQuery:
    """One fleet's facts. `read` names the windows; `known` and `report` take one of them."""

    def __init__(  # noqa: PLR0913 - what a ledger does not know of a fleet's costs
        self,
        engine: Engine,
        fleet: str,
        region: str,
        *,
        overrides: Iterable[Price] = (),
        packaged: Packaged,
        declared: Declared = Declared(),
    ) -> None:
        """`overrides` and `declared`: what the document says today, which holds where the ledger says nothing."""
        stated = tuple(overrides)
        self._engine, self._fleet, self._today = engine, fleet, replace(declared, prices=stated)
        with engine.connect() as connection:
            self.begun = history.begun(connection, fleet)
            """The first complete look; None: there was none."""
            self._last = history.last_pass(connection, fleet)
            observed = history.prices(connection, region)
            self._kept = declarations.read(ledger_declared.declarations(connection, fleet))
            """What was declared when."""
        if self._kept and self._kept[-1].declared != self._today:
            # no look has seen it yet: its prices fill where none is known, and nothing else of it counts
            self._kept.append(declarations.Kept(FOREVER, self._today))
        self.book = PriceBook(region=region, overrides=stated, observed=observed, packaged=packaged)

    def read(self, windows: Sequence[Interval]) -> None:
        """Read the facts of these windows, of which there is one at least."""
        since, until = min(start for start, _ in windows), max(end for _, end in windows)
        with self._engine.connect() as connection:
            self._runs = history.runs(connection, self._fleet, since, until, unended=True)
            self._first_signs = rollups.first_signs(connection, self._fleet)
            self._reservations = reservations(connection, self._fleet, since, until)
            self._gaps = history.gaps(connection, self._fleet, since, until, QUIET)
            self._confirmed = finals(connection, self._fleet, since, until)
            split = self._today.split_by_team or any(one.declared.split_by_team for one in self._kept)
            self._uses = team_uses(connection, self._fleet, windows) if split else {}
        closed = sorted(self._confirmed, key=lambda one: one.at)
        self._declarations = declarations.Declarations(self._kept, closed, self.book)

    def known(self, since: datetime, until: datetime) -> Known:
        """The facts of one window. What instances did is read when it is asked for."""
        runs = [
            run
            for run in self._runs
            # one without a known end may have lived on, unseen
            if run.started_at < until and (run.ended_at is None or run.ended_at > since or run.started_at >= since)
        ]
        eras = self._declarations.eras(runs, since, until)
        declared = eras[-1].declared if eras else self._today
        facts = Facts(
            runs=runs,
            activity=history.Activity(self._engine, self._fleet, since, until, [run.instance_id for run in runs]),
            first_signs=self._first_signs,
            reservations=[one for one in self._reservations if one.started_at < until and one.last_seen_at > since],
            declared=declared,
            coverage=eras[-1].coverage if eras else Coverage(declared, runs),
            known=None if self.begun is None or self._last is None else (self.begun, self._last.at),
            eras=eras,
        )
        return Known(
            facts=facts,
            book=eras[-1].book if eras else self.book,
            last=self._last,
            begun=self.begun,
            gaps=[(start, end) for start, end in self._gaps if start < until and end > since],
            confirmed=[one for one in self._confirmed if one.since < until and one.until > since],
            uses=self._uses.get((since, until), {}),
        )

    def uncollected(self, intervals: Iterable[Interval]) -> set[Interval]:
        """Those of the intervals in which no look ended."""
        last = None if self._last is None else self._last.at
        return {
            (start, end)
            for start, end in intervals
            if last is None or last <= start or any(before <= start and after > end for before, after in self._gaps)
        }

    def report(self, scope: Scope) -> Report:
        """The report of one window. Raises MissingPriceError unless the scope allows unpriced rows."""
        known = self.known(scope.since, scope.until)
        found = compute(scope, known, self._tokens(scope.since, scope.until))
        if found.standing is not Standing.FINAL or all(one.prices is None for one in known.confirmed):
            return found
        return replace(found, notes=(*found.notes, *self._refused(found, known.facts)))

    def _refused(self, closed: Report, facts: Facts) -> Iterator[str]:
        """What would have changed of a closed span, had it not been closed."""
        scope = closed.scope
        today = replace(
            facts,
            activity={},
            first_signs={},
            eras=(),
            declared=self._today,
            coverage=Coverage(self._today, facts.runs),
        )
        sums: dict[str, Decimal] = {}
        for charge in charges(today, self.book, scope.since, scope.until, allow_unpriced=True):
            pool = charge.pool or NONE
            sums[pool] = money.EXACT.add(sums.get(pool, money.ZERO), charge.amount or money.ZERO)
        before = {pool: figure.allocation for pool, figure in closed.groups[By.POOL].items()}
        moved = {
            pool: money.EXACT.subtract(sums.get(pool, money.ZERO), before.get(pool, money.ZERO))
            for pool in sorted(sums.keys() | before.keys())
        }
        shown = [f"{pool} {_cents(usd):+}" for pool, usd in moved.items() if _cents(usd)]
        if shown:
            yield (
                "closed by a bill, so settings and prices of today change nothing here; with them it would have cost"
                f" {_cents(money.total(moved.values())):+} USD ({', '.join(shown)})"
            )
        spans = (one for one in self._confirmed if (one.since, one.until) == (scope.since, scope.until))
        of_it = min((one for one in spans if one.prices is not None), key=lambda one: one.at, default=None)
        now = _cents(closed.total.allocation)
        if of_it is not None and (then := of_it.computed_usd.quantize(money.CENT)) != now:
            yield f"what instances did became known better since this was closed: {now} USD, then {then} USD"

    def _tokens(self, since: datetime, until: datetime) -> list[EngineTokens]:
        """What engines served in a window."""
        with self._engine.connect() as connection:
            return list(served(rollups.stretches(connection, self._fleet, since, until), since, until))
