"""`gpufleet watch cost`: write down what ran, what it served and what it cost."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from sqlalchemy import Engine

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
    failed = False
    for document in documents:
        engine = money.open_ledger_of(document)
        now = datetime.now(UTC)
        try:
            written = collect(engine, sources_of(document), facts_of(document), now)
            failed = not _left(document, engine, now) or failed
            alerts.enqueue_all(document, engine, now)
        except OSError as error:
            STDERR.print(f"gpufleet: {document.environment}: cost: {error}; nothing was written", soft_wrap=True)
            failed = True
            continue
        finally:
            engine.dispose()
        done.append((document.environment, written))
        if show:
            _say(document.environment, written)
        for note in written.notes:
            STDERR.print(f"! {document.environment}: {note}", soft_wrap=True, highlight=False)
    return not failed and not any(written.notes for _, written in done), done


def _left(document: FleetDocument, engine: Engine, now: datetime) -> bool:
    """Leave what the screens show. The facts are written: what hinders that is said, and the pass goes on."""
    try:
        sums.leave(document, engine, now)
    except UserError as error:
        STDERR.print(f"! {document.environment}: cost: sums: {error}", soft_wrap=True, highlight=False)
        return False
    return True


def _say(environment: str, done: Collected) -> None:
    STDERR.print(
        f"{environment}: cost: {done.instances} runs ({done.ended} ended), {done.readings} token readings,"
        f" {done.active_hours} hours of activity, {done.prices} market prices, {done.reservations} reservations",
        soft_wrap=True,
        highlight=False,
    )
