"""Finds system programs for the embedded cloud by name and version. Uses only the standard library."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VERSION_LIMIT_S: Final = 20.0
SYSTEM_FOLDERS: Final = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin")
"""Searched before PATH: an old `prometheus` on PATH must not win, and PATH usually lacks /usr/sbin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program with a Debian package."""

    name: str
    package: str
    purpose: str
    version_argument: str
    at_least: tuple[int, int]


@dataclass(frozen=True, slots=True)
class InstalledTool:
    """A program that is installed on this machine."""

    path: Path
    version: tuple[int, int]


PROMETHEUS: Final = Tool(
    name="prometheus",
    package="prometheus",
    purpose="scrapes engines, GPUs and node agents",
    version_argument="--version",
    at_least=(2, 42),
)
ALERTMANAGER: Final = Tool(
    name="prometheus-alertmanager",
    package="prometheus-alertmanager",
    purpose="groups alerts for Slack; `amtool` checks its configuration",
    version_argument="--version",
    at_least=(0, 25),
)
HAPROXY: Final = Tool(
    name="haproxy",
    package="haproxy",
    purpose="routes requests to the pools",
    version_argument="-v",
    at_least=(2, 6),
)
SKOPEO: Final = Tool(
    name="skopeo",
    package="skopeo",
    purpose="copies container images (`gpufleet images mirror`)",
    version_argument="--version",
    at_least=(1, 9),
)
REGISTRY: Final = Tool(
    name="docker-registry",
    package="docker-registry",
    purpose="replaces a cloud's image registry in the tests",
    version_argument="--version",
    at_least=(2, 8),
)
TOOLS: Final = (PROMETHEUS, ALERTMANAGER, HAPROXY, SKOPEO, REGISTRY)


def find_tool(tool: Tool, environment: Mapping[str, str] | None = None) -> InstalledTool | None:
    """Return the first program of that name in a sufficient version; None if there is none."""
    names = os.environ if environment is None else environment
    folders = (*SYSTEM_FOLDERS, *(f for f in names.get("PATH", "").split(os.pathsep) if f))
    for folder in dict.fromkeys(folders):
        path = Path(folder, tool.name)
        if not (path.is_file() and os.access(path, os.X_OK)):
            continue
        version = _version_of(path, tool.version_argument)
        if version is not None and version >= tool.at_least:
            return InstalledTool(path, version)
    return None


def _version_of(path: Path, argument: str) -> tuple[int, int] | None:
    try:
        done = subprocess.run(
            [path, argument], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=VERSION_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"(?:version|distribution) v?(\d+)\.(\d+)", done.stdout + done.stderr)
    return (int(found[1]), int(found[2])) if found else None
