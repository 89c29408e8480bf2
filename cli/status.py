"""`gpufleet status`: shows the state of running fleets."""

import time
from datetime import timedelta
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from app.errors import AppError, ErrorCode
from app.fleet_view import Costs, Watched
from app.fleets import load
from cli.options import FleetOption, JsonOption
from cli.output import STDOUT, Exit, print_json
from gpufleet.console.document import document as as_document
from gpufleet.console.text import screen
from gpufleet.console.view import FleetView
from gpufleet.domain import garbage
from gpufleet.domain.durations import parse as parse_duration

EveryOption = Annotated[str, typer.Option("--every", help="Interval between two updates of the screen, at least 1s.")]
CostsOption = Annotated[
    bool | None,
    typer.Option(
        "--costs/--no-costs",
        help="Compute the cost of the last hour and of today now, or leave it out. Default: show the last result of "
        "the cost watchdog.",
    ),
]

_COSTS: Final = {None: Costs.LEFT, True: Costs.REFRESHED, False: Costs.NONE}


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    fleet: FleetOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Update the screen until Ctrl-C.")] = False,
    every: EveryOption = "2s",
    costs: CostsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all fleets: pools, draining and marked instances with their reasons, USD an hour, alerts and brakes."""
    fleets = [Watched(document, _COSTS[costs]) for document in load(fleet)]
    if watch and as_json:
        raise AppError("--watch and --json: give one of them", ErrorCode.WRONG_USE)
    if watch:
        _watch(fleets, pause(every))
        return
    with garbage.collector_paused(kept=True):  # the process ends soon after
        views = [watched.look() for watched in fleets]
        if as_json:
            documents = [as_document(view) for view in views]
            print_json(documents[0] if len(documents) == 1 else documents)
        else:
            STDOUT.print(_screens(views), highlight=False)
    if any(view.read.instances is None for view in views):
        raise typer.Exit(Exit.FAILED)


def pause(every: str) -> timedelta:
    """The interval between two reads. Raises AppError."""
    try:
        return max(parse_duration(every), timedelta(seconds=1))
    except ValueError as error:
        raise AppError(f"--every: {error}", ErrorCode.WRONG_USE) from error


def _watch(fleets: list[Watched], every: timedelta) -> None:
    with Live(console=STDOUT, auto_refresh=False, screen=STDOUT.is_terminal) as live:
        while True:
            live.update(_screens([watched.look() for watched in fleets]), refresh=True)
            try:
                time.sleep(every.total_seconds())
            except KeyboardInterrupt:
                return


def _screens(views: list[FleetView]) -> RenderableType:
    parts: list[RenderableType] = []
    for view in views:
        parts += [screen(view), ""]
    return Group(*parts[:-1])
