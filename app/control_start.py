"""Starts the services of a control host: at its first boot, at each boot and after a change of releases."""

import os
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from app import backups, control_host, monitoring_files
from app.control_host import find_programs
from app.errors import AppError, ErrorCode
from app.feed import FeedPaths
from app.feed_writer import Feeder
from app.fleets import load_one
from app.ledgers import open_ledger_of
from app.monitoring_files import Addresses
from app.router_fleet import LiveFleet
from gpufleet.clouds import secrets
from gpufleet.ledger.schema import file_of
from gpufleet.logs import Log
from gpufleet.settings.document import FleetDocument
from hosts.control import hosts_file, layout, ledger_file, units, volume
from hosts.control.paths import COMMAND, HostPaths, User
from hosts.control.releases import ReleaseBusyError, ReleaseError
from hosts.control.settings import ControlSettings, Role
from hosts.node.ports import StepError
from hosts.node.systemd import Systemd, run

LOOK_S: Final = 5.0
FEED_EVERY_S: Final = 0.5
"""The interval at which a router with credentials reads the cloud, too."""
RESTORE_LIMIT_S: Final = 600.0
PROMETHEUS_PORT: Final = 9090
Announce = Callable[[str], None]
"""Receives progress messages for the user."""


def install(places: HostPaths) -> None:
    """Write the unit that starts all services at each boot of this machine, and start it. Raises AppError."""
    settings = control_host.read_settings(places)
    programs = find_programs(settings)
    systemd = Systemd(places.root)
    try:
        systemd.install(units.BOOT, units.render(settings, places, programs)[units.BOOT])
        systemd.enable(units.BOOT)
        systemd.start(units.BOOT)
    except (StepError, OSError) as error:
        raise AppError(str(error)) from error


def start(places: HostPaths, announce: Announce, *, as_it_is: bool) -> None:
    """Mount the volume, prepare the ledger, write the configuration and start the services.

    Waits for the volume and the fleet document. `as_it_is`: start the current release, and ignore which release was
    chosen before. Raises AppError.
    """
    settings = control_host.read_settings(places)
    try:
        if settings.volume is not None:
            device = places.root / settings.volume.lstrip("/")
            announce(volume.mount(str(device), places.data, run))
        # the services read the files that are written below, except where a mode is given
        os.umask(0o022)
        ids = control_host.make_users(places)
        if moved := layout.prepare(places, ids):
            announce(f"migrated from release 0.1: {', '.join(moved)}")
        if not as_it_is and _recovered(places, settings, announce):
            return
        document = _document(settings.fleet, announce)
        if settings.role is Role.CONTROL:
            _as_watchdogs(places, "ledger")
            _as_watchdogs(places, "feed", "--once")
            control_host.make_token(places, ids)
            control_host.fetch_secrets(places, settings, secrets.read, announce)
            _configure(document, settings, places, announce)
        _start_services(settings, places, announce)
    except (StepError, ReleaseError, OSError) as error:
        raise AppError(str(error)) from error


def ensure_ledger(places: HostPaths, announce: Announce) -> None:
    """Prepare the fleet's ledger at this release's schema. If the volume has none, restore the newest backup.

    Runs as the user that owns the ledger. Raises AppError.
    """
    settings = control_host.read_settings(places)
    control_host.drop_privileges(places)
    document = load_one(settings.fleet)
    if (file := file_of(document.ledger_url)) is None:
        return
    is_here = file.resolve() == places.ledger.resolve()
    if not places.emulated and not is_here:
        raise AppError(
            f"the fleet document names the ledger {file}, but on this machine it is stored in {places.ledger}: "
            "leave `ledger_url` out of the settings, or set it to a PostgreSQL URL"
        )
    try:
        if is_here:
            fresh = not ledger_file.is_there(places.ledger)
            _restore(document, places, announce, fresh=fresh)
            ledger_file.make(places.ledger)
        open_ledger_of(document).dispose()
    except OSError as error:
        raise AppError(f"{places.ledger}: {error}") from error


def feed(places: HostPaths, log: Log, stop: threading.Event, *, once: bool) -> None:
    """Write the state of the cloud into files for services without credentials, until `stop`. Raises AppError."""
    settings = control_host.read_settings(places)
    control_host.drop_privileges(places)
    os.umask(0o022)
    feeder = Feeder(fleet=LiveFleet(settings.fleet), paths=FeedPaths(folder=places.feed), log=log)
    log.info("process", outcome="started", path=places.feed)
    while True:
        began = time.monotonic()
        feeder.tick()
        if once or stop.wait(max(0.0, FEED_EVERY_S - (time.monotonic() - began))):
            return


def recover(places: HostPaths, announce: Announce) -> None:
    """Resolve an interrupted upgrade: finish it, or roll it back if the services are unhealthy. Raises AppError."""
    settings = control_host.read_settings(places)
    try:
        releases = control_host.releases_of(places, settings, announce)
        # without an interrupted upgrade there is nothing to wait for and nothing to lock
        if releases.pending_change() is not None:
            releases.recover(datetime.now(UTC))
    except ReleaseBusyError as busy:
        announce(str(busy))
    except (ReleaseError, OSError) as error:
        raise AppError(str(error)) from error


def _recovered(places: HostPaths, settings: ControlSettings, announce: Announce) -> bool:
    """Whether an interrupted upgrade was resolved, which also started all services.

    Otherwise this switches to the release that the volume records: a new machine's boot data may name an older one.
    """
    releases = control_host.releases_of(places, settings, announce)
    if releases.recover(datetime.now(UTC)):
        return True
    chosen, current = releases.chosen(), releases.running()
    if chosen is None:
        releases.choose(current, None, datetime.now(UTC))
    elif chosen.current != current:
        announce(
            f"this volume was last used by {chosen.current[:12]}: starting that release instead of {current[:12]}"
        )
        releases.stage(chosen.current)
        releases.link(chosen.current)
        command = str(places.current / "bin" / "gpufleet")
        os.execv(command, [command, "host", "start", "--as-it-is"])  # noqa: S606 - the release's own program
    return False


def _document(url: str, announce: Announce) -> FleetDocument:
    """The fleet document. Waits until the first `pulumi up` has written it."""
    message = ""
    while True:
        try:
            return load_one(url)
        except AppError as error:
            if str(error) != message:
                message = str(error)
                announce(f"waiting for the fleet document: {message}")
            time.sleep(LOOK_S)


def _as_watchdogs(places: HostPaths, *arguments: str) -> None:
    """Run a command of this release. The command drops root's rights and writes to the same log. Raises AppError."""
    command = [str(places.current / COMMAND), "host", *arguments]
    try:
        # the services run in this folder, so a ledger with a relative path is here, too
        where = places.ledger.parent
        done = subprocess.run(command, cwd=where, timeout=RESTORE_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AppError(f"`gpufleet host {' '.join(arguments)}`: {error}") from error
    if done.returncode != 0:
        raise AppError(
            f"`gpufleet host {' '.join(arguments)}` failed with exit code {done.returncode}: see the lines above"
        )


def _restore(document: FleetDocument, places: HostPaths, announce: Announce, *, fresh: bool) -> None:
    """Restore the ledger from the newest backup if the volume has none."""
    # an interrupted restore starts again: rows that exist already are kept
    begun = places.ledger.with_name("ledger.restoring")
    if not fresh and not begun.exists():
        return
    if not backups.has_backup(document):
        announce("neither a ledger nor a backup exists: this is a new fleet")
        return
    begun.touch()
    ledger_file.make(places.ledger)
    done = backups.restore(document, "")
    announce(f"{done.key} of {done.at}: {done.rows} rows read")
    if done.breaches:
        raise AppError(
            f"the restored ledger is not consistent (violations: {done.breaches}):"
            " `gpufleet ledger verify` lists them",
            ErrorCode.FOUND,
        )
    begun.unlink()


def _name_prometheus(url: str, places: HostPaths, announce: Announce) -> None:
    """Make the host name of `prometheus_url` resolve to loopback, where Prometheus listens, if it is this machine."""
    parts = urlsplit(url)
    name = parts.hostname
    if (
        name is None
        or parts.port != PROMETHEUS_PORT
        or hosts_file.resolve_to_loopback(name, places.root / "etc/hosts")
    ):
        return
    if hosts_file.is_address(name) and hosts_file.is_this_machine(name):
        announce(
            f"{url} refers to this machine by its address, where Prometheus does not listen: leave `prometheus_url` "
            f"out of the settings, or write http://{hosts_file.LOOPBACK}:{PROMETHEUS_PORT}"
        )


def _configure(document: FleetDocument, settings: ControlSettings, places: HostPaths, announce: Announce) -> None:
    if not places.emulated:
        _name_prometheus(document.prometheus_url, places, announce)
    near = units.near(settings)
    addresses = Addresses(
        console=f"{near}:9600",
        daemon=f"{settings.inner}:9470",
        alertmanager=f"{settings.inner}:9093",
        routers=[f"{near}:8404"] if settings.routes else (),
        token_file=places.token_for(User.ALERTMANAGER),
        targets_file=str(FeedPaths(folder=places.feed).targets),
    )
    monitoring_files.write(document, places.monitoring, addresses)
    announce(f"{places.monitoring}: Prometheus, Alertmanager and Grafana of {document.environment}")


def _start_services(settings: ControlSettings, places: HostPaths, announce: Announce) -> None:
    systemd = Systemd(places.root)
    for name, text in units.render(settings, places, find_programs(settings)).items():
        # a change of the unit that runs this command takes effect at the next boot
        systemd.install(name, text)
    found = units.services(settings, places, find_programs(settings))
    for one in found:
        systemd.start(one.name)
    for name in () if places.emulated else units.timers(settings):
        systemd.enable(name)
        systemd.start(name)
    announce(f"started {', '.join(one.name for one in found)}")
