"""One pass of the cost watchdog over one fleet: writes what ran, what it served and what it cost to the ledger."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import Engine

from app import alerts, cost_sums, ledgers, logs, prices, unobserved
from app.api_calls import Count
from app.cost_sources import facts_of, sources_of
from app.errors import AppError
from gpufleet.costs.collector import Collected, collect
from gpufleet.logs import Log, elapsed_s
from gpufleet.settings.document import FleetDocument

_COUNTS: Final = ("instances", "ended", "readings", "energy_readings", "active_hours", "prices", "reservations")
"""Counts in the result of a pass. They are fields of its log line, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPassListener:
    """Receives the results and problems of a pass as soon as they are known."""

    written: Callable[[Collected], None]
    """Called with the facts once they are in the ledger."""
    problem: Callable[[str], None]
    """Called with each failure after the facts were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPassResult:
    """The result of one pass over one fleet."""

    answer: dict[str, Any]
    """As `--json` shows it."""
    whole: bool = False
    """Whether all facts were collected and all later steps succeeded."""
    error: str | None = None
    """Why nothing was written."""


def run(document: FleetDocument, count: Count, progress: CostPassListener) -> CostPassResult:
    """Run one pass. A failure is in the result and in the log."""
    with logs.of_pass(ledgers.ledger_name(document), "cost") as log:
        begun = time.monotonic()
        try:
            result = _collect(document, count, progress)
        except (OSError, AppError) as error:
            log.error("pass", outcome="failed", error=error, duration_s=elapsed_s(begun))
            return CostPassResult(answer={"error": str(error)}, error=str(error))
        _log_result(log, result, elapsed_s(begun))
        return result


def _log_result(log: Log, result: CostPassResult, duration_s: float) -> None:
    """Write one line for each pass. Earlier lines describe what could not be read or done."""
    counts = {name: result.answer[name] for name in _COUNTS}
    outcome = "incomplete" if not result.whole else "done" if any(counts.values()) else "nothing_to_do"
    calls = sum(result.answer["api_calls"].values())
    log.info("pass", outcome=outcome, **counts, api_calls=calls, duration_s=duration_s)


def _collect(document: FleetDocument, count: Count, progress: CostPassListener) -> CostPassResult:
    """Raises OSError or AppError when nothing could be written."""
    engine, now = ledgers.open_ledger_of(document), datetime.now(UTC)
    looks = sources_of(document)
    try:
        with ledgers.ledger_errors(document):
            written = collect(engine, looks.sources, facts_of(document), now)
        for note in written.notes:
            logs.get().warning("problem", part="sources", outcome="failed", error=note)
        progress.written(written)
        left = _after(document, progress, "sums", lambda: cost_sums.store_sums(document, engine, now))
        refresh_prices(document, engine, progress, now)
        notified = _after(document, progress, "alerts", lambda: notify(document, engine, now))
        answer = asdict(written) | {"at": written.at.isoformat(), "metrics_from": written.metrics_from.isoformat()}
        return CostPassResult(
            answer=answer | {"api_calls": looks.api_calls()}, whole=left and notified and not written.notes
        )
    finally:
        count(looks.api_calls())
        engine.dispose()


def notify(document: FleetDocument, engine: Engine, now: datetime) -> None:
    """Add the cost messages for people to the outbox. Raises AppError."""
    alerts.enqueue_all(document, engine, now)
    unobserved.enqueue_all(document, engine, now)


def refresh_prices(document: FleetDocument, engine: Engine, progress: CostPassListener, now: datetime) -> None:
    """Request list prices once a day.

    A failure is reported and does not fail the pass: the facts of the pass are already written.
    """
    try:
        done = prices.refresh_daily(document, engine, now)
        errors = () if done is None else done.errors
        if done is not None:
            outcome = "incomplete" if errors else "done"
            logs.get().info("prices", outcome=outcome, prices=done.prices, machine_types=done.machine_types)
    except (OSError, AppError) as error:
        errors = (str(error),)
    for error in errors:
        progress.problem(f"prices: {error}; they are requested again tomorrow")
        logs.get().error("problem", part="prices", outcome="failed", error=error)


def _after(document: FleetDocument, progress: CostPassListener, what: str, work: Callable[[], object]) -> bool:
    """Run a step that follows the facts, which are already written. Reports an error and lets the pass continue.

    Returns False when the step failed.
    """
    try:
        with ledgers.ledger_errors(document):
            work()
    except AppError as error:
        logs.get().error("problem", part=what, outcome="failed", error=error)
        progress.problem(f"{what}: {error}")
        return False
    return True
