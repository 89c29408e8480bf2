"""`gpufleet watch cost`: records what ran, what it served and what it cost."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from app import cost_pass
from app.api_calls import Count
from app.cost_pass import CostPassListener, CostPassResult
from app.fleets import load
from cli.options import FleetOption, JsonOption
from cli.output import Exit, note_unlogged, print_json
from gpufleet.costs.collector import Collected
from gpufleet.settings.document import FleetDocument


def register(watch_app: typer.Typer) -> None:
    watch_app.command("cost")(cost)


def cost(
    fleet: FleetOption = None,
    apply: Annotated[  # noqa: ARG001 - one crontab line for all watchdogs
        bool, typer.Option("--apply", help="Has no effect; accepted because the other watchdogs have it.")
    ] = False,
    as_json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
) -> None:
    """Record instance runs, tokens, activity and prices in the ledger, for cost reports. Run it every 5 minutes.

    It changes nothing in the cloud.
    """
    code, answers = over_fleets(load(fleet), show=not as_json and not quiet)
    if as_json:
        print_json(answers)
    if code is not Exit.DONE:
        raise typer.Exit(code)


def over_fleets(
    documents: Sequence[FleetDocument], *, show: bool, count: Count = lambda _: None
) -> tuple[Exit, list[dict[str, Any]]]:
    """Run one pass over each fleet. Returns whether all was collected, and what was written or why nothing was."""
    done = [(document.environment, _collect(document, count, show=show)) for document in documents]
    code = Exit.DONE if all(result.whole for _, result in done) else Exit.FAILED
    return code, [{"environment": environment, **result.answer} for environment, result in done]


def _collect(document: FleetDocument, count: Count, *, show: bool) -> CostPassResult:
    environment = document.environment

    def written(done: Collected) -> None:
        if show:
            _note_collected(environment, done)
        for note in done.notes:
            note_unlogged(f"! {environment}: {note}")

    def problem(message: str) -> None:
        note_unlogged(f"! {environment}: cost: {message}")

    result = cost_pass.run(document, count, CostPassListener(written=written, problem=problem))
    if result.error is not None:
        note_unlogged(f"gpufleet: {environment}: cost: {result.error}; nothing was written")
    return result


def _note_collected(environment: str, done: Collected) -> None:
    note_unlogged(
        f"{environment}: cost: {done.instances} instance runs ({done.ended} ended), {done.readings} token readings,"
        f" {done.energy_readings} energy readings,"
        f" {done.active_hours} hours of activity, {done.prices} market prices, {done.reservations} reservations"
    )
