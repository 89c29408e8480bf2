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
    to: Annotated[str, typer.Option("--to", help="Digest that `gpufleet bundle` printed.")] = "",
    rollback: Annotated[bool, typer.Option("--rollback", help="Back to the release before the current one.")] = False,
    within: Annotated[
        str, typer.Option("--within", help="How long its services may take until all are well.")
    ] = "3m",
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without it, it is only said.")] = False,
) -> None:
    """Change the release that this control host runs. Run it there, as root. Alone it says which one runs."""
    if to and rollback:
        raise AppError("--to and --rollback are two ways: give one", ErrorCode.WRONG_USE)
    if to and not SHA256.fullmatch(to):
        raise AppError(f"--to {to}: is no sha256: 64 digits and letters a to f", ErrorCode.WRONG_USE)
    if read_span(within) > LONGEST:
        raise AppError(f"--within {within}: at most {LONGEST.total_seconds() / 60:.0f} minutes", ErrorCode.WRONG_USE)
    places = control_host.here()
    settings = control_host.read_settings(places)
    try:
        releases = control_host.releases_of(places, settings, note, within)
        if (change := releases.unsettled()) is not None:
            words = f"a change from {change.before[:12]} to {change.to[:12]} goes on, or was cut off"
            note(f"{words}: `gpufleet host settle` brings it to an end, and so does the next upgrade or boot")
        current, chosen = releases.running(), releases.chosen()
        previous = chosen.previous if chosen else None
        if not to and not rollback:
            STDOUT.print(f"current   {current}\nprevious  {previous or '-'}", highlight=False)
            return
        if not apply:
            note(f"would go from {current[:12]} to {(to or previous or 'nothing')[:12]} (dry; --apply does it)")
            raise typer.Exit(Exit.FOUND)
        if to:
            releases.upgrade(to, datetime.now(UTC))
        else:
            note(f"{releases.rollback(datetime.now(UTC))[:12]} runs again")
    except (ReleaseError, OSError) as error:
        raise AppError(str(error)) from error
