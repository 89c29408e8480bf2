"""uv in an environment of its own, and with it the clone's `.venv`."""

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
"""That release, with the hash of each of its files: pip refuses any other."""
PROBE_S: Final = 6.0
LIMIT_S: Final = 900
_OTHER_HASH: Final = re.compile(r"^\s+Got\s+[0-9a-f]{64}", re.MULTILINE)
"""How pip ends what it says of a file with another hash."""
MIB_NEEDED: Final = 1500
PYTHONS: Final = ((3, 11), (3, 12))


def check_python() -> None:
    """Raises SetupError when this Python cannot run gpu-fleet."""
    if sys.version_info[:2] not in PYTHONS:
        raise SetupError(
            f"this is Python {sys.version.split()[0]} ({sys.executable}), and gpu-fleet needs 3.11 or 3.12; "
            "name one, as in `make setup PYTHON=/usr/bin/python3.11`"
        )


def lacks_venv_module() -> bool:
    """Whether `python -m venv` would fail, as on a Debian without python3-venv."""
    return importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None


def uv_of(folders: Folders) -> Path:
    return folders.cache / "uv" / "bin" / "uv"


def uv_is_there(folders: Folders) -> bool:
    return output_of([str(uv_of(folders)), "--version"]) == f"uv {UV_VERSION}" or (
        (output_of([str(uv_of(folders)), "--version"]) or "").startswith(f"uv {UV_VERSION} ")
    )


def install_uv(folders: Folders) -> None:
    """uv from PyPI into `<cache>/uv`; whole or not at all. Raises SetupError, also for a file with another hash."""
    final = folders.cache / "uv"
    # a virtual environment keeps working under another name for what we need of it: the uv binary and `python -m`
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
                f" installed (see {log}). Name an index that you trust (PIP_INDEX_URL), or ask who keeps this one."
            ) from trouble
        raise
    else:
        shutil.rmtree(final, ignore_errors=True)
        half.rename(final)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def link_uv(folders: Folders) -> None:
    """uv alone in a folder for PATH: its environment's own has a `python`, too."""
    folders.tools.mkdir(parents=True, exist_ok=True)
    link = folders.tools / "uv"
    if not link.is_symlink() or link.readlink() != uv_of(folders):
        link.unlink(missing_ok=True)
        link.symlink_to(uv_of(folders))


def is_whole(folders: Folders) -> bool:
    """Whether `.venv` is an environment at all, and not what a killed setup left of one."""
    return folders.python.exists() and (folders.root / ".venv" / "pyvenv.cfg").is_file()


def sync(folders: Folders) -> None:
    """Bring `.venv` to what uv.lock says. Quick when it is there already."""
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
    """The caller's environment (it may name a mirror or certificates), with uv's cache beside ours where home is
    read-only."""
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")}
    if folders.cache.is_relative_to(folders.local):
        environment["UV_CACHE_DIR"] = str(folders.cache / "uv-cache")
    return environment


def index_answers() -> bool:
    """Whether the package index can be reached at all."""
    url = os.environ.get("UV_INDEX_URL") or os.environ.get("PIP_INDEX_URL") or "https://pypi.org/simple/"
    return answers(url, PROBE_S)
