"""`gpufleet watch cost`: write down what ran, what it served and what it cost."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from cli import alerts, money, sums
from cli.fleets import FleetOption, load
from cli.output import STDERR, Exit, UserError, print_json
from cli.sources import facts_of, sources_of
from costs.collector import Collected, collect
from fleet.document import FleetDocument


def register(watch_app: typer.Typer) -> None:
    watch_app.command("cost")(cost)


def cost(
    fleet: FleetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what went wrong.")] = False,
) -> None:
    """Collect money facts into the ledger (it only reads clouds, so there is no --apply). Run it every 5 minutes."""
    whole, done = over_fleets(load(fleet), show=not as_json and not quiet)
    if as_json:
        print_json([{"environment": name, **asdict(written)} for name, written in done])
    if not whole:
        raise typer.Exit(Exit.FAILED)


def over_fleets(documents: Sequence[FleetDocument], *, show: bool) -> tuple[bool, list[tuple[str, Collected]]]:
    """One pass over each fleet: whether all was had, and what was written by environment."""
    done: list[tuple[str, Collected]] = []
    whole = True
    for document in documents:
        try:
            whole = _one(document, done, show=show) and whole
        except (OSError, UserError) as error:
            STDERR.print(f"gpufleet: {document.environment}: cost: {error}; nothing was written", soft_wrap=True)
            whole = False
    return whole, done


def _one(document: FleetDocument, done: list[tuple[str, Collected]], *, show: bool) -> bool:
    """One fleet; what was written joins `done`. Raises OSError or UserError when nothing could be written."""
    engine, now = money.open_ledger_of(document), datetime.now(UTC)
    try:
        with money.ledger_errors(document):
            written = collect(engine, sources_of(document), facts_of(document), now)
        done.append((document.environment, written))
        if show:
            _say(document.environment, written)
        for note in written.notes:
            STDERR.print(f"! {document.environment}: {note}", soft_wrap=True, highlight=False)
        left = _after(document, "sums", lambda: sums.leave(document, engine, now))
        told = _after(document, "alerts", lambda: alerts.enqueue_all(document, engine, now))
        return left and told and not written.notes
    finally:
        engine.dispose()


def _after(document: FleetDocument, what: str, work: Callable[[], object]) -> bool:
    """What follows the facts, which are written: what hinders it is said, and the pass goes on."""
    try:
        with money.ledger_errors(document):
            work()
    except UserError as error:
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
