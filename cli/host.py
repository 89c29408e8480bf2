"""`gpufleet host`: the commands of a control host. Its boot data and units run them; people may run them, too."""

from datetime import timedelta
from typing import Annotated

import typer

from app import control_host, control_start, logs
from app.errors import AppError, ErrorCode
from cli.output import Exit, note, write
from cli.signals import on_signals
from gpufleet.domain import durations

app = typer.Typer(no_args_is_help=True, help="The control host's own commands; its boot data and units run them.")


def register(parent: typer.Typer) -> None:
    """Add `host` to the command tree."""
    parent.add_typer(app, name="host")


@app.command()
def install() -> None:
    """Write the unit that starts everything at each boot of this machine, and start it."""
    control_start.install(control_host.here())


@app.command()
def start(
    as_it_is: Annotated[
        bool, typer.Option("--as-it-is", help="Start the current release, whichever was chosen before.")
    ] = False,
) -> None:
    """Mount the volume, bring the ledger, write the configuration, start the services. Waits for what is missing."""
    control_start.start(control_host.here(), note, as_it_is=as_it_is)


@app.command()
def check(
    within: Annotated[str, typer.Option("--within", help="How long to wait until all are well.")] = "0s",
    well_for: Annotated[str, typer.Option("--for", help="How long they must stay well.")] = "0s",
) -> None:
    """Ask every service of this machine whether it is well. Exit code 3 when one is not."""
    services = control_host.services_of(control_host.here())
    wrong = control_host.wrong_after(services, read_span(within), read_span(well_for))
    if wrong is not None:
        note(wrong)
        raise typer.Exit(Exit.FOUND)
    write(f"{len(services)} services are well\n")


@app.command()
def settle() -> None:
    """Bring an upgrade that was cut off to an end: finished, or taken back when it is not well. A timer asks."""
    control_start.settle(control_host.here(), note)


@app.command()
def ledger() -> None:
    """Have the fleet's ledger, from its newest backup where there is none, at this release's schema."""
    control_start.have_ledger(control_host.here(), note)


@app.command()
def feed(
    once: Annotated[bool, typer.Option("--once", help="Look once, then end.")] = False,
) -> None:
    """Write what the cloud says of the fleet into files, for services that have no credentials. A unit runs it."""
    logs.configure("feed", service=True)
    control_start.feed(control_host.here(), logs.get(), on_signals(), once=once)


@app.command("try")
def try_() -> None:
    """Whether this release could run here: the image's programs, the fleet document, a copy of the ledger."""
    write(f"{control_host.try_release(control_host.here())}\n")


def read_span(text: str) -> timedelta:
    """A time span that a user gave. Raises AppError."""
    try:
        return durations.parse(text)
    except ValueError as error:
        raise AppError(str(error), ErrorCode.WRONG_USE) from error
