"""The cost of an interval by pool, model and team, for forecasts, budgets and the console. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from gpufleet.costs.allocation import Charge, UseState, charges
from gpufleet.costs.figures import Figure
from gpufleet.costs.forecast import Cost
from gpufleet.costs.report import NONE, QUIET, WindowFacts
from gpufleet.costs.series import priced_alone
from gpufleet.costs.teams import split_by_engine_seconds
from gpufleet.costs.uncertainty import UnknownSpan, unknown_spans
from gpufleet.domain import money
from gpufleet.ledger.teams import by_team

Part = tuple[str, str]
"""(`pool`, `model` or `team`, name)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """The cost of the whole fleet and of each part, in dollar-seconds."""

    total: Cost
    by_part: Mapping[Part, Cost]

    def of(self, part: Part | None) -> Cost:
        """The cost of one part; None: of the whole fleet."""
        return self.total if part is None else self.by_part.get(part, Cost(amount=money.ZERO))


@dataclass(slots=True)
class _Sum:
    """A running sum of costs."""

    amount: Decimal = money.ZERO
    too_much: Decimal = money.ZERO
    too_little: Decimal = money.ZERO
    unpriced: set[str] = field(default_factory=set[str])

    def add(self, charge: Charge) -> None:
        if charge.amount is None:
            self.unpriced.add(charge.priced_as)
        else:
            self.amount = money.EXACT.add(self.amount, charge.amount)

    def add_unknown(self, span: UnknownSpan) -> None:
        self.too_much = money.EXACT.add(self.too_much, money.EXACT.subtract(span.charged, span.least))
        if span.most is None:
            self.unpriced.add(span.like.priced_as)
        else:
            self.too_little = money.EXACT.add(self.too_little, money.EXACT.subtract(span.most, span.charged))

    def include(self, other: "_Sum") -> None:
        self.amount = money.EXACT.add(self.amount, other.amount)
        self.too_much = money.EXACT.add(self.too_much, other.too_much)
        self.too_little = money.EXACT.add(self.too_little, other.too_little)
        self.unpriced |= other.unpriced

    @property
    def cost(self) -> Cost:
        return Cost(
            amount=self.amount,
            too_much=self.too_much,
            too_little=self.too_little,
            unpriced=frozenset(self.unpriced),
        )


_Cells = Mapping[tuple[str, str, str], _Sum]
"""By pool, model and owner."""


def spend(known: WindowFacts, since: datetime, until: datetime, now: datetime) -> Spend:
    """The cost of an interval from its facts."""
    facts, cells = priced_alone(known.facts), defaultdict[tuple[str, str, str], _Sum](_Sum)
    for charge in charges(facts, known.book, since, until, allow_unpriced=True):
        cells[charge.pool or NONE, charge.model or NONE, charge.owner or NONE].add(charge)
    # the minutes since the last pass do not matter, longer times do
    last = now if known.last is None else known.last.at
    horizon = last if now - last <= QUIET else now
    for span in unknown_spans(facts, known.book, since, until, horizon):
        like = span.like
        cells[like.pool or NONE, like.model or NONE, like.owner or NONE].add_unknown(span)
    total, pools, models = _Sum(), defaultdict[str, _Sum](_Sum), defaultdict[str, _Sum](_Sum)
    for (pool, model, _), part in cells.items():
        total.include(part)
        pools[pool].include(part)
        models[model].include(part)
    parts = {("pool", name): part.cost for name, part in pools.items()}
    parts |= {("model", name): part.cost for name, part in models.items()}
    parts |= {("team", name): cost for name, cost in _teams(known, cells, pools)}
    return Spend(total=total.cost, by_part=parts)


def _teams(known: WindowFacts, cells: _Cells, pools: Mapping[str, _Sum]) -> Iterator[tuple[str, Cost]]:
    """Costs by team, as in gpufleet.costs.report.by_team: only shared pools are split by engine seconds."""
    teams: defaultdict[str, _Sum] = defaultdict(_Sum)
    shared: set[str] = set()
    for pool in known.facts.declared.split_by_team & pools.keys():
        uses = by_team(known.uses, pool)
        part = pools[pool]
        amounts = defaultdict(Decimal, {UseState.USED: part.amount})
        whole = Figure(amounts=amounts, too_much=part.too_much, too_little=part.too_little)
        for share in split_by_engine_seconds(pool, whole, uses):
            shared.add(pool)
            own = share.figure
            teams[share.name].include(_Sum(own.allocation, own.too_much, own.too_little, part.unpriced))
    for (pool, _, owner), part in cells.items():
        if pool not in shared:
            teams[owner].include(part)
    return ((name, part.cost) for name, part in teams.items())
