"""`gpufleet upgrade`: changes the release on this control host, and rolls back automatically if it is unhealthy."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from app import control_host
from app.errors import AppError, ErrorCode
from cli.host import read_span
from cli.output import STDOUT, Exit, note
from hosts.control.paths import SHA256
from hosts.control.releases import ReleaseError

LONGEST: Final = timedelta(minutes=9)
"""Below the limit of the health check command."""


def register(app: typer.Typer) -> None:
    app.command("upgrade")(upgrade)


def upgrade(
    to: Annotated[str, typer.Option("--to", help="Release to run: the digest that `gpufleet bundle` printed.")] = "",
    rollback: Annotated[bool, typer.Option("--rollback", help="Return to the previous release.")] = False,
    within: Annotated[
        str,
        typer.Option(
            "--within",
            help="Time until all services must be healthy, at most 9m. After that, the release is rolled back.",
        ),
    ] = "3m",
    apply: Annotated[
        bool, typer.Option("--apply", help="Change the release. Without it, the command only prints the change.")
    ] = False,
) -> None:
    """Change the release of this control host. Run the command there, as root.

    Without --to and --rollback it prints the current and the previous release.
    """
    if to and rollback:
        raise AppError("--to and --rollback: give one of them", ErrorCode.WRONG_USE)
    if to and not SHA256.fullmatch(to):
        raise AppError(f"--to {to}: expected a sha256 of 64 hexadecimal digits", ErrorCode.WRONG_USE)
    if read_span(within) > LONGEST:
        raise AppError(
            f"--within {within}: expected at most {LONGEST.total_seconds() / 60:.0f} minutes", ErrorCode.WRONG_USE
        )
    places = control_host.here()
    settings = control_host.read_settings(places)
    try:
        releases = control_host.releases_of(places, settings, note, within)
        if (change := releases.pending_change()) is not None:
            unfinished = f"a change from {change.before[:12]} to {change.to[:12]} is in progress or was interrupted"
            note(f"{unfinished}: `gpufleet host recover`, the next upgrade or the next boot completes it")
        current, chosen = releases.running(), releases.chosen()
        previous = chosen.previous if chosen else None
        if not to and not rollback:
            STDOUT.print(f"current   {current}\nprevious  {previous or '-'}", highlight=False)
            return
        if not (to or previous):
            raise AppError("no previous release is installed: select one with --to", ErrorCode.WRONG_USE)
        if not apply:
            note(f"would change from {current[:12]} to {(to or previous or '')[:12]} (dry run; give --apply)")
            raise typer.Exit(Exit.FOUND)
        if to:
            releases.upgrade(to, datetime.now(UTC))
        else:
            note(f"{releases.rollback(datetime.now(UTC))[:12]} runs again")
    except (ReleaseError, OSError) as error:
        raise AppError(str(error)) from error
