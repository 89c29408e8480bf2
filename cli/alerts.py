"""What the cost watchdog tells people without being asked: budgets crossed, hours that cost unlike the same hour of
earlier weeks. Once an hour; each message once, whoever runs."""

from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final
from zoneinfo import ZoneInfo

from sqlalchemy import Engine

from app import ledgers
from cli import reports
from cli.budgets import part_uses
from cli.windows import Window
from costs import forecast
from costs.anomaly import Anomaly, anomalies, hour_of, name_cause
from costs.figures import Figure
from costs.forecast import BudgetState
from costs.render import show
from costs.report import By, Report
from gpufleet.domain import money as exact
from gpufleet.settings.document import FleetDocument
from ledger import history
from ledger.database import writing
from ledger.outbox import Message, enqueue
from ledger.rollups import floor_hour
from ledger.told import add_told, last_told
from notify.messages import escape, section

HOUR: Final = timedelta(hours=1)
WEEKS: Final = 4
CATCH_UP: Final = timedelta(hours=6)
"""Hours that were missed longer ago are not told any more."""


def due(document: FleetDocument, engine: Engine, now: datetime) -> list[datetime]:
    """Ends of the whole hours that nobody has told of yet, oldest first. Ask after the look: it knows the hour.

    A pass that died after its facts told nothing, so the next one finds its hour here.
    """
    if document.notify is None:
        return []
    fleet, end = ledgers.ledger_name(document), floor_hour(now)
    with ledgers.ledger_errors(document), engine.connect() as connection:
        begun, told = history.begun(connection, fleet), last_told(connection, fleet)
    if begun is None or begun >= end:
        return []
    first = end if told is None else max(told + HOUR, end - CATCH_UP)
    return [first + HOUR * n for n in range(int((end - first) / HOUR) + 1)]


def enqueue_all(document: FleetDocument, engine: Engine, now: datetime) -> int:
    """Put the alerts of every hour that is due into the outbox. Gives how many were new."""
    hours = due(document, engine, now)
    if document.notify is None or not hours:
        return 0
    channel = document.notify.slack_channel
    found = [*_budget(document, engine, now), *_part_budgets(document, engine, now)]
    for end in hours:
        found += _anomalies(document, engine, end, now)
    with writing(engine) as connection:
        for end in hours:
            add_told(connection, ledgers.ledger_name(document), end)
        return sum(
            enqueue(
                connection,
                Message(key=key, channel=channel, text=escape(text), detail={"blocks": [section(escape(text))]}),
                now,
            )
            for key, text in found
        )


def _part_budgets(document: FleetDocument, engine: Engine, now: datetime) -> list[tuple[str, str]]:
    """As the environment's: one message per threshold and month of each pool and team that has a budget."""
    if not document.budgets or document.notify is None:
        return []
    zone, fleet = document.notify.timezone, ledgers.ledger_name(document)
    with engine.connect() as connection:
        begun = history.begun(connection, fleet)
    window = Window(since=now - HOUR, until=now, now=now, timezone=zone)
    found: list[tuple[str, str]] = []
    for budget, month, use in part_uses(document, window, begun):
        kind, name = budget.of
        key = f"{fleet}/budget/{kind}/{name}/{now.astimezone(ZoneInfo(zone)):%Y-%m}"
        where, limit = f"{document.environment}, {kind} {name}", show(use.usd_per_month)
        spent = show(month.spent.quantize(exact.CENT))
        words = f"{use.share:.0%} of the month's budget is used ({spent} of {limit} USD)"
        found += [(f"{key}/{share}", f"{where}: {words}") for share in use.crossed[-1:]]
        if use.state is BudgetState.WILL_EXCEED:
            words = f"the month is expected to cost {show(month.expected)} USD; its budget is {limit} USD"
            found.append((f"{key}/expected", f"{where}: {words}"))
    return found


def _budget(document: FleetDocument, engine: Engine, now: datetime) -> list[tuple[str, str]]:
    """One message per threshold and month, and one when the month is about to cost more than its budget."""
    if document.budget is None or document.notify is None:
        return []
    zone = document.notify.timezone
    with engine.connect() as connection:
        begun = history.begun(connection, ledgers.ledger_name(document))
    window = Window(since=now - HOUR, until=now, now=now, timezone=zone)
    month = reports.month_of(document, window, begun)
    use = forecast.budget_use(document.budget.usd_per_month, month)
    name = f"{ledgers.ledger_name(document)}/budget/{now.astimezone(ZoneInfo(zone)):%Y-%m}"
    budget, spent = show(use.usd_per_month), show(month.spent.quantize(exact.CENT))
    found = [
        (
            f"{name}/{share}",
            f"{document.environment}: {use.share:.0%} of the month's budget is used ({spent} of {budget}"
            f" USD; the month is expected to cost {show(month.expected)} USD)",
        )
        for share in use.crossed[-1:]
    ]
    if use.state is BudgetState.WILL_EXCEED:
        range_ = f"{show(month.low)} to {show(month.high)}"
        words = f"the month is expected to cost {show(month.expected)} USD ({range_}); its budget is {budget} USD"
        found.append((f"{name}/expected", f"{document.environment}: {words}"))
    return found


def _anomalies(document: FleetDocument, engine: Engine, end: datetime, now: datetime) -> list[tuple[str, str]]:
    """The hour before `end` against the same hour of up to four weeks, for the fleet and each pool, once a day."""
    with engine.connect() as connection:
        begun = history.begun(connection, ledgers.ledger_name(document))
    starts = [end - HOUR - timedelta(weeks=week) for week in range(1, WEEKS + 1)]
    known = [start for start in starts if begun is not None and start >= begun]
    if not known:
        return []
    current = _hour(document, end - HOUR, now)
    before = [_hour(document, start, now) for start in known]
    found: list[tuple[str, str]] = []
    for pool in (None, *sorted(current.groups[By.POOL])):
        figures = [_figure(report, pool) for report in before]
        mine = [[c for c in report.charges if pool in (None, c.pool)] for report in (before[0], current)]
        cause = name_cause(mine[0], mine[1], end - HOUR)
        for one in anomalies(hour_of(_figure(current, pool)), [hour_of(figure) for figure in figures], cause):
            key = f"{ledgers.ledger_name(document)}/anomaly/{pool or '*'}/{one.what}/{end - HOUR:%Y-%m-%d}"
            where = document.environment if pool is None else f"{document.environment}, pool {pool}"
            found.append((key, f"{where}: {_words(one)}"))
    return found


def _hour(document: FleetDocument, start: datetime, now: datetime) -> Report:
    return reports.cost(document, Window(since=start, until=start + HOUR, now=now, timezone="UTC"), True)


def _figure(report: Report, pool: str | None) -> Figure:
    return report.total if pool is None else report.groups[By.POOL].get(pool, Figure())


def _words(one: Anomaly) -> str:
    parts = ", ".join(
        f"{name} {_usd(value, '+')}"
        for name, value in (
            ("price", one.split.price),
            ("volume", one.split.volume),
            ("efficiency", one.split.efficiency),
        )
    )
    return f"{_usd(one.now)} {one.what}, usually {_usd(one.usual)}: {one.cause} (of the change: {parts} USD/h)"


def _usd(value: Fraction, sign: str = "") -> str:
    cents = round(value * 100)
    return f"{exact.CENT * cents:{sign},.2f}"
