"""The costs, actions and waste of one fleet over time, for the console."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from app.ledgers import ledger_errors, ledger_name, read_ledger_of
from app.reports import query_of, scope_of
from app.windows import up_to
from gpufleet.console.history import CostHistory, CostInterval, Period
from gpufleet.costs.spend import spend
from gpufleet.costs.waste import waste
from gpufleet.ledger import decisions
from gpufleet.settings.document import FleetDocument

MAX_ACTS: Final = 100
_WASTE_OF: Final = timedelta(hours=24)


def cost_history(document: FleetDocument, period: Period, now: datetime) -> CostHistory:
    """The history up to `now`. Charges without a price are counted, not guessed. Raises AppError."""
    intervals = list(pairwise(period.edges(now)))
    day = up_to(now, _WASTE_OF)
    with ledger_errors(document):
        engine, fleet = read_ledger_of(document), ledger_name(document)
        query = query_of(document, engine)
        query.read([*intervals, (day.since, day.until)])
        report = query.report(scope_of(document, day, True), with_energy=False)
        with engine.connect() as connection:
            unobserved = decisions.kept_unobserved(connection, fleet, now)
        return CostHistory(
            period=period,
            known_until=query.last,
            intervals=[
                CostInterval(
                    start=start,
                    end=end,
                    spend=spend(query.known(start, end), start, end, now),
                    is_collected=query.last is not None and start < query.last and not query.uncollected(start, end),
                )
                for start, end in intervals
            ],
            acts=decisions.last_outcomes(engine, fleet, MAX_ACTS, since=intervals[0][0]),
            waste=waste(report, unobserved),
        )
