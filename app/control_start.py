"""Starts the services of a control host: at its first boot, at each boot, after a change of releases."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from app import backups, control_host, monitoring_files
from app.control_host import LiveMachine, find_programs
from app.errors import AppError, Code
from app.fleets import load_one
from app.monitoring_files import Addresses
from clouds import secrets
from control import units, volume
from control.places import Places
from control.releases import BusyError, ReleaseError, Releases
from control.settings import ControlSettings, Role
from gpufleet.settings.document import FleetDocument
from node.ports import StepError
from node.systemd import Systemd, run

LOOK_S: Final = 5.0
Say = Callable[[str], None]
"""Receives what people are to know while they wait."""


def install(places: Places) -> None:
    """Write the unit that starts everything at each boot of this machine, and start it. Raises AppError."""
    settings = control_host.read_settings(places)
    programs = find_programs(settings)
    systemd = Systemd(places.root)
    try:
        control_host.make_user(places)
        systemd.install(units.BOOT, units.render(settings, places, programs)[units.BOOT])
        systemd.enable(units.BOOT)
        systemd.start(units.BOOT)
    except (StepError, OSError) as error:
        raise AppError(str(error)) from error


def start(places: Places, say: Say, *, as_it_is: bool) -> None:
    """Mount the volume, bring the ledger, write the configuration, start the services. Waits for what is missing.

    `as_it_is`: start the current release, whichever was chosen before. Raises AppError.
    """
    settings = control_host.read_settings(places)
    try:
        if settings.volume is not None:
            device = places.root / settings.volume.lstrip("/")
            say(volume.mount(str(device), places.data, run))
        places.data.mkdir(parents=True, exist_ok=True)
        if not as_it_is and _settled(places, settings, say):
            return
        document = _document(settings.fleet, say)
        if settings.role is Role.CONTROL:
            _restore(document, places, say)
            control_host.make_token(places)
            control_host.fetch_secrets(places, settings, secrets.read, say)
            _configure(document, settings, places, say)
        control_host.give_away(places)
        _start_services(settings, places, say)
    except (StepError, ReleaseError, OSError) as error:
        raise AppError(str(error)) from error


def settle(places: Places, say: Say) -> None:
    """Bring an upgrade that was cut off to an end: finished, or taken back when it is not well. Raises AppError."""
    machine = LiveMachine(places=places, settings=control_host.read_settings(places))
    releases = Releases(places=places, machine=machine, say=say)
    try:
        # without one there is nothing to wait for, nor to lock
        if releases.unsettled() is not None:
            releases.settle(datetime.now(UTC))
    except BusyError as busy:
        say(str(busy))
    except (ReleaseError, OSError) as error:
        raise AppError(str(error)) from error


def _settled(places: Places, settings: ControlSettings, say: Say) -> bool:
    """Whether an upgrade that was cut off was brought to an end, and so all is started.

    Else the release that the volume knows is taken up: a new machine's boot data may name an older one.
    """
    releases = Releases(places=places, machine=LiveMachine(places=places, settings=settings), say=say)
    if releases.settle(datetime.now(UTC)):
        return True
    chosen, current = releases.chosen(), releases.running()
    if chosen is None:
        releases.choose(current, None, datetime.now(UTC))
    elif chosen.current != current:
        say(f"this volume was last used by {chosen.current[:12]}: taking it up instead of {current[:12]}")
        releases.stage(chosen.current)
        releases.link(chosen.current)
        command = str(places.current / "bin" / "gpufleet")
        os.execv(command, [command, "host", "start", "--as-it-is"])  # noqa: S606 - the release's own program
    return False


def _document(url: str, say: Say) -> FleetDocument:
    """The fleet document; waits for the first `pulumi up` to write it."""
    said = ""
    while True:
        try:
            return load_one(url)
        except AppError as error:
            if str(error) != said:
                said = str(error)
                say(f"waiting for the fleet document: {said}")
            time.sleep(LOOK_S)


def _restore(document: FleetDocument, places: Places, say: Say) -> None:
    """The ledger of the newest backup, where the volume has none."""
    # a restore that was cut off is begun again: rows that are there already stay
    begun = places.data / "ledger.restoring"
    if not document.ledger_url.startswith("sqlite:") or (places.ledger.is_file() and not begun.exists()):
        return
    if not backups.has_backup(document):
        say("no ledger and no backup of one: a new fleet")
        return
    begun.touch()
    done = backups.restore(document, "")
    say(f"{done.key} of {done.at}: {done.rows} rows read")
    if done.breaches:
        raise AppError(f"{done.breaches} breaches: `gpufleet ledger verify` names them", Code.FOUND)
    begun.unlink()


def _configure(document: FleetDocument, settings: ControlSettings, places: Places, say: Say) -> None:
    near = units.near(settings)
    addresses = Addresses(
        console=f"{near}:9600",
        daemon=f"{settings.inner}:9470",
        alertmanager=f"{settings.inner}:9093",
        routers=[f"{near}:8404"] if settings.routes else (),
        token_file=places.token,
    )
    monitoring_files.write(document, places.monitoring, addresses)
    say(f"{places.monitoring}: Prometheus, Alertmanager and Grafana of {document.environment}")


def _start_services(settings: ControlSettings, places: Places, say: Say) -> None:
    systemd = Systemd(places.root)
    for name, text in units.render(settings, places, find_programs(settings)).items():
        # the unit that runs this very command is changed at the next boot
        systemd.install(name, text)
    found = units.services(settings, places, find_programs(settings))
    for one in found:
        systemd.start(one.name)
    emulated = bool(places.root.parts[1:])
    for name in () if emulated else units.timers(settings):
        systemd.enable(name)
        systemd.start(name)
    say(f"started {', '.join(one.name for one in found)}")
