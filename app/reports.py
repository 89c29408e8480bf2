"""A fleet's reports, built from its ledger, prices and document."""

import csv
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from io import StringIO
from typing import Any

from sqlalchemy import Engine

from app.errors import AppError
from app.ledgers import ledger_errors, ledger_name, read_ledger_of
from app.price_inputs import declared_of, overrides_of
from app.references import references_of
from app.token_methods import token_method
from app.windows import Window
from gpufleet import extras
from gpufleet.costs import charts, focus, forecast, page, series, slice_view
from gpufleet.costs import digest as digests
from gpufleet.costs import savings as savers
from gpufleet.costs.allocation import LedgerFacts
from gpufleet.costs.digest import Digest
from gpufleet.costs.document import CSV_COLUMNS, figures_csv, instant, report_csv, text
from gpufleet.costs.document import document as as_document
from gpufleet.costs.query import CostQuery
from gpufleet.costs.report import Report, ReportScope
from gpufleet.costs.speed import speeds
from gpufleet.costs.spend import Spend, spend
from gpufleet.costs.token_origins import token_origins
from gpufleet.costs.waste import waste
from gpufleet.domain import money as exact
from gpufleet.ledger import decisions, history
from gpufleet.ledger.teams import Interval
from gpufleet.prices.book import MissingPriceError, PriceBook
from gpufleet.prices.packaged import PackagedPrices
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.document.money import PartBudget


def query_of(document: FleetDocument, engine: Engine) -> CostQuery:
    """The query over the fleet's ledger. Raises AppError."""
    return CostQuery(
        engine,
        ledger_name(document),
        document.region,
        overrides=overrides_of(document),
        packaged=PackagedPrices(),
        declared=declared_of(document),
    )


def scope_of(document: FleetDocument, window: Window, allow_unpriced: bool) -> ReportScope:
    """The scope of a window."""
    return ReportScope(
        fleet=ledger_name(document),
        environment=document.environment,
        cloud=document.cloud,
        region=document.region,
        since=window.since,
        until=window.until,
        now=window.now,
        timezone=window.timezone,
        allow_unpriced=allow_unpriced,
    )


def cost(document: FleetDocument, window: Window, allow_unpriced: bool) -> Report:
    """The cost report. Raises AppError for a missing price."""
    (found,) = costs(document, [window], allow_unpriced)
    return found


def costs(document: FleetDocument, windows: Sequence[Window], allow_unpriced: bool) -> Iterator[Report]:
    """The cost report of each window. Raises AppError for a missing price."""
    with _explained(document):
        query = query_of(document, read_ledger_of(document))
        query.read([(window.since, window.until) for window in windows])
        for window in windows:
            yield _report(document, query, scope_of(document, window, allow_unpriced))


def focus_rows(document: FleetDocument, window: Window) -> Iterator[focus.Row]:
    """The window as rows of FOCUS, day by day (UTC). Raises focus.UnpricedError."""
    parts = [replace(window, since=since, until=until) for since, until in focus.days(window.since, window.until)]
    return focus.rows(costs(document, parts, True), document.account, ledger_name(document), by_team=True)


def as_csv(found: Iterable[tuple[str, Report]]) -> str:
    """Every charge and every unknown cost, as CSV with a header."""
    body = StringIO()
    writer = csv.writer(body, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for environment, report in found:
        writer.writerows(report_csv(environment, report))
    return body.getvalue()


def slices_csv(found: Iterable[tuple[str, Report]]) -> str:
    """The cost by slice, as CSV with a header."""
    return slice_view.as_csv((environment, report.slices) for environment, report in found)


def with_facts(
    document: FleetDocument, window: Window, allow_unpriced: bool
) -> tuple[Digest, LedgerFacts, PriceBook]:
    """The digest with the facts for its charts. Raises AppError for a missing price."""
    with _explained(document):
        engine = read_ledger_of(document)
        query = query_of(document, engine)
        month = forecast.month(window.until, window.timezone, query.begun)
        length = window.until - window.since
        before = replace(window, since=window.since - length, until=window.since)
        is_known = query.begun is not None and query.begun <= before.since
        asked = [window, before] if is_known else [window]
        query.read([*((one.since, one.until) for one in asked), *month.intervals])
        report = _report(document, query, scope_of(document, window, allow_unpriced))
        known = query.known(window.since, window.until)
        with engine.connect() as connection:
            ended = history.ended_by_idle(connection, ledger_name(document), window.since, window.until)
            unobserved = decisions.kept_unobserved(connection, ledger_name(document), window.until)
        stops = [savers.Stop(instance_id=instance_id, pool=pool, at=at) for instance_id, pool, at in ended]
        spends = month_spends(query, month, window.now)
        expected = month_forecast(query, month, spends, window.now)
        budget = document.budget
        found = Digest(
            report=report,
            before=query.report(scope_of(document, before, True), with_energy=False) if is_known else None,
            waste=waste(report, unobserved),
            savings=savers.savings(report, stops, known.facts.runs, known.book),
            month=expected,
            budget=None if budget is None else forecast.budget_use(budget.usd_per_month, expected),
            budgets=[(" ".join(part.of), use) for part, use in part_uses(document, query, month, spends, window.now)],
        )
        return found, known.facts, known.book


def digest(document: FleetDocument, window: Window, allow_unpriced: bool) -> Digest:
    """The digest of a window. Raises AppError for a missing price."""
    return with_facts(document, window, allow_unpriced)[0]


def html(document: FleetDocument, window: Window, allow_unpriced: bool, back: str = "") -> str:
    """The digest as a page with charts. Raises AppError for a missing price."""
    found, facts, book = with_facts(document, window, allow_unpriced)
    cuts = _cuts(found)
    lanes = series.lanes(facts, cuts[0], cuts[-1])
    return page.page(found, series.buckets(facts, book, cuts), lanes, back=back)


def attachments(found: Digest, facts: LedgerFacts, book: PriceBook) -> list[tuple[str, str, bytes]]:
    """The attachments of the digest's thread: name, title, content. Without the extra `plots` there is no picture."""
    scope = found.report.scope
    files = [("cost.csv", f"{scope.environment}: figures by grouping", figures_csv(found.report).encode())]
    if extras.missing(charts.LIBRARY) is None:
        picture = charts.png(charts.cost_over_time(series.buckets(facts, book, _cuts(found)), scope.timezone))
        files.insert(0, ("cost.png", f"{scope.environment}: cost over time by capacity type", picture))
    return files


def month_spends(query: CostQuery, month: forecast.Month, now: datetime) -> dict[Interval, Spend]:
    """The cost of each interval of the month. The query must have read them."""
    return {interval: spend(query.known(*interval), *interval, now) for interval in month.intervals}


def month_forecast(
    query: CostQuery,
    month: forecast.Month,
    spends: dict[Interval, Spend],
    now: datetime,
    part: tuple[str, str] | None = None,
) -> forecast.Forecast:
    """The month's forecast of the fleet, or of one pool or team."""
    costs = {interval: one.of(part) for interval, one in spends.items()}
    since = min((start for start, _ in month.intervals), default=month.start)
    return month.forecast(costs, query.uncollected(since, min(month.moment, now)), query.last)


def part_uses(
    document: FleetDocument, query: CostQuery, month: forecast.Month, spends: dict[Interval, Spend], now: datetime
) -> list[tuple[PartBudget, forecast.BudgetUse]]:
    """The use of each pool's and team's budget."""
    found: list[tuple[PartBudget, forecast.BudgetUse]] = []
    for budget in document.budgets:
        expected = month_forecast(query, month, spends, now, budget.of)
        found.append((budget, forecast.budget_use(budget.usd_per_month, expected, budget.thresholds)))
    return found


def key(document: FleetDocument, window: Window, kind: str) -> str:
    """The key of a posted report, to the second: the same window is posted once."""
    span = f"{window.since:%Y%m%dT%H%M%SZ}-{window.until:%Y%m%dT%H%M%SZ}"
    return f"{ledger_name(document)}/report/{kind}/{span}"


def digest_json(found: Digest) -> dict[str, Any]:
    """The digest as JSON: the cost report without its lines, and the digest's own parts."""
    whole = as_document(found.report)
    for name in ("charges", "engines", "prices"):
        whole.pop(name)
    whole["kind"] = "gpu-fleet digest"
    whole["waste"] = [
        {
            "cause": one.cause.value,
            "pool": one.pool,
            "usd": text(exact.usd(one.amount)),
            "at_least": bool(one.unpriced),
            "unpriced": list(one.unpriced),
            "seconds": text(exact.seconds(one.time)),
            "resources": list(one.resources),
            "advice": one.advice,
        }
        for one in found.waste
    ]
    whole["savings"] = {
        "spot_usd": text(exact.usd(found.savings.spot)),
        "spot_at_least": bool(found.savings.uncompared),
        "stopped_usd": text(exact.usd(found.savings.stopped)),
        "stopped_at_least": found.savings.unpriced_stops > 0,
        "fallback_usd": text(exact.usd(found.savings.fallback)),
        "fallback_at_least": bool(found.savings.unpriced_fallback),
        "unpriced": sorted({*found.savings.uncompared, *found.savings.unpriced_fallback}),
        "stops": [
            {
                "instance": one.stop.instance_id,
                "pool": one.stop.pool,
                "at": one.stop.at.isoformat(),
                "until": one.until.isoformat(),
                "because": one.because,
                "usd": None if one.amount is None else text(exact.usd(one.amount)),
            }
            for one in found.savings.stops
        ],
    }
    whole["month"] = _month_json(found.month)
    if found.budget is not None:
        whole["budget"] = _budget_json(found.budget)
    whole["budgets"] = [{"of": name} | _budget_json(use) for name, use in found.budgets]
    return whole


def _month_json(month: forecast.Forecast) -> dict[str, Any]:
    spans = [*([month.before] if month.before is not None else []), *month.not_collected]
    return {
        **{name: str(getattr(month, name)) for name in ("spent", "expected", "low", "high")},
        "days_known": digests.days(month.days_known),
        "days_unknown": digests.days(month.days_unknown),
        "at_least": bool(month.unknown),
        "usd_at_least": text(month.at_least),
        "usd_at_most": None if month.at_most is None else text(month.at_most),
        "unpriced": list(month.unpriced),
        "not_collected": [{"start": instant(start), "end": instant(end)} for start, end in spans],
        "unknown": list(month.unknown),
    }


def _budget_json(use: forecast.BudgetUse) -> dict[str, Any]:
    return {
        "usd_per_month": text(use.usd_per_month),
        "spent": text(use.spent),
        "usd_at_least": text(use.at_least),
        "usd_at_most": None if use.at_most is None else text(use.at_most),
        "share": text(use.share),
        "state": use.state.value,
        "unknown": list(use.unknown),
    }


def _report(document: FleetDocument, query: CostQuery, scope: ReportScope) -> Report:
    report = query.report(scope)
    served = zip(report.engines, report.served_by, strict=True)
    return replace(
        report,
        speeds=speeds(report.cells, document.cloud, references_of(report.sources)),
        token_origins=token_origins(report.pool_engines, served, token_method),
    )


def _cuts(found: Digest) -> list[datetime]:
    """The edges of a digest's chart intervals, up to the last moment that the ledger knows."""
    scope = found.report.scope
    known_until = min(scope.until, found.report.known_until or scope.until)
    return series.edges(scope.since, known_until if known_until > scope.since else scope.until)


@contextmanager
def _explained(document: FleetDocument) -> Generator[None]:
    """Converts a failing ledger or a missing price to AppError."""
    try:
        with ledger_errors(document):
            yield
    except MissingPriceError as error:
        raise AppError(
            f"{document.environment}: {error}; or show these costs as unknown with --allow-unpriced"
        ) from error
