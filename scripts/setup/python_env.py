"""Installs uv in its own environment, and with it the clone's `.venv`."""

import importlib.util
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import Folders
from scripts.setup.running import SetupError, answers, output_of, run

UV_VERSION: Final = "0.13.8"
UV_REQUIREMENTS: Final = Path(__file__).with_name("uv.txt")
"""The uv release with the hash of each of its files. pip refuses any other file."""
PROBE_S: Final = 6.0
LIMIT_S: Final = 900
_OTHER_HASH: Final = re.compile(r"^\s+Got\s+[0-9a-f]{64}", re.MULTILINE)
"""Matches the end of pip's message about a file with another hash."""
MIB_NEEDED: Final = 1500
PYTHONS: Final = ((3, 11), (3, 12))


def check_python() -> None:
    """Raises SetupError if this Python cannot run gpu-fleet."""
    if sys.version_info[:2] not in PYTHONS:
        raise SetupError(
            f"this is Python {sys.version.split()[0]} ({sys.executable}), and gpu-fleet needs 3.11 or 3.12; "
            "name one, as in `make setup PYTHON=/usr/bin/python3.11`"
        )


def lacks_venv_module() -> bool:
    """Return whether `python -m venv` would fail, as on Debian without python3-venv."""
    return importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None


def uv_of(folders: Folders) -> Path:
    return folders.cache / "uv" / "bin" / "uv"


def uv_is_there(folders: Folders) -> bool:
    version = output_of([str(uv_of(folders)), "--version"]) or ""
    return f"{version} ".startswith(f"uv {UV_VERSION} ")


def install_uv(folders: Folders) -> None:
    """Install uv from PyPI into `<cache>/uv`. A failed installation leaves nothing behind. Raises SetupError, also
    for a file with another hash.
    """
    final = folders.cache / "uv"
    # a virtual environment can be renamed if only the uv binary and `python -m` are used
    half = Path(tempfile.mkdtemp(prefix=".uv-", dir=folders.cache))
    log = folders.logs / "setup-uv.log"
    try:
        run([sys.executable, "-m", "venv", str(half)], doing="making uv's environment", log=log, limit_s=120)
        run(
            [
                *(str(half / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"),
                *("--requirement", str(UV_REQUIREMENTS)),
            ],
            doing="installing uv from PyPI",
            log=log,
            limit_s=300,
        )
    except SetupError as trouble:
        if _OTHER_HASH.search(str(trouble)):
            raise SetupError(
                f"the package index gave a uv {UV_VERSION} whose hash is not in {UV_REQUIREMENTS}, so it was not"
                f" installed (see {log}). Use an index that you trust (PIP_INDEX_URL), or ask the operator of this"
                " one."
            ) from trouble
        raise
    else:
        shutil.rmtree(final, ignore_errors=True)
        half.rename(final)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def link_uv(folders: Folders) -> None:
    """Link uv into a separate folder for PATH, because the folder of its environment also contains `python`."""
    folders.tools.mkdir(parents=True, exist_ok=True)
    link = folders.tools / "uv"
    if not link.is_symlink() or link.readlink() != uv_of(folders):
        link.unlink(missing_ok=True)
        link.symlink_to(uv_of(folders))


def is_whole(folders: Folders) -> bool:
    """Return whether `.venv` is a complete environment. A killed setup may leave an incomplete one."""
    return folders.python.exists() and (folders.root / ".venv" / "pyvenv.cfg").is_file()


def sync(folders: Folders) -> None:
    """Synchronise `.venv` with uv.lock. Fast if nothing changed."""
    environment = uv_environment(folders)
    environment["UV_PROJECT_ENVIRONMENT"] = str(folders.root / ".venv")
    if not is_whole(folders):
        shutil.rmtree(folders.root / ".venv", ignore_errors=True)
    run(
        [str(uv_of(folders)), "sync", "--frozen", "--no-progress", "--python", sys.executable],
        doing="installing the Python packages of uv.lock into .venv",
        log=folders.logs / "setup-uv.log",
        limit_s=LIMIT_S,
        environment=environment,
        cwd=folders.root,
    )


def uv_environment(folders: Folders) -> dict[str, str]:
    """Return the caller's environment (it may set a mirror or certificates). If the home directory is read-only, uv's
    cache is next to ours.
    """
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")}
    if folders.cache.is_relative_to(folders.local):
        environment["UV_CACHE_DIR"] = str(folders.cache / "uv-cache")
    return environment


def index_answers() -> bool:
    """Return whether the package index is reachable."""
    url = os.environ.get("UV_INDEX_URL") or os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple/"
    return answers(url, PROBE_S)
