"""`gpufleet host`: commands that a control host's boot data and systemd units run. People may run them, too."""

from datetime import timedelta
from typing import Annotated

import typer

from app import control_host, control_start, logs
from app.errors import AppError, ErrorCode
from cli.output import Exit, note, write
from cli.signals import on_signals
from gpufleet.domain import durations

app = typer.Typer(
    no_args_is_help=True, help="Commands that a control host's boot data and systemd units run. Run them there."
)


def register(parent: typer.Typer) -> None:
    """Add `host` to the command tree."""
    parent.add_typer(app, name="host")


@app.command()
def install() -> None:
    """Install the systemd unit that starts all services at each boot of this machine, and start it."""
    control_start.install(control_host.here())


@app.command()
def start(
    as_it_is: Annotated[
        bool,
        typer.Option("--as-it-is", help="Start the current release, even if the volume records another release."),
    ] = False,
) -> None:
    """Mount the volume, prepare the ledger, write the configuration and start the services.

    The command waits until the volume and the fleet document exist.
    """
    control_start.start(control_host.here(), note, as_it_is=as_it_is)


@app.command()
def check(
    within: Annotated[
        str, typer.Option("--within", help="Longest time to wait until all services are healthy, for example 3m.")
    ] = "0s",
    well_for: Annotated[
        str, typer.Option("--for", help="Time that all services must stay healthy, for example 30s.")
    ] = "0s",
) -> None:
    """Check the health of every service on this machine. Exit code 3: a service is not healthy."""
    services = control_host.services_of(control_host.here())
    wrong = control_host.failure_after(services, read_span(within), read_span(well_for))
    if wrong is not None:
        note(wrong)
        raise typer.Exit(Exit.FOUND)
    write(f"{len(services)} services are healthy\n")


@app.command()
@app.command("settle", hidden=True)  # the name in the units of 0.1.0
def recover() -> None:
    """Resolve an interrupted upgrade: finish it, or roll it back if the services are not healthy. A timer runs it."""
    control_start.recover(control_host.here(), note)


@app.command()
def ledger() -> None:
    """Migrate the fleet's ledger to the schema of this release. If there is no ledger, restore the newest backup."""
    control_start.ensure_ledger(control_host.here(), note)


@app.command()
def feed(
    once: Annotated[bool, typer.Option("--once", help="Read the cloud once, then exit.")] = False,
) -> None:
    """Write the fleet's state in the cloud to files, for services without cloud credentials. A unit runs it."""
    logs.configure("feed", service=True)
    control_start.feed(control_host.here(), logs.get(), on_signals(), once=once)


@app.command("try")
def try_() -> None:
    """Check that this release can run here: the image's programs, the fleet document, and a copy of the ledger."""
    write(f"{control_host.try_release(control_host.here())}\n")


def read_span(text: str) -> timedelta:
    """A time span that a user gave. Raises AppError."""
    try:
        return durations.parse(text)
    except ValueError as error:
        raise AppError(str(error), ErrorCode.WRONG_USE) from error
