"""`python3 -m scripts.setup [--tests]`: installs what is missing."""

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import PULUMI_VERSION, Folders, find_folders
from gpufleet.toolchain.pulumi_cli import find_pulumi, has_language_host
from scripts.setup import actionlint, axe_core, debian, focus_validator, language_host, pulumi_cli, python_env
from scripts.setup.running import SetupError, announce

LOCK_LIMIT_S: Final = 1800


def main() -> int:
    """Return the exit code. 0: everything is installed. 1: a component is not available; the output contains the
    remedy.
    """
    try:
        python_env.check_python()
        began = time.monotonic()
        with _only_one(folders := find_folders(os.environ)):
            changed = _set_up(folders, for_tests="--tests" in sys.argv[1:])
        if changed:
            announce(f"setup: done in {time.monotonic() - began:.0f} s")
        return 0
    except SetupError as trouble:
        announce(f"\nsetup: {trouble}")
        return 1
    except OSError as error:
        announce(f"\nsetup: {error.filename or 'a file'}: {error.strerror or error}. Fix it, then run this again")
        return 1
    except KeyboardInterrupt:
        announce("\nsetup: interrupted; partly installed files are removed. Run it again to continue")
        return 130


def _set_up(folders: Folders, *, for_tests: bool) -> bool:
    pulumi = find_pulumi(folders)
    needs_venv_module = python_env.lacks_venv_module() and not python_env.uv_is_there(folders)
    missing = debian.find_missing(needs_venv_module, for_tests=for_tests)
    steps: list[tuple[str, Callable[[], None]]] = []
    if missing.packages:
        steps.append((f"Debian packages {'; '.join(missing.reasons)}", lambda: debian.install(missing, folders)))
    if needs_uv := not python_env.uv_is_there(folders):
        what = f"uv {python_env.UV_VERSION} (installs the Python packages), in an environment of its own"
        steps.append((f"{what}: {folders.cache / 'uv'}", lambda: python_env.install_uv(folders)))
    fresh = not python_env.is_whole(folders)
    if fresh:
        steps.append(("Python packages of uv.lock, into .venv of this clone", lambda: python_env.sync(folders)))
    if pulumi is None:
        way = pulumi_cli.choose_way()
        steps.append(
            (f"Pulumi CLI {PULUMI_VERSION} (the engine), by {way}", lambda: pulumi_cli.install(way, folders))
        )
    if for_tests:
        steps += _of_tests(folders)
    _check_network_and_disk(folders, needs_uv=needs_uv, fresh=fresh)
    if steps:
        lacking = "one thing is missing and is" if len(steps) == 1 else f"{len(steps)} things are missing and are"
        announce(f"setup: {lacking} installed now, once:")
        for what, _ in steps:
            announce(f"  - {what}")
    for number, (what, step) in enumerate(steps, 1):
        announce(f"  [{number}/{len(steps)}] {what}")
        step()
    python_env.link_uv(folders)
    if not fresh:
        python_env.sync(folders)  # fast if nothing changed
    return _complete_pulumi(folders) or bool(steps)


def _of_tests(folders: Folders) -> list[tuple[str, Callable[[], None]]]:
    steps: list[tuple[str, Callable[[], None]]] = []
    if not focus_validator.is_there(folders):
        what = f"focus-validator {focus_validator.VERSION} (checks the FOCUS export), in an environment of its own"
        steps.append((what, lambda: _optional(focus_validator.install, folders)))
    if not actionlint.place(folders).exists():
        what = f"actionlint {actionlint.VERSION} (checks the workflows of CI), built from its Go module"
        steps.append((what, lambda: _optional(actionlint.install, folders)))
    if not axe_core.place(folders).exists():
        what = f"axe-core {axe_core.VERSION} (checks the web pages for accessibility), fetched by npm"
        steps.append((what, lambda: _optional(axe_core.install, folders)))
    return steps


def _optional(install: Callable[[Folders], None], folders: Folders) -> None:
    """Install what a single test needs. Without it, that test is skipped by name."""
    try:
        install(folders)
    except SetupError as trouble:
        announce(f"setup: {trouble}\nsetup: continuing without it; its test is skipped")


def _complete_pulumi(folders: Folders) -> bool:
    pulumi = find_pulumi(folders)
    if pulumi is None:
        raise SetupError(pulumi_cli.REMEDY)
    pulumi_cli.link(pulumi, folders)
    if pulumi.parent != (folders.pulumi_folder / "bin").resolve():
        return False  # it was not installed by setup, and has its own language host
    official = has_language_host(pulumi) and pulumi.with_name("pulumi-language-python-exec").exists()
    if official or language_host.is_current(folders):
        return False
    announce("  - a Python language host for Pulumi (its own is not in the Go module)")
    language_host.install(folders)
    return True


def _check_network_and_disk(folders: Folders, *, needs_uv: bool, fresh: bool) -> None:
    if (needs_uv or fresh) and not python_env.index_answers():
        announce("setup: the package index does not answer; packages in a local cache may be enough")
    if fresh:
        free = shutil.disk_usage(folders.root).free // 2**20
        if free < python_env.MIB_NEEDED:
            raise SetupError(
                f"{free} MiB are free for {folders.root}, and .venv needs {python_env.MIB_NEEDED}: free some space"
            )


@contextmanager
def _only_one(folders: Folders) -> Generator[None]:
    """Allow one setup at a time per cache, because two clones may share it."""
    folders.cache.mkdir(parents=True, exist_ok=True)
    path = folders.cache / ".setup.lock"
    with path.open("a+") as lock:
        began, announced = time.monotonic(), False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not announced:
                    announce(f"setup: waiting for another setup ({_holder(path)}) that uses {folders.cache}")
                    announced = True
                if time.monotonic() - began > LOCK_LIMIT_S:
                    raise SetupError(f"another setup ({_holder(path)}) held {path} for {LOCK_LIMIT_S} s") from None
                time.sleep(0.5)
        lock.truncate(0)
        lock.write(f"process {os.getpid()} of {folders.root}\n")
        lock.flush()
        yield


def _holder(path: Path) -> str:
    return path.read_text(errors="replace").strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
