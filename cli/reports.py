"""Puts a fleet's reports together for the commands: ledger, prices, document."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from io import StringIO
from typing import Any

from app import ledgers
from app.declared import declared_of, overrides_of
from app.errors import AppError
from app.references import references_of
from cli.windows import Window
from costs import forecast
from costs import savings as savers
from costs.allocation import Facts, charges
from costs.digest import Digest
from costs.document import CSV_COLUMNS, charges_csv, summed, text
from costs.document import document as as_document
from costs.focus import days
from costs.report import Known, Report, Scope, compute, read, tokens_of
from costs.series import priced_alone
from costs.speed import speeds
from costs.waste import waste
from gpufleet.domain import money as exact
from gpufleet.settings.document import FleetDocument
from ledger import history
from prices.book import MissingPriceError, PriceBook
from prices.packaged import PackagedPrices

FORECAST_FROM = timedelta(days=28)


def scope_of(
    document: FleetDocument, window: Window, since: datetime, until: datetime, allow_unpriced: bool
) -> Scope:
    """The scope of a part of a window."""
    return Scope(
        fleet=ledgers.ledger_name(document),
        environment=document.environment,
        cloud=document.cloud,
        region=document.region,
        since=since,
        until=until,
        now=window.now,
        timezone=window.timezone,
        allow_unpriced=allow_unpriced,
    )


def cost(document: FleetDocument, window: Window, allow_unpriced: bool) -> Report:
    """The cost report. Raises AppError for a missing price."""
    return _report(document, scope_of(document, window, window.since, window.until, allow_unpriced))[0]


def by_day(document: FleetDocument, window: Window) -> Iterator[Report]:
    """One report for each UTC day of the window; unpriced rows are left to the reader."""
    for since, until in days(window.since, window.until):
        yield _report(document, scope_of(document, window, since, until, True))[0]


def as_csv(found: Iterable[tuple[str, Report]]) -> str:
    """Every charge as CSV with a header."""
    body = StringIO()
    writer = csv.writer(body, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for environment, report in found:
        writer.writerows(charges_csv(environment, report.charges))
    return body.getvalue()


def with_facts(document: FleetDocument, window: Window, allow_unpriced: bool) -> tuple[Digest, Facts, PriceBook]:
    """The digest with what pictures are drawn from."""
    scope = scope_of(document, window, window.since, window.until, allow_unpriced)
    report, known = _report(document, scope)
    return _digest(document, window, report, known), known.facts, known.book


def digest(document: FleetDocument, window: Window, allow_unpriced: bool) -> Digest:
    """The digest of a window. Raises AppError for a missing price."""
    return with_facts(document, window, allow_unpriced)[0]


def key(document: FleetDocument, window: Window, kind: str) -> str:
    """Names a posted report, to the second: the same window is posted once."""
    span = f"{window.since:%Y%m%dT%H%M%SZ}-{window.until:%Y%m%dT%H%M%SZ}"
    return f"{ledgers.ledger_name(document)}/report/{kind}/{span}"


def digest_json(found: Digest) -> dict[str, Any]:
    """The digest as JSON: the cost report without its lines, and what the digest adds."""
    whole = as_document(found.report)
    for name in ("charges", "engines", "prices"):
        whole.pop(name)
    whole["kind"] = "gpu-fleet digest"
    whole["waste"] = [
        {
            "cause": one.cause.value,
            "pool": one.pool,
            "usd": text(exact.usd(one.amount)),
            "seconds": text(exact.seconds(one.time)),
            "resources": list(one.resources),
            "advice": one.advice,
        }
        for one in found.waste
    ]
    whole["savings"] = {
        "spot_usd": text(exact.usd(found.savings.spot)),
        "stopped_usd": text(exact.usd(found.savings.stopped)),
        "fallback_usd": text(exact.usd(found.savings.fallback)),
        "stops": [
            {
                "instance": one.stop.instance_id,
                "pool": one.stop.pool,
                "at": one.stop.at.isoformat(),
                "until": one.until.isoformat(),
                "because": one.because,
                "usd": text(exact.usd(one.amount)),
            }
            for one in found.savings.stops
        ],
    }
    month = found.month
    whole["month"] = {name: str(getattr(month, name)) for name in ("spent", "expected", "low", "high", "days_known")}
    if found.budget is not None:
        whole["budget"] = {
            "usd_per_month": text(found.budget.usd_per_month),
            "share": text(found.budget.share),
            "state": found.budget.state.value,
        }
    whole["budgets"] = [
        {"of": name, "usd_per_month": text(use.usd_per_month), "spent": text(use.spent), "share": text(use.share),
         "state": use.state.value}
        for name, use in found.budgets
    ]  # fmt: skip
    return whole


def _report(document: FleetDocument, scope: Scope) -> tuple[Report, Known]:
    engine = ledgers.read_ledger_of(document)
    try:
        with ledgers.ledger_errors(document):
            known = read(engine, scope, overrides_of(document), PackagedPrices(), declared_of(document))
            report = compute(scope, known, tokens_of(engine, scope))
            found = speeds(report.cells, document.cloud, references_of(document))
            return replace(report, speeds=found), known
    except MissingPriceError as error:
        raise AppError(f"{document.environment}: {error}; or show it as unknown with --allow-unpriced") from error


def _digest(document: FleetDocument, window: Window, report: Report, known: Known) -> Digest:
    engine = ledgers.read_ledger_of(document)
    fleet = ledgers.ledger_name(document)
    with ledgers.ledger_errors(document), engine.connect() as connection:
        stops = [
            savers.Stop(instance_id=instance_id, pool=pool, at=at)
            for instance_id, pool, at in history.ended_by_idle(connection, fleet, window.since, window.until)
        ]
    begun = known.begun
    length = window.until - window.since
    before = None
    if begun is not None and begun <= window.since - length:
        scope = scope_of(document, window, window.since - length, window.since, True)
        before = _report(document, scope)[0]
    month = month_of(document, window, begun)
    budget = None if document.budget is None else forecast.budget_use(document.budget.usd_per_month, month)
    return Digest(
        report=report,
        before=before,
        waste=waste(report),
        savings=savers.savings(report, stops, known.facts.runs, known.book),
        month=month,
        budget=budget,
        budgets=_part_budgets(document, window, begun),
    )


def _part_budgets(
    document: FleetDocument, window: Window, begun: datetime | None
) -> list[tuple[str, forecast.BudgetUse]]:
    from cli.budgets import part_uses  # it is made of reports

    return [(" ".join(budget.of), use) for budget, _, use in part_uses(document, window, begun)]


def month_of(document: FleetDocument, window: Window, begun: datetime | None) -> forecast.Forecast:
    """The forecast of the month that the window ends in."""
    start, end = forecast.month_of(window.until, window.timezone)
    since = window.until if begun is None else max(begun, window.until - FORECAST_FROM)
    engine = ledgers.read_ledger_of(document)
    scope = scope_of(document, window, min(since, start), window.until, True)
    with ledgers.ledger_errors(document):
        known = read(engine, scope, overrides_of(document), PackagedPrices(), declared_of(document))

    facts = priced_alone(known.facts)

    def usd(begin: datetime, finish: datetime) -> Decimal:
        return exact.usd(summed(charges(facts, known.book, begin, finish, allow_unpriced=True)))

    full = [usd(*day) for day in forecast.local_days(since, window.until, window.timezone)]
    left = Decimal(str((end - window.until).total_seconds())) / 86_400
    return forecast.forecast(usd(start, window.until), full, max(left, Decimal(0)))
