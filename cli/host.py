"""`gpufleet host`: what a control host does with its bundle. Its boot data and units run these; people may, too."""

import os
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from app import backups, control_host
from app.errors import AppError, Code
from app.fleets import load_one
from cli import ledger_backup, monitoring
from cli.output import STDERR, Exit
from clouds import secrets
from control import units, volume
from control.places import Places
from control.releases import BusyError, ReleaseError, Releases
from control.settings import ControlSettings, ControlSettingsError, Role
from control.settings import load as load_settings
from gpufleet.domain import durations
from gpufleet.settings.document import FleetDocument
from node.ports import StepError
from node.systemd import Systemd, run

LOOK_S: Final = 5.0
LOCAL_ADDRESS: Final = "GPUFLEET_LOCAL_ADDRESS"
"""Of an emulated machine: its neighbours live on the same loopback."""

app = typer.Typer(no_args_is_help=True, help="The control host's own commands; its boot data and units run them.")


def register(parent: typer.Typer) -> None:
    """Add `host` to the command tree."""
    parent.add_typer(app, name="host")


def read_settings(places: Places) -> ControlSettings:
    """This machine's settings, in whose cloud and fleet everything here happens. Raises AppError."""
    try:
        settings = load_settings(places.settings)
    except ControlSettingsError as error:
        raise AppError(str(error)) from error
    os.environ.update(settings.environment | {"GPUFLEET_FLEET": settings.fleet})
    if address := os.environ.get(LOCAL_ADDRESS):
        return replace(settings, address=address, inner=address)
    return settings


@app.command()
def install() -> None:
    """Write the unit that starts everything at each boot of this machine, and start it."""
    places = control_host.here()
    settings = read_settings(places)
    programs = control_host.find_programs(settings)
    systemd = Systemd(places.root)
    try:
        control_host.make_user(places)
        systemd.install(units.BOOT, units.render(settings, places, programs)[units.BOOT])
        systemd.enable(units.BOOT)
        systemd.start(units.BOOT)
    except (StepError, OSError) as error:
        raise AppError(str(error)) from error


@app.command()
def start(
    as_it_is: Annotated[
        bool, typer.Option("--as-it-is", help="Start the current release, whichever was chosen before.")
    ] = False,
) -> None:
    """Mount the volume, bring the ledger, write the configuration, start the services. Waits for what is missing."""
    places = control_host.here()
    settings = read_settings(places)
    try:
        if settings.volume is not None:
            device = places.root / settings.volume.lstrip("/")
            _say(volume.mount(str(device), places.data, run))
        places.data.mkdir(parents=True, exist_ok=True)
        if not as_it_is and _settled(places, settings):
            return
        document = _document(settings.fleet)
        if settings.role is Role.CONTROL:
            _restore(document, places)
            control_host.make_token(places)
            control_host.fetch_secrets(places, settings, secrets.read, _say)
            _configure(settings, places)
        control_host.give_away(places)
        _start_services(settings, places)
    except (StepError, ReleaseError, OSError) as error:
        raise AppError(str(error)) from error


@app.command()
def check(
    within: Annotated[str, typer.Option("--within", help="How long to wait until all are well.")] = "0s",
    well_for: Annotated[str, typer.Option("--for", help="How long they must stay well.")] = "0s",
) -> None:
    """Ask every service of this machine whether it is well. Exit code 3 when one is not."""
    places = control_host.here()
    settings = read_settings(places)
    found = units.services(settings, places, control_host.find_programs(settings))
    services = {one.name: one.healthy for one in found}
    until = time.monotonic() + read_span(within).total_seconds()
    while (wrong := control_host.wrong_with(services)) is not None and time.monotonic() < until:
        time.sleep(min(1.0, max(0.0, until - time.monotonic())))
    if wrong is None and (hold := read_span(well_for)):
        time.sleep(hold.total_seconds())
        wrong = control_host.wrong_with(services)
    if wrong is not None:
        sys.stderr.write(f"{wrong}\n")
        raise typer.Exit(Exit.FOUND)
    sys.stdout.write(f"{len(services)} services are well\n")


@app.command()
def settle() -> None:
    """Bring an upgrade that was cut off to an end: finished, or taken back when it is not well. A timer asks."""
    places = control_host.here()
    machine = control_host.LiveMachine(places=places, settings=read_settings(places))
    releases = Releases(places=places, machine=machine, say=_say)
    try:
        # without one there is nothing to wait for, nor to lock
        if releases.unsettled() is not None:
            releases.settle(datetime.now(UTC))
    except BusyError as busy:
        _say(str(busy))
    except (ReleaseError, OSError) as error:
        raise AppError(str(error)) from error


@app.command("try")
def try_() -> None:
    """Whether this release could run here: the image's programs, the fleet document, a copy of the ledger."""
    places = control_host.here()
    settings = read_settings(places)
    control_host.find_programs(settings)
    load_one(settings.fleet)
    sys.stdout.write(f"{control_host.try_ledger(places)}\n")


def _settled(places: Places, settings: ControlSettings) -> bool:
    """Whether an upgrade that was cut off was brought to an end, and so all is started.

    Else the release that the volume knows is taken up: a new machine's boot data may name an older one.
    """
    releases = Releases(places=places, machine=control_host.LiveMachine(places=places, settings=settings), say=_say)
    if releases.settle(datetime.now(UTC)):
        return True
    chosen, current = releases.chosen(), releases.running()
    if chosen is None:
        releases.choose(current, None, datetime.now(UTC))
    elif chosen.current != current:
        _say(f"this volume was last used by {chosen.current[:12]}: taking it up instead of {current[:12]}")
        releases.stage(chosen.current)
        releases.link(chosen.current)
        command = str(places.current / "bin" / "gpufleet")
        os.execv(command, [command, "host", "start", "--as-it-is"])  # noqa: S606 - the release's own program
    return False


def _document(url: str) -> FleetDocument:
    """The fleet document; waits for the first `pulumi up` to write it."""
    said = ""
    while True:
        try:
            return load_one(url)
        except AppError as error:
            if str(error) != said:
                said = str(error)
                _say(f"waiting for the fleet document: {said}")
            time.sleep(LOOK_S)


def _restore(document: FleetDocument, places: Places) -> None:
    """The ledger of the newest backup, where the volume has none."""
    # a restore that was cut off is begun again: rows that are there already stay
    begun = places.data / "ledger.restoring"
    if not document.ledger_url.startswith("sqlite:") or (places.ledger.is_file() and not begun.exists()):
        return
    if not backups.has_backup(document):
        _say("no ledger and no backup of one: a new fleet")
        return
    begun.touch()
    ledger_backup.restore()
    begun.unlink()


def _configure(settings: ControlSettings, places: Places) -> None:
    places.monitoring.mkdir(parents=True, exist_ok=True)
    near = units.near(settings)
    monitoring.render(
        out=places.monitoring,
        fleet=[settings.fleet],
        console=f"{near}:9600",
        daemon=f"{settings.inner}:9470",
        manager=f"{settings.inner}:9093",
        router=[f"{near}:8404"] if settings.routes else [],
        find_routers=not settings.routes,
        token_file=places.token,
    )


def _start_services(settings: ControlSettings, places: Places) -> None:
    systemd = Systemd(places.root)
    for name, text in units.render(settings, places, control_host.find_programs(settings)).items():
        # the unit that runs this very command is changed at the next boot
        systemd.install(name, text)
    found = units.services(settings, places, control_host.find_programs(settings))
    for one in found:
        systemd.start(one.name)
    emulated = bool(places.root.parts[1:])
    for name in () if emulated else units.timers(settings):
        systemd.enable(name)
        systemd.start(name)
    _say(f"started {', '.join(one.name for one in found)}")


def read_span(text: str) -> timedelta:
    """A time span as people write it. Raises AppError."""
    try:
        return durations.parse(text)
    except ValueError as error:
        raise AppError(str(error), Code.WRONG_USE) from error


def _say(line: str) -> None:
    STDERR.print(line, highlight=False, markup=False, soft_wrap=True)
