"""What the embedded cloud adds to `gpufleet doctor`."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Final

from gpufleet.domain.findings import Finding
from gpufleet.toolchain.checks import check_tool
from gpufleet.toolchain.folders import Folders
from gpufleet.toolchain.tools import TOOLS
from localcloud.lifecycle import parts, processes
from localcloud.lifecycle.environment import is_ours, is_stripped
from localcloud.lifecycle.sockets import can_listen, find_listener
from localcloud.lifecycle.waiting import LocalError

GIB_FREE: Final = 2


def examine(folders: Folders, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check the requirements of the embedded cloud on this machine, in their order of use."""
    for tool in TOOLS:
        yield check_tool(tool, environment)
    yield _disk(folders)
    yield _isolation()
    yield from _addresses(folders)
    yield _credentials(environment)


def _disk(folders: Folders) -> Finding:
    free = shutil.disk_usage(folders.root).free / 2**30
    ok = free >= GIB_FREE
    remedy = "" if ok else f"the embedded cloud needs {GIB_FREE} GiB: free some space"
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
        return  # already reported: a tool is missing
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
        remedy="processes of `gpufleet local` and `make demo` do not get these" if seen else "",
    )
