"""A control host as this machine sees it: settings, fleet, ledger, services; what a change of releases does to it."""

import os
import secrets
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import httpx

from app.errors import AppError
from app.fleets import load_one
from app.stores import fetch_file, open_place
from control import bundle, units
from control.places import COMMAND, USER, Places
from control.releases import ReleaseError
from control.settings import ControlSettings, ControlSettingsError
from control.settings import load as load_settings
from gpufleet.domain.activity import CloudError
from gpufleet.domain.files import write_private
from ledger.database import open_database
from ledger.schema import LedgerError, open_ledger, schema_version
from node.ports import StepError, UnitState
from node.systemd import Systemd, run

ROOT_VARIABLE: Final = "GPUFLEET_ROOT"
STOP_WITHIN: Final = timedelta(minutes=5)
START_LIMIT_S: Final = 900.0
"""Of `host start` of a release: a restore of the ledger is in it."""
CHECK_LIMIT_S: Final = 600.0
_LOCAL_ADDRESS: Final = "GPUFLEET_LOCAL_ADDRESS"
"""Of an emulated machine: its neighbours live on the same loopback."""
_LOOK_S: Final = 1.0
_ENDED: Final = (UnitState.INACTIVE, UnitState.FAILED, UnitState.UNKNOWN)


def here() -> Places:
    """The control host that this program runs on."""
    return Places(root=Path(os.environ.get(ROOT_VARIABLE) or "/"))


def read_settings(places: Places) -> ControlSettings:
    """This machine's settings, in whose cloud and fleet everything here happens. Raises AppError."""
    try:
        settings = load_settings(places.settings)
    except ControlSettingsError as error:
        raise AppError(str(error)) from error
    os.environ.update(settings.environment | {"GPUFLEET_FLEET": settings.fleet})
    if address := os.environ.get(_LOCAL_ADDRESS):
        return replace(settings, address=address, inner=address)
    return settings


def find_programs(settings: ControlSettings) -> dict[str, str]:
    """Where the image has what this machine runs. Raises AppError that names all that is missing."""
    found = {name: shutil.which(name) for name in units.PROGRAMS[settings.role]}
    if missing := sorted(name for name, path in found.items() if path is None):
        raise AppError(
            f"the image lacks {', '.join(missing)}: take one with these packages (`control.image` of the settings)"
        )
    return {name: path for name, path in found.items() if path}


def services_of(places: Places) -> dict[str, str]:
    """The units of this machine and the URL where each answers when it is well. Raises AppError."""
    settings = read_settings(places)
    return {one.name: one.healthy for one in units.services(settings, places, find_programs(settings))}


def wrong_after(services: Mapping[str, str], within: timedelta, well_for: timedelta) -> str | None:
    """What is not well by then, or does not stay well; None: all are. `services`: unit to URL."""
    until = time.monotonic() + within.total_seconds()
    while (wrong := _wrong_with(services)) is not None and time.monotonic() < until:
        time.sleep(min(1.0, max(0.0, until - time.monotonic())))
    if wrong is None and well_for:
        time.sleep(well_for.total_seconds())
        wrong = _wrong_with(services)
    return wrong


def _wrong_with(services: Mapping[str, str]) -> str | None:
    """What does not answer well now; None: all do."""
    for name, url in services.items():
        try:
            answer = httpx.get(url, timeout=5, trust_env=False)
        except httpx.HTTPError as error:
            return f"{name}: {url} does not answer ({type(error).__name__})"
        if not answer.is_success:
            return f"{name}: {url} answers {answer.status_code}"
    return None


def make_token(places: Places) -> None:
    """The console's access token, once in the volume's life."""
    if not places.token.is_file() or not places.token.read_text("utf-8").strip():
        write_private(places.token, secrets.token_hex(24) + "\n")


def fetch_secrets(
    places: Places, settings: ControlSettings, read: Callable[[str, str], str], say: Callable[[str], None]
) -> None:
    """Have the values of the settings' secrets where the units read them. `read`: reference and region to value.

    One that cannot be read stops nothing: watchdogs act without Slack, and messages wait in the ledger.
    """
    lines: list[str] = []
    for variable, reference in settings.secrets.items():
        try:
            value = read(reference, settings.environment.get("AWS_DEFAULT_REGION", ""))
        except (CloudError, OSError) as error:
            say(f"{variable}: {reference} cannot be read: {error}: mend it, then `gpufleet host start`")
            continue
        if any(sign in value for sign in "\n\r\0"):
            say(f"{variable}: the value of {reference} has more than one line, so it is no variable's")
            continue
        quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
        lines.append(f'{variable}="{quoted}"\n')
    places.secrets.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    write_private(places.secrets, "".join(lines))


def give_away(places: Places) -> None:
    """The services' user owns what they write. On an emulated machine there is one user alone."""
    if places.root != Path("/"):
        return
    for path in (places.data, *places.data.rglob("*")):
        shutil.chown(path, USER, USER)


def make_user(places: Places) -> None:
    """The services' user. Raises StepError."""
    import pwd

    if places.root != Path("/"):
        return
    try:
        pwd.getpwnam(USER)
    except KeyError:
        run(["useradd", "--system", "--home-dir", str(places.data), "--shell", "/usr/sbin/nologin", USER])


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMachine:
    """This control host, while its releases change."""

    places: Places
    settings: ControlSettings
    well_within: str = "3m"
    """How long services may take until all are well."""
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
                    raise ReleaseError(f"{name} did not stop within {STOP_WITHIN}: see `journalctl -u {name}`")
                self.sleep(_LOOK_S)

    def start(self) -> None:
        self._gpufleet(self.places.current, ("host", "start", "--as-it-is"), START_LIMIT_S)

    def unwell(self) -> str | None:
        try:
            words = ("host", "check", "--within", self.well_within, "--for", "10s")
            self._gpufleet(self.places.current, words, CHECK_LIMIT_S)
        except ReleaseError as error:
            return str(error)
        return None

    def schema(self) -> str | None:
        if not self.places.ledger.is_file():
            return None
        engine = open_database(f"sqlite:///{self.places.ledger}")
        try:
            return schema_version(engine)
        finally:
            engine.dispose()

    def _gpufleet(self, release: Path, words: tuple[str, ...], limit_s: float) -> None:
        command = [str(release / COMMAND), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except OSError as error:
            raise ReleaseError(f"{command[0]}: {error.strerror or error}") from error
        except subprocess.TimeoutExpired as error:
            raise ReleaseError(f"{' '.join(words)} of {release.name[:12]}: not done in {limit_s:.0f} s") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise ReleaseError(f"{' '.join(words)}: {said[-1] if said else f'exit code {done.returncode}'}")


def _any_program() -> dict[str, str]:
    """Names are asked for, not command lines."""
    return {name: name for names in units.PROGRAMS.values() for name in names}


def try_release(places: Places) -> str:
    """Whether this release could run here: programs, fleet document, a copy of the ledger. Raises AppError."""
    settings = read_settings(places)
    find_programs(settings)
    load_one(settings.fleet)
    return _try_ledger(places)


def _try_ledger(places: Places) -> str:
    """Bring a copy of the ledger to this release's schema; the live one is not touched."""
    if not places.ledger.is_file():
        return "no ledger yet"
    with tempfile.TemporaryDirectory(prefix="gpufleet-try-", dir=places.data) as folder:
        copy = Path(folder, "ledger.db")
        try:
            with closing(sqlite3.connect(places.ledger)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            engine = open_ledger(f"sqlite:///{copy}")
        except (sqlite3.Error, LedgerError) as error:
            raise AppError(f"a copy of the ledger cannot be opened by this release: {error}") from error
        version = schema_version(engine)
        engine.dispose()
    return f"ledger {version}"
