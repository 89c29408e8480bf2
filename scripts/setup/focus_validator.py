"""Installs the FinOps Foundation's validator of FOCUS exports in its own environment, because it needs an older
NumPy.

Release 2.0.2 is the newest whose code works with Python 3.11, although its metadata require 3.12.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import Folders
from scripts.setup.running import run

VERSION: Final = "2.0.2"
REQUIREMENTS: Final = Path(__file__).with_name("focus_validator.txt")
"""The validator and its dependencies, with the hash of each file. Newer releases of pyarrow require another NumPy."""


def environment_of(folders: Folders) -> Path:
    """Return its virtual environment. There is one for each Python version that ran setup."""
    return folders.cache / f"focus-validator-{VERSION}-py{sys.version_info.major}.{sys.version_info.minor}"


def is_there(folders: Folders) -> bool:
    return (environment_of(folders) / "bin" / "python").exists()


def install(folders: Folders) -> None:
    """Install it from PyPI. A failed installation leaves nothing behind. Raises SetupError."""
    half = Path(tempfile.mkdtemp(prefix=".focus-validator-", dir=folders.cache))
    log = folders.logs / "setup-focus-validator.log"
    pip = [str(half / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    wanted = ["--ignore-requires-python", "--requirement", str(REQUIREMENTS)]
    try:
        run([sys.executable, "-m", "venv", str(half)], doing="making its environment", log=log, limit_s=120)
        run([*pip, *wanted], doing="installing focus-validator from PyPI", log=log, limit_s=600)
        half.rename(environment_of(folders))
    finally:
        shutil.rmtree(half, ignore_errors=True)
