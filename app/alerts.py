"""Cost alerts of the cost watchdog: exceeded budgets, and hours whose cost differs from the same hour of earlier
weeks.

The watchdog computes them once an hour. Each message is sent once, whichever process runs the watchdog.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final
from zoneinfo import ZoneInfo

from sqlalchemy import Engine

from app.ledgers import ledger_errors, ledger_name
from app.reports import month_forecast, month_spends, part_uses, query_of, scope_of
from app.windows import Window
from gpufleet.costs import forecast
from gpufleet.costs.anomaly import Anomaly, anomalies, hour_of, name_cause
from gpufleet.costs.figures import Figure
from gpufleet.costs.forecast import BudgetState
from gpufleet.costs.query import CostQuery
from gpufleet.costs.render import show
from gpufleet.costs.report import By, Report
from gpufleet.domain import money as exact
from gpufleet.ledger import history
from gpufleet.ledger.database import writing
from gpufleet.ledger.notified_hours import add_notified_hour, last_notified_hour
from gpufleet.ledger.outbox import Message, enqueue
from gpufleet.ledger.rollups import floor_hour
from gpufleet.ledger.teams import Interval
from gpufleet.notify.messages import section
from gpufleet.settings.document import FleetDocument

HOUR: Final = timedelta(hours=1)
WEEKS: Final = 4
DAYS: Final = 6
CATCH_UP: Final = timedelta(hours=6)
"""The alerts of older missed hours are dropped."""


def due(document: FleetDocument, engine: Engine, now: datetime) -> list[datetime]:
    """Ends of the whole hours whose alerts are not enqueued yet, oldest first. Call it after the pass collected that
    hour.

    If a pass dies after it wrote its facts, it enqueued no alerts. The next pass finds its hour here.
    """
    if document.notify is None:
        return []
    fleet, end = ledger_name(document), floor_hour(now)
    with ledger_errors(document), engine.connect() as connection:
        begun, notified_until = history.first_pass_at(connection, fleet), last_notified_hour(connection, fleet)
    if begun is None or begun >= end:
        return []
    first = end if notified_until is None else max(notified_until + HOUR, end - CATCH_UP)
    return [first + HOUR * n for n in range(int((end - first) / HOUR) + 1)]


def enqueue_all(document: FleetDocument, engine: Engine, now: datetime) -> int:
    """Add the alerts of every due hour to the outbox. Returns the number of new messages."""
    hours = due(document, engine, now)
    if document.notify is None or not hours:
        return 0
    channel = document.notify.slack_channel
    query = query_of(document, engine)
    month = forecast.month(now, document.notify.timezone, query.begun)
    weeks = {end: _weeks(end, query.begun) for end in hours}
    budgeted = document.budget is not None or bool(document.budgets)
    query.read([*(one for some in weeks.values() for one in some), *(month.intervals if budgeted else ())])
    found = _budgets(document, query, month, now) if budgeted else []
    for compared in weeks.values():
        found += _anomalies(document, query, compared, now)
    with writing(engine) as connection:
        for end in hours:
            add_notified_hour(connection, ledger_name(document), end)
        return sum(
            enqueue(
                connection,
                Message(key=key, channel=channel, text=text, detail={"blocks": [section(text)]}),
                now,
            )
            for key, text in found
        )


def _budgets(
    document: FleetDocument, query: CostQuery, month: forecast.Month, now: datetime
) -> list[tuple[str, str]]:
    """The messages of all budgets.

    A message is sent once per threshold and month of each budget, and once when the forecast of the month exceeds the
    budget.
    """
    assert document.notify is not None
    name = f"{now.astimezone(ZoneInfo(document.notify.timezone)):%Y-%m}"
    fleet, found, spends = ledger_name(document), list[tuple[str, str]](), month_spends(query, month, now)
    if document.budget is not None:
        expected = month_forecast(query, month, spends, now)
        use = forecast.budget_use(document.budget.usd_per_month, expected)
        forecast_text = (
            f"; the month is expected to cost {show(expected.expected)} USD",
            f" ({show(expected.low)} to {show(expected.high)})",
        )
        found += _budget(f"{fleet}/budget/{name}", document.environment, use, forecast_text)
    for budget, use in part_uses(document, query, month, spends, now):
        kind, part = budget.of
        where = f"{document.environment}, {kind} {part}"
        found += _budget(f"{fleet}/budget/{kind}/{part}/{name}", where, use, ("", ""))
    return found


def _budget(key: str, where: str, use: forecast.BudgetUse, forecast_text: tuple[str, str]) -> list[tuple[str, str]]:
    """The messages of one budget. `forecast_text`: the month's forecast and the range of the forecast, as text."""
    limit, spent = show(use.usd_per_month), show(use.spent.quantize(exact.CENT))
    used = f"{use.share:.0%} of the month's budget is used ({spent} of {limit} USD{forecast_text[0]})"
    if use.unknown:
        used = f"{'at least ' if use.is_lower_bound else ''}{used}; unknown: {_first(use.unknown)}"
    found = [(f"{key}/{share}", f"{where}: {used}") for share in use.crossed[-1:]]
    if use.state is BudgetState.UNKNOWN and use.lacking:
        found.append((f"{key}/unknown", f"{where}: {used}"))
    if use.state is BudgetState.WILL_EXCEED:
        ahead = f"the month is expected to cost {show(use.expected)} USD{forecast_text[1]}; its budget is {limit} USD"
        found.append((f"{key}/expected", f"{where}: {ahead}"))
    return found


def _first(texts: Sequence[str], most: int = 5) -> str:
    more = f", and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def _weeks(end: datetime, begun: datetime | None) -> list[Interval]:
    """The hour before `end` and the same hour of up to four earlier weeks, as far as the ledger has them.

    In the first week they are the same hour of up to six earlier days.
    """
    hour = end - HOUR
    for step, most in ((timedelta(weeks=1), WEEKS), (timedelta(days=1), DAYS)):
        starts = [hour - step * n for n in range(1, most + 1)]
        known = [start for start in starts if begun is not None and start >= begun]
        if known:
            return [(start, start + HOUR) for start in (hour, *known)]
    return [(hour, end)]


def _anomalies(
    document: FleetDocument, query: CostQuery, compared: Sequence[Interval], now: datetime
) -> list[tuple[str, str]]:
    """Compare the first hour of `compared` with its other hours, for the fleet and for each pool.

    The keys allow one message per day for each kind of change.
    """
    start = compared[0][0]
    # the cost of an hour that was not collected completely is unknown, not zero
    comparable = [interval for interval in compared[1:] if not query.uncollected(*interval)]
    if not comparable:
        return []
    current, *before = (_report(document, query, interval, now) for interval in (compared[0], *comparable))
    whole = not current.uncollected
    found: list[tuple[str, str]] = []
    for pool in (None, *sorted(current.groups[By.POOL])):
        figures = [_figure(report, pool) for report in before]
        mine = [[c for c in report.charges if pool in (None, c.pool)] for report in (before[0], current)]
        cause = name_cause(mine[0], mine[1], start)
        unknown = [*_unpriced([current, *before], pool), *_not_collected(current)]
        this = hour_of(_figure(current, pool), collected=whole)
        for one in anomalies(this, [hour_of(figure) for figure in figures], cause):
            key = f"{ledger_name(document)}/anomaly/{pool or '*'}/{one.what}/{start:%Y-%m-%d}"
            where = document.environment if pool is None else f"{document.environment}, pool {pool}"
            found.append((key, f"{where}: {_as_text(one)}{f'; unknown: {_first(unknown)}' if unknown else ''}"))
    return found


def _report(document: FleetDocument, query: CostQuery, interval: Interval, now: datetime) -> Report:
    window = Window(since=interval[0], until=interval[1], now=now, timezone="UTC")
    return query.report(scope_of(document, window, True), with_energy=False)


def _figure(report: Report, pool: str | None) -> Figure:
    return report.total if pool is None else report.groups[By.POOL].get(pool, Figure())


def _unpriced(reports: Iterable[Report], pool: str | None) -> list[str]:
    """The pool's resources without a price in at least one of the hours."""
    names = {c.priced_as for one in reports for c in one.charges if c.amount is None and pool in (None, c.pool)}
    return [f"no price for {name}" for name in sorted(names)]


def _not_collected(report: Report) -> list[str]:
    return [f"not collected from {start:%H:%M} to {end:%H:%M} UTC" for start, end in report.uncollected]


def _as_text(one: Anomaly) -> str:
    parts = ", ".join(
        f"{name} {_usd(value, '+')}"
        for name, value in (
            ("price", one.split.price),
            ("volume", one.split.volume),
            ("efficiency", one.split.efficiency),
        )
    )
    now, usual = ("at least " if unknown else "" for unknown in (one.now_at_least, one.usual_at_least))
    values = f"{now}{_usd(one.now)} {one.what}, usually {usual}{_usd(one.usual)}"
    return f"{values}: {one.cause} (change: {parts} USD/h)"


def _usd(value: Fraction, sign: str = "") -> str:
    cents = round(value * 100)
    return f"{exact.CENT * cents:{sign},.2f}"
