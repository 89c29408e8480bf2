"""`gpufleet local down`: ends all processes of this clone, and counts what is left."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from gpufleet.toolchain.folders import Folders
from localcloud.lifecycle import parts, processes
from localcloud.lifecycle.environment import is_ours
from localcloud.lifecycle.processes import Process
from localcloud.lifecycle.sockets import find_listeners_in
from localcloud.lifecycle.waiting import LocalError


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What was ended, and what is left after that."""

    processes: int
    killed: int
    """Of them, those that did not end when asked."""
    processes_left: int
    listeners_left: int
    """Sockets of this clone on the embedded cloud's network."""
    mounts_left: int

    @property
    def clean(self) -> bool:
        return not (self.processes_left or self.listeners_left or self.mounts_left)


def clear_out(folders: Folders) -> Swept:
    """End the parts in the order that lets each finish, then whatever still carries the clone's mark, and forget the
    state that is worth nothing without the cloud. Raises LocalError."""
    before = {process.pid for process in _ours(folders)}
    killed: set[int] = set()
    for name in parts.END_LIMITS_S:
        killed |= {process.pid for process in end_recorded(name, folders)}
    killed |= {process.pid for process in processes.end(_ours(folders), limit_s=5)}
    for folder in (folders.run, folders.cloud, folders.machines, folders.control, folders.pulumi_state):
        _remove(folder)
    left = {process.pid for process in _ours(folders)}
    listeners = [known for known in find_listeners_in(parts.CLOUD.vpc_cidr) if known.pid in left]
    return Swept(
        processes=len(before - left),
        killed=len(killed),
        processes_left=len(left),
        listeners_left=len(listeners),
        mounts_left=len(_mounts_below(folders.local)),
    )


def end_recorded(name: str, folders: Folders) -> tuple[Process, ...]:
    """End one part, whether it answers or not. Returns what had to be killed."""
    record = processes.load(folders.run, name)
    return processes.end([record], parts.END_LIMITS_S[name]) if record else ()


def _ours(folders: Folders) -> tuple[Process, ...]:
    return processes.find_marked(lambda environment: is_ours(environment, folders))


def _mounts_below(folder: Path) -> list[str]:
    points = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    return [point for point in points if point.replace("\\040", " ").startswith(f"{folder}/")]


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LocalError(f"{error.filename} cannot be removed ({error.strerror}): remove it by hand") from error
