"""What an interval cost, by pool and team: what forecasts and budgets are made of. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from costs.allocation import State, charges
from costs.figures import Figure
from costs.report import NONE, Known
from costs.series import priced_alone
from costs.teams import split
from gpufleet.domain import money


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """Amounts in dollar-seconds. Charges without a price are left out and listed."""

    total: Decimal
    by_part: Mapping[tuple[str, str], Decimal]
    """(`pool` or `team`, name) to its amount."""
    unpriced: Mapping[tuple[str, str] | None, frozenset[str]]
    """What has no price, by part; None: of the whole fleet."""


def spend(known: Known, since: datetime, until: datetime) -> Spend:
    """What the interval of these facts cost."""
    cells: defaultdict[tuple[str, str], Decimal] = defaultdict(Decimal)
    unpriced: defaultdict[tuple[str, str] | None, set[str]] = defaultdict(set)
    for charge in charges(priced_alone(known.facts), known.book, since, until, allow_unpriced=True):
        if charge.amount is not None:
            cell = (charge.pool or NONE, charge.owner or NONE)
            cells[cell] = money.EXACT.add(cells[cell], charge.amount)
        else:
            for part in (None, ("pool", charge.pool or NONE), ("team", charge.owner or NONE)):
                unpriced[part].add(charge.priced_as)
    pools: defaultdict[str, Decimal] = defaultdict(Decimal)
    for (pool, _), amount in cells.items():
        pools[pool] = money.EXACT.add(pools[pool], amount)
    teams = _by_team(known, cells, pools)
    return Spend(
        total=money.total(pools.values()),
        by_part={("pool", name): amount for name, amount in pools.items()}
        | {("team", name): amount for name, amount in teams.items()},
        unpriced={part: frozenset(names) for part, names in unpriced.items()},
    )


def _by_team(
    known: Known, cells: Mapping[tuple[str, str], Decimal], pools: Mapping[str, Decimal]
) -> Mapping[str, Decimal]:
    """As costs.report.by_team: a shared pool is split by engine seconds, any other stays with its owner."""
    teams: defaultdict[str, Decimal] = defaultdict(Decimal)
    shared: set[str] = set()
    for pool in known.facts.declared.split_by_team & pools.keys():
        uses = {team: use for (of, team), use in known.uses.items() if of == pool}
        whole = Figure(amounts=defaultdict(Decimal, {State.USED: pools[pool]}))
        for share in split(pool, whole, uses):
            shared.add(pool)
            teams[share.team] = money.EXACT.add(teams[share.team], share.figure.allocation)
    for (pool, owner), amount in cells.items():
        if pool not in shared:
            teams[owner] = money.EXACT.add(teams[owner], amount)
    return teams
