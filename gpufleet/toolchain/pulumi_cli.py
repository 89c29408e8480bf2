"""Finds the Pulumi CLI in the version that matches the lock file. Uses only the standard library."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpufleet.toolchain.folders import PULUMI_VERSION, Folders

LANGUAGE_HOST: Final = "pulumi-language-python"
LIMIT_S: Final = 30.0


def find_pulumi(folders: Folders, environment: Mapping[str, str] | None = None) -> Path | None:
    """Return `pulumi` on PATH if it has the right version and a Python language host, else the cached one or None."""
    names = os.environ if environment is None else environment
    on_path = shutil.which("pulumi", path=names.get("PATH", ""))
    if on_path and has_language_host(Path(on_path)) and has_required_version(Path(on_path)):
        return Path(on_path).resolve()
    cached = folders.pulumi_folder / "bin" / "pulumi"
    return cached.resolve() if has_required_version(cached) else None


def has_required_version(pulumi: Path) -> bool:
    """Return whether the program runs and prints the required version."""
    if not pulumi.is_file():
        return False
    try:
        output = subprocess.run(
            [pulumi, "version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"},
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return False
    return output == f"v{PULUMI_VERSION}"


def has_language_host(pulumi: Path) -> bool:
    """Return whether a Python language host is in the CLI's folder, as in the official distribution."""
    return os.access(pulumi.resolve().with_name(LANGUAGE_HOST), os.X_OK)
