"""The checks of this machine that `gpufleet doctor` runs with and without the embedded cloud."""

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from gpufleet.domain.findings import Finding
from gpufleet.toolchain.folders import PULUMI_VERSION, Folders
from gpufleet.toolchain.pulumi_cli import find_pulumi, has_language_host
from gpufleet.toolchain.tools import Tool, find_tool

PYTHONS: Final = ((3, 11), (3, 12))


def examine(folders: Folders, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check Python, the virtual environment of a clone (if there is a clone) and the Pulumi CLI."""
    yield _python()
    if (folders.root / "pyproject.toml").is_file():
        yield _environment_of(folders)
    yield _pulumi(folders, environment)


def check_tool(tool: Tool, environment: Mapping[str, str]) -> Finding:
    """Check that a program is installed in a sufficient version."""
    found = find_tool(tool, environment)
    return Finding(
        name=tool.name,
        ok=found is not None,
        found=f"{'.'.join(map(str, found.version))} at {found.path}" if found else "missing or too old",
        remedy="" if found else f"run `make setup`, which installs it ({tool.name} {tool.purpose})",
    )


def _python() -> Finding:
    ok = sys.version_info[:2] in PYTHONS
    return Finding(
        name="python",
        ok=ok,
        found=f"{sys.version.split()[0]} at {sys.executable}",
        remedy="" if ok else "gpu-fleet needs 3.11 or 3.12: `make setup PYTHON=python3.11`",
    )


def _environment_of(folders: Folders) -> Finding:
    ok = os.access(folders.python, os.X_OK)
    return Finding(
        name="environment",
        ok=ok,
        found=str(folders.python) if ok else f"no {folders.python}",
        remedy="" if ok else "run `make setup`",
    )


def _pulumi(folders: Folders, environment: Mapping[str, str]) -> Finding:
    pulumi = find_pulumi(folders, environment)
    if pulumi is None:
        where = f"{PULUMI_VERSION} is neither on PATH nor in {folders.cache}"
        return Finding(name="pulumi", ok=False, found=where, remedy="run `make setup` in a clone")
    ok = has_language_host(pulumi)
    return Finding(
        name="pulumi",
        ok=ok,
        found=f"{PULUMI_VERSION} at {pulumi}",
        remedy="" if ok else "its folder contains no pulumi-language-python: run `make setup`",
    )
