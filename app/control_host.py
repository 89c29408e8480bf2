"""The control host that this process runs on: settings, users, secrets, ledger, services, release changes."""

import grp
import os
import pwd
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Final

import httpx

from app.errors import AppError
from app.fleets import load_one
from app.stores import fetch_file, open_place
from gpufleet.domain.activity import CloudError
from gpufleet.domain.durations import approximate
from gpufleet.ledger.schema import LedgerError, open_ledger, schema_version
from hosts.control import bundle, layout, ledger_file, root_files, units
from hosts.control.layout import Ids
from hosts.control.paths import COMMAND, LEDGER_GROUP, HostPaths, User
from hosts.control.releases import ReleaseError, Releases
from hosts.control.settings import ControlSettings, ControlSettingsError
from hosts.control.settings import load as load_settings
from hosts.node.ports import StepError, UnitState
from hosts.node.systemd import Systemd, run

ROOT_VARIABLE: Final = "GPUFLEET_ROOT"
OLD_USER: Final = "gpufleet"
"""The user of all services in release 0.1."""
STOP_WITHIN: Final = timedelta(minutes=5)
START_LIMIT_S: Final = 900.0
"""Limit of a release's `host start`, which includes a restore of the ledger."""
CHECK_LIMIT_S: Final = 600.0
_LOCAL_ADDRESS: Final = "GPUFLEET_LOCAL_ADDRESS"
"""Set on an emulated machine, which shares its loopback interface with other emulated machines."""
_LOOK_S: Final = 1.0
_FEED_LIMIT_S: Final = 60.0
"""A feed that is older than this is unhealthy."""
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENDED: Final = (UnitState.INACTIVE, UnitState.FAILED, UnitState.UNKNOWN)


def here() -> HostPaths:
    """The control host that this program runs on."""
    return HostPaths(root=Path(os.environ.get(ROOT_VARIABLE) or "/"))


def read_settings(places: HostPaths) -> ControlSettings:
    """Read this machine's settings, and set the environment variables that select its cloud and fleet. Raises
    AppError.
    """
    try:
        settings = load_settings(places.settings)
    except ControlSettingsError as error:
        raise AppError(str(error)) from error
    os.environ.update(units.METADATA_TIMEOUTS | settings.environment | {"GPUFLEET_FLEET": settings.fleet})
    if address := os.environ.get(_LOCAL_ADDRESS):
        return replace(settings, address=address, inner=address)
    return settings


def find_programs(settings: ControlSettings) -> dict[str, str]:
    """Paths of the programs that this machine runs. Raises AppError that names all missing programs."""
    found = {name: shutil.which(name) for name in units.PROGRAMS[settings.role]}
    if missing := sorted(name for name, path in found.items() if path is None):
        raise AppError(
            f"the image lacks {', '.join(missing)}: use one with these packages (`control.image` of the settings)"
        )
    return {name: path for name, path in found.items() if path}


def services_of(places: HostPaths) -> dict[str, str]:
    """The units of this machine and the health URL of each. Raises AppError."""
    settings = read_settings(places)
    return {one.name: one.healthy for one in units.services(settings, places, find_programs(settings))}


def failure_after(services: Mapping[str, str], within: timedelta, well_for: timedelta) -> str | None:
    """Which service is unhealthy at the end of `within`, or becomes unhealthy during `well_for`; None: all are
    healthy.

    `services`: unit to URL.
    """
    until = time.monotonic() + within.total_seconds()
    while (wrong := _failing_service(services)) is not None and time.monotonic() < until:
        time.sleep(min(1.0, max(0.0, until - time.monotonic())))
    if wrong is None and well_for:
        time.sleep(well_for.total_seconds())
        wrong = _failing_service(services)
    return wrong


def _failing_service(services: Mapping[str, str]) -> str | None:
    """Which service is unhealthy now; None: all are healthy."""
    for name, url in services.items():
        if url.startswith("file://"):
            if (wrong := _too_old(Path(url.removeprefix("file://")))) is not None:
                return f"{name}: {wrong}"
            continue
        try:
            answer = httpx.get(url, timeout=5, trust_env=False)
        except httpx.HTTPError as error:
            return f"{name}: {url} does not answer: {error}"
        if not answer.is_success:
            return f"{name}: {url} answers {answer.status_code}"
    return None


def _too_old(path: Path) -> str | None:
    try:
        age = time.time() - path.stat().st_mtime
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path} is {age:.0f} s old" if age > _FEED_LIMIT_S else None


def make_token(places: HostPaths, ids: Ids | None) -> None:
    """Create the console's access token once per volume. The console and Alertmanager may read it."""
    token = _own_text(places.token).strip()
    if not token:
        token = secrets.token_hex(24)
        root_files.write_durably(places.token, token)
    for user in (User.CONSOLE, User.ALERTMANAGER):
        root_files.write_durably(places.token_for(user), token, None if ids is None else ids.groups[user])


def _own_text(path: Path) -> str:
    """The content of a file that root owns; empty if there is no such file. Raises OSError."""
    try:
        return root_files.read(path)
    except FileNotFoundError:
        return ""


def fetch_secrets(
    places: HostPaths, settings: ControlSettings, read: Callable[[str, str], str], announce: Callable[[str], None]
) -> None:
    """Write the values of secrets to the files that the units read, one file per user.

    `read` maps a reference and a region to a value. Values that people wrote by hand take precedence. A secret that
    cannot be read stops nothing: watchdogs work without Slack, and messages wait in the ledger.
    """
    lines: dict[str, str] = {}
    for variable, reference in settings.secrets.items():
        try:
            value = read(reference, settings.environment.get("AWS_DEFAULT_REGION", ""))
        except (CloudError, OSError) as error:
            announce(f"{variable}: {reference} cannot be read: {error}: correct this, then run `gpufleet host start`")
            continue
        if any(sign in value for sign in "\n\r\0"):
            announce(f"{variable}: the value of {reference} has more than one line, so a variable cannot contain it")
            continue
        quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
        lines[variable] = f'{variable}="{quoted}"'
    for line in _own_text(places.own_secrets).splitlines():
        variable, equals, _ = line.strip().partition("=")
        if equals and not variable.startswith(("#", ";")):
            lines[variable.strip()] = line.strip()
    for user in (User.WATCH, User.CONSOLE):
        mine = [line for variable, line in lines.items() if user in units.readers(variable)]
        root_files.write_durably(places.secrets(user), "\n".join(mine))


def make_users(places: HostPaths) -> Ids | None:
    """The ids of the services' users and groups; None on an emulated machine, where all services run as one user.

    Raises StepError.
    """
    if places.emulated:
        return None
    layout.make_users(run, _is_user, places)
    users = {name: pwd.getpwnam(name).pw_uid for name in (*User, layout.ROOT)}
    groups = {name: grp.getgrnam(name).gr_gid for name in (*User, layout.ROOT, LEDGER_GROUP)}
    return Ids(users=users, groups=groups)


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def drop_privileges(places: HostPaths) -> None:
    """Give up root's rights permanently, if this is root on a real machine: the following code opens files of other
    users.

    Before the first start of this release its user does not exist, and the ledger is still where release 0.1 stored
    it.
    """
    if places.emulated or os.geteuid() != 0:
        return
    name = User.WATCH if _is_user(User.WATCH) else OLD_USER
    try:
        found = pwd.getpwnam(name)
    except KeyError as error:
        raise AppError(f"this machine has no user {name}: `gpufleet host install` creates it") from error
    os.initgroups(name, found.pw_gid)
    if name == User.WATCH:
        os.setgroups([found.pw_gid, grp.getgrnam(LEDGER_GROUP).gr_gid])
    os.setgid(found.pw_gid)
    os.setuid(found.pw_uid)
    os.environ["HOME"] = found.pw_dir
    os.umask(0o007)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMachine:
    """This control host during a change of releases."""

    places: HostPaths
    settings: ControlSettings
    well_within: str = "3m"
    """How long services may take until all are healthy."""
    sleep: Callable[[float], None] = time.sleep

    def fetch(self, sha256: str, target: Path) -> None:
        fetch_file(open_place(self.settings.bucket), bundle.key(sha256), target)

    def try_out(self, release: Path) -> None:
        self._gpufleet(release, ("host", "try"), CHECK_LIMIT_S)

    def stop(self) -> None:
        systemd = Systemd(self.places.root)
        names = [one.name for one in units.services(self.settings, self.places, _any_program())]
        until = time.monotonic() + STOP_WITHIN.total_seconds()
        try:
            for name in names:
                systemd.stop(name)
        except StepError as error:
            raise ReleaseError(str(error)) from error
        for name in names:
            while systemd.state(name) not in _ENDED:
                if time.monotonic() > until:
                    raise ReleaseError(
                        f"{name} did not stop within {approximate(STOP_WITHIN)}: see `journalctl -u {name}`"
                    )
                self.sleep(_LOOK_S)

    def start(self) -> None:
        self._gpufleet(self.places.current, ("host", "start", "--as-it-is"), START_LIMIT_S)

    def health_problem(self) -> str | None:
        try:
            arguments = ("host", "check", "--within", self.well_within, "--for", "10s")
            self._gpufleet(self.places.current, arguments, CHECK_LIMIT_S)
        except ReleaseError as error:
            return str(error)
        return None

    def schema(self) -> str | None:
        return self._ledger("schema").decode() or None

    def save_ledger(self, into: BinaryIO) -> None:
        self._ledger("save", stdout=into)

    def restore_ledger(self, source: BinaryIO) -> None:
        self._ledger("put-back", stdin=source)

    def _ledger(self, word: str, stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> bytes:
        """Run a ledger operation as the user that owns the ledger file. Raises ReleaseError."""
        command = [sys.executable, "-I", ledger_file.__file__, word, str(self.places.ledger)]
        if not self.places.emulated and os.geteuid() == 0:
            groups = f"{User.WATCH},{LEDGER_GROUP}"
            command = ["setpriv", f"--reuid={User.WATCH}", f"--regid={User.WATCH}", f"--groups={groups}", *command]
        done = subprocess.run(
            command, stdin=stdin or subprocess.DEVNULL, stdout=stdout or subprocess.PIPE, stderr=subprocess.PIPE,
            env={"PATH": _SYSTEM_PATH}, timeout=START_LIMIT_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise ReleaseError(
                f"the ledger cannot be prepared ({word}): {done.stderr.decode(errors='replace').strip()}"
            )
        return done.stdout or b""

    def _gpufleet(self, release: Path, arguments: tuple[str, ...], limit_s: float) -> None:
        command = [str(release / COMMAND), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except OSError as error:
            raise ReleaseError(f"{command[0]}: {error.strerror or error}") from error
        except subprocess.TimeoutExpired as error:
            raise ReleaseError(
                f"{' '.join(arguments)} of {release.name[:12]}: not done in {limit_s:.0f} s"
            ) from error
        if done.returncode != 0:
            output = (done.stderr or done.stdout).strip().splitlines()
            raise ReleaseError(f"{' '.join(arguments)}: {output[-1] if output else f'exit code {done.returncode}'}")


def releases_of(
    places: HostPaths, settings: ControlSettings, announce: Callable[[str], None], well_within: str = "3m"
) -> Releases:
    """The releases of this machine, with the notes of release 0.1 about them. Raises OSError."""
    if places.host.is_dir():
        # release 0.1 writes its choice when this release is already running
        layout.migrate_root_files(places, by_root=not places.emulated)
    machine = LiveMachine(places=places, settings=settings, well_within=well_within)
    return Releases(places=places, machine=machine, announce=announce)


def _any_program() -> dict[str, str]:
    """Stub paths of all programs: the caller needs only the names of the units, not their command lines."""
    return {name: name for names in units.PROGRAMS.values() for name in names}


def try_release(places: HostPaths) -> str:
    """Check that this release can run here: programs, fleet document, a copy of the ledger.

    Returns a description of the ledger. Raises AppError.
    """
    settings = read_settings(places)
    find_programs(settings)
    drop_privileges(places)
    load_one(settings.fleet)
    return _try_ledger(places)


def _try_ledger(places: HostPaths) -> str:
    """Migrate a copy of the ledger to this release's schema. The live ledger stays unchanged."""
    # release 0.1 stores it in a folder of its own user
    ledger = places.ledger if ledger_file.is_there(places.ledger) else places.ledger_link
    if not ledger_file.is_there(ledger):
        return "no ledger yet"
    with tempfile.TemporaryDirectory(prefix="gpufleet-try-", dir=ledger.parent) as folder:
        copy = Path(folder, "ledger.db")
        try:
            with closing(sqlite3.connect(ledger)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            engine = open_ledger(f"sqlite:///{copy}")
        except (sqlite3.Error, LedgerError) as error:
            raise AppError(f"a copy of the ledger cannot be opened by this release: {error}") from error
        version = schema_version(engine)
        engine.dispose()
    return f"ledger {version}"
