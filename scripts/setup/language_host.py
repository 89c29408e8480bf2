"""Installs this project's Python language host next to a Pulumi CLI that has none.

It has its own environment in the cache, so it serves every clone and does not depend on any of them.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import PULUMI_VERSION, Folders
from gpufleet.toolchain.pulumi_cli import LANGUAGE_HOST
from scripts.setup.python_env import uv_environment, uv_of
from scripts.setup.running import SetupError, run

LOCALCLOUD: Final = "localcloud/src/"
SOURCES: Final = (
    "localcloud/src/localcloud/__init__.py",
    "localcloud/src/localcloud/callers.py",
    "localcloud/src/localcloud/language_host",
    "localcloud/src/localcloud/same_user.py",
    "localcloud/src/localcloud/plugin_server.py",
    "gpufleet/__init__.py",
    "gpufleet/domain/__init__.py",
    "gpufleet/domain/files.py",
    "gpufleet/domain/loopback.py",
    "gpufleet/http_server.py",
)
"""All files of this repository that the host imports. It runs in its own environment."""
LAUNCHER: Final = """\
#!/bin/sh
# gpu-fleet's Python language host for Pulumi; written by `make setup`
here=$(dirname "$(readlink -f "$0")")
exec "$here/../{folder}/bin/python" -E -P -u -m localcloud.language_host "$@"
"""


def is_current(folders: Folders) -> bool:
    """Return whether the launcher exists and starts the host with this clone's code."""
    launcher = folders.pulumi_folder / "bin" / LANGUAGE_HOST
    folder = _folder_name(folders)
    python = folders.pulumi_folder / folder / "bin" / "python"
    return (
        os.access(python, os.X_OK) and launcher.is_file() and launcher.read_text() == LAUNCHER.format(folder=folder)
    )


def install(folders: Folders) -> None:
    """Create the environment, copy the host's code into it, and write the launcher next to `pulumi`."""
    name = _folder_name(folders)
    final = folders.pulumi_folder / name
    log = folders.logs / "setup-language-host.log"
    half = Path(tempfile.mkdtemp(prefix=".host-", dir=folders.pulumi_folder))
    uv, environment = str(uv_of(folders)), uv_environment(folders)
    doing = "installing the Python language host"
    try:
        run(
            [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(half)],
            doing=doing,
            log=log,
            limit_s=120,
        )
        (half / "constraints.txt").write_text(constraints(uv, folders, environment))
        install_it = [uv, "pip", "install", "--quiet", "--python", str(half / "bin" / "python")]
        run(
            [*install_it, "--require-hashes", "-c", str(half / "constraints.txt"), f"pulumi=={PULUMI_VERSION}"],
            doing=doing,
            log=log,
            limit_s=300,
            environment=environment,
            cwd=half,  # in the clone, constraints of pyproject.toml would count as requirements without a hash
        )
        packages = next((half / "lib").glob("python3.*")) / "site-packages"
        for source in SOURCES:
            _copy(folders.root / source, packages / source.removeprefix(LOCALCLOUD))
        shutil.rmtree(final, ignore_errors=True)
        half.rename(final)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    _write_launcher(folders.pulumi_folder / "bin" / LANGUAGE_HOST, LAUNCHER.format(folder=name))


def _write_launcher(launcher: Path, text: str) -> None:
    half = launcher.with_suffix(".half")
    half.write_text(text)
    half.chmod(0o755)
    half.replace(launcher)


def constraints(uv: str, folders: Folders, environment: dict[str, str]) -> str:
    """Return the packages of uv.lock with their versions and hashes. Raises SetupError."""
    done = subprocess.run(
        [uv, "export", "--frozen", "--quiet", "--no-emit-workspace", "--no-header", "--no-annotate"],
        cwd=folders.root,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode:
        raise SetupError(
            f"`uv export` failed, so the versions for the language host are unknown: {done.stderr.strip()}"
        )
    return done.stdout


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _folder_name(folders: Folders) -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    digest.update((folders.root / "uv.lock").read_bytes().partition(b'name = "pulumi"\n')[2][:4096])
    for source in SOURCES:
        path = folders.root / source
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return f"language-host-{digest.hexdigest()[:12]}"
