"""Budgets of pools and teams: what the month has cost them, day by day, and what it is expected to."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal

from cli import reports
from cli.windows import Window
from costs import forecast
from costs.forecast import BudgetUse
from costs.report import By
from gpufleet.domain import money
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.document.money import PartBudget

PartUse = tuple[PartBudget, forecast.Forecast, BudgetUse]


def part_uses(document: FleetDocument, window: Window, begun: datetime | None) -> list[PartUse]:
    """How each of them stands at the window's end. One report per day, and only where there is a budget."""
    if not document.budgets:
        return []
    start, end = forecast.month_of(window.until, window.timezone)
    since = window.until if begun is None else max(begun, window.until - reports.FORECAST_FROM)
    days = forecast.local_days(since, window.until, window.timezone)
    by_day = [_amounts(document, window, day) for day in days]
    # whole days and what lies beside them, so that teams are split by the same days everywhere
    inside = [amounts for (first, _), amounts in zip(days, by_day, strict=True) if first >= start]
    rest = _beside([day for day in days if day[0] >= start], start, window.until)
    month = [*inside, *(_amounts(document, window, part) for part in rest)]
    left = max(Decimal(str((end - window.until).total_seconds())) / 86_400, Decimal(0))
    found: list[PartUse] = []
    for budget in document.budgets:
        spent = sum((amounts.get(budget.of, money.ZERO) for amounts in month), money.ZERO)
        full = [amounts.get(budget.of, money.ZERO) for amounts in by_day]
        expected = forecast.forecast(spent, full, left)
        found.append((budget, expected, forecast.budget_use(budget.usd_per_month, expected, budget.thresholds)))
    return found


def _beside(
    days: Sequence[tuple[datetime, datetime]], start: datetime, until: datetime
) -> list[tuple[datetime, datetime]]:
    if not days:
        return [(start, until)]
    parts = [(start, days[0][0]), (days[-1][1], until)]
    return [(first, last) for first, last in parts if first < last]


def _amounts(
    document: FleetDocument, window: Window, span: tuple[datetime, datetime]
) -> dict[tuple[str, str], Decimal]:
    """(`pool` or `team`, name) to USD."""
    part = Window(since=span[0], until=span[1], now=window.now, timezone=window.timezone)
    report = reports.cost(document, part, True)
    return {
        (by.value, name): money.usd(figure.allocation)
        for by in (By.POOL, By.TEAM)
        for name, figure in report.groups[by].items()
    }
