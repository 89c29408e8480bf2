"""What `gpufleet doctor` looks at on this machine."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from gpufleet.domain.findings import Finding
from localcloud.control import parts, processes
from localcloud.control.environment import is_ours, is_stripped
from localcloud.control.folders import PULUMI_VERSION, Folders
from localcloud.control.pulumi_cli import find_pulumi, has_language_host
from localcloud.control.sockets import can_listen, find_listener
from localcloud.control.tools import TOOLS, find_tool
from localcloud.control.waiting import LocalError

PYTHONS: Final = ((3, 11), (3, 12))
GIB_FREE: Final = 2


def examine(folders: Folders, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Everything that the two commands need, in the order in which it is needed."""
    yield _python()
    yield _environment_of(folders)
    yield _pulumi(folders, environment)
    for tool in TOOLS:
        found = find_tool(tool, environment)
        yield Finding(
            name=tool.name,
            ok=found is not None,
            found=f"{'.'.join(map(str, found.version))} at {found.path}" if found else "missing, or too old",
            remedy="" if found else f"run `make setup` (it {tool.purpose})",
        )
    yield _disk(folders)
    yield _isolation()
    yield from _addresses(folders)
    yield _credentials(environment)


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
        where = f"neither on PATH nor in {folders.cache}"
        return Finding(name="pulumi", ok=False, found=f"no {PULUMI_VERSION} {where}", remedy="run `make setup`")
    ok = has_language_host(pulumi)
    return Finding(
        name="pulumi",
        ok=ok,
        found=f"{PULUMI_VERSION} at {pulumi}",
        remedy="" if ok else "it has no pulumi-language-python beside it: run `make setup`",
    )


def _disk(folders: Folders) -> Finding:
    free = shutil.disk_usage(folders.root).free / 2**30
    ok = free >= GIB_FREE
    remedy = "" if ok else f"the embedded cloud needs {GIB_FREE} GiB: make room"
    return Finding(name="disk", ok=ok, found=f"{free:.1f} GiB free at {folders.root}", remedy=remedy)


def _isolation() -> Finding:
    try:
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", "true"], capture_output=True, timeout=10, check=False
        )
        allowed = done.returncode == 0
    except (OSError, subprocess.SubprocessError):
        allowed = False
    return Finding(
        name="isolation",
        ok=True,
        found="machines get a mount namespace of their own" if allowed else "no user namespaces here",
        remedy="" if allowed else "machines run in a folder only; allow user namespaces to confine them",
    )


def _addresses(folders: Folders) -> Iterator[Finding]:
    try:
        known = (parts.cloud(folders), *parts.control(folders))
    except LocalError:
        return  # said above: a tool is missing
    for part in known:
        for address, port in part.listens:
            listener = find_listener(address, port)
            free = listener is None and can_listen(address, port)
            pid = listener.pid if listener else None
            ours = pid is not None and is_ours(processes.environment_of(pid), folders)
            holder = f"process {pid} ({processes.command_of(pid)})" if pid else "a process of another user"
            yield Finding(
                name=f"{address}:{port}",
                ok=free or ours,
                found="free" if free else f"{part.name} of this clone" if ours else f"held by {holder}",
                remedy="" if free or ours else f"end it: {part.what} needs this address",
            )


def _credentials(environment: Mapping[str, str]) -> Finding:
    seen = sorted(name for name in environment if is_stripped(name))
    return Finding(
        name="credentials",
        ok=True,
        found=", ".join(seen) if seen else "no cloud variables set",
        remedy="nothing that `gpufleet local` or `make demo` starts sees these" if seen else "",
    )
