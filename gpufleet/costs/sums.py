"""The sums of a cost report that screens show: of its window, in total and by pool. Pure."""

from gpufleet.costs.allocation import UseState
from gpufleet.costs.figures import Figure
from gpufleet.costs.report import By, Report
from gpufleet.domain import money
from gpufleet.ledger.sums import CostSum, Span


def sums(report: Report, span: Span) -> list[CostSum]:
    """The sum of the whole fleet comes first. Empty while the ledger has no complete pass."""
    known_until = report.known_until
    if known_until is None:
        return []

    def one(pool: str | None, figure: Figure) -> CostSum:
        unit = figure.unit_costs()
        return CostSum(
            span=span,
            pool=pool,
            since=report.scope.since,
            known_until=known_until,
            usd=money.usd(figure.allocation),
            idle_usd=money.usd(figure.amounts[UseState.IDLE]),
            input_usd=unit.input,
            output_usd=unit.output,
            blended_usd=unit.blended,
            unpriced=figure.unpriced,
        )

    return [one(None, report.total), *(one(pool, figure) for pool, figure in sorted(report.groups[By.POOL].items()))]
