"""Packs the control host's software from this clone and uploads it to a bucket."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from app.errors import AppError, ErrorCode
from app.stores import open_place
from hosts.control import bundle

ROOT: Final = Path(__file__).resolve().parent.parent
PLATFORMS: Final = {"x86_64": "x86_64-manylinux_2_28", "aarch64": "aarch64-manylinux_2_28"}
LOCKED: Final = ("export", "--frozen", "--no-dev", "--no-emit-project", "--quiet")
"""Arguments of uv that export the project's locked packages, each file with its hash."""
EXPORT: Final = (*LOCKED, "--extra", "plots", "--extra", "postgres")
"""The arguments for a bundle: with the extras that a control host uses."""
LIMIT_S: Final = 900


def publish(url: str, machine: str, python: str, *, dependencies: bool) -> bundle.Bundle:
    """Pack this clone, with or without the packages of uv.lock, and upload it to the bucket. Raises AppError.

    `machine` and `python`: processor and Python version of the control host.
    """
    target = open_place(url)
    with tempfile.TemporaryDirectory(prefix="gpufleet-bundle-") as folder:
        made = make(Path(folder, bundle.ARCHIVE_NAME), machine, python, dependencies=dependencies)
        try:
            target.writer.put_file(target.key(bundle.key(made.sha256)), made.path)
        except OSError as error:
            raise AppError(f"the bundle could not be stored in {url}: {error}") from error
    return made


def make(out: Path, machine: str, python: str, *, dependencies: bool) -> bundle.Bundle:
    """Pack this clone into the file `out`, as `publish` does. Raises AppError."""
    if machine not in PLATFORMS:
        raise AppError(f"--machine {machine}: is not supported; choose {' or '.join(PLATFORMS)}", ErrorCode.WRONG_USE)
    with tempfile.TemporaryDirectory(prefix="gpufleet-packages-") as folder:
        packages = _packages(Path(folder), PLATFORMS[machine], python) if dependencies else None
        try:
            return bundle.build(ROOT, packages, out)
        except (bundle.BundleError, OSError) as error:
            raise AppError(f"the bundle could not be built: {error}") from error


def _packages(folder: Path, platform: str, python: str) -> Path:
    """Install the locked packages for another platform into a folder. uv checks each file against its hash in
    uv.lock.
    """
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path.home() / ".cache" / "gpu-fleet" / "bin"))
    if uv is None:
        raise AppError("uv is not on PATH; it installs the locked packages: run `make setup`, or install uv")
    requirements, into = folder / "requirements.txt", folder / "packages"
    _run([uv, *EXPORT, "--output-file", str(requirements)], ROOT)
    install = [uv, "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    chosen = ["--python-platform", platform, "--python-version", python, "--target", str(into)]
    # run outside the clone: uv would treat the lock settings of its pyproject.toml as a requirement without a hash
    _run([*install, *chosen, "--requirements", str(requirements)], folder)
    return into


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise AppError(f"{command[0]} {command[1]}: not done in {LIMIT_S} s") from error
    if done.returncode != 0:
        raise AppError(f"{command[0]} {command[1]}: {done.stderr.strip()[-2000:]}")
