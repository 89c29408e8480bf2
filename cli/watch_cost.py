"""`gpufleet watch cost`: write down what ran, what it served and what it cost."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from app import alerts, cost_sums, ledgers, logs
from app.api_calls import Count
from app.cost_sources import facts_of, sources_of
from app.errors import AppError
from app.fleets import load
from cli.options import FleetOption
from cli.output import STDERR, Exit, print_json
from costs.collector import Collected, collect
from gpufleet.settings.document import FleetDocument


def register(watch_app: typer.Typer) -> None:
    watch_app.command("cost")(cost)


def cost(
    fleet: FleetOption = None,
    apply: Annotated[  # noqa: ARG001 - one crontab line for all watchdogs
        bool, typer.Option("--apply", help="Taken as by the other watchdogs; it makes no difference here.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what went wrong.")] = False,
) -> None:
    """Collect money facts into the ledger. It only reads clouds, with and without --apply. Run it every 5 minutes."""
    code, answers = over_fleets(load(fleet), show=not as_json and not quiet)
    if as_json:
        print_json(answers)
    if code is not Exit.DONE:
        raise typer.Exit(code)


def over_fleets(
    documents: Sequence[FleetDocument], *, show: bool, count: Count = lambda _: None
) -> tuple[Exit, list[dict[str, Any]]]:
    """One pass over each fleet: whether all was had, and what was written, or why nothing was."""
    code = Exit.DONE
    answers: list[dict[str, Any]] = []
    for document in documents:
        try:
            whole, answer = _one(document, count, show=show)
        except (OSError, AppError) as error:
            logs.of_pass(document.environment, "cost").error("pass", outcome="failed", error=str(error))
            STDERR.print(f"gpufleet: {document.environment}: cost: {error}; nothing was written", soft_wrap=True)
            whole, answer = False, {"error": str(error)}
        answers.append({"environment": document.environment, **answer})
        code = code if whole else Exit.FAILED
    return code, answers


def _one(document: FleetDocument, count: Count, *, show: bool) -> tuple[bool, dict[str, Any]]:
    """One fleet. Raises OSError or AppError when nothing could be written."""
    engine, now = ledgers.open_ledger_of(document), datetime.now(UTC)
    looks = sources_of(document)
    try:
        with ledgers.ledger_errors(document):
            written = collect(engine, looks.sources, facts_of(document), now)
        if show:
            _say(document.environment, written)
        for note in written.notes:
            STDERR.print(f"! {document.environment}: {note}", soft_wrap=True, highlight=False)
        left = _after(document, "sums", lambda: cost_sums.leave(document, engine, now))
        told = _after(document, "alerts", lambda: alerts.enqueue_all(document, engine, now))
        answer = asdict(written) | {"at": written.at.isoformat(), "metrics_from": written.metrics_from.isoformat()}
        return left and told and not written.notes, {**answer, "api_calls": looks.api_calls()}
    finally:
        count(looks.api_calls())
        engine.dispose()


def _after(document: FleetDocument, what: str, work: Callable[[], object]) -> bool:
    """What follows the facts, which are written: what hinders it is said, and the pass goes on."""
    try:
        with ledgers.ledger_errors(document):
            work()
    except AppError as error:
        STDERR.print(f"! {document.environment}: cost: {what}: {error}", soft_wrap=True, highlight=False)
        return False
    return True


def _say(environment: str, done: Collected) -> None:
    STDERR.print(
        f"{environment}: cost: {done.instances} runs ({done.ended} ended), {done.readings} token readings,"
        f" {done.active_hours} hours of activity, {done.prices} market prices, {done.reservations} reservations",
        soft_wrap=True,
        highlight=False,
    )
