"""Local NVMe disks: finds them by model (EBS volumes share the device numbering), stripes, formats, mounts them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import UnknownMachineError
from gpufleet.domain.model import Cloud
from hosts.node.ports import StepError
from hosts.node.systemd import run

LOCAL_MODELS: Final = ("Amazon EC2 NVMe Instance Storage", "nvme_card")
"""Model names of the clouds' local disks. The model of Google's network disks is nvme_card-pd."""
ARRAY: Final = "/dev/md/gpufleet"
MOUNT_OPTIONS: Final = "noatime,nodiratime,discard"
_COLUMNS: Final = "PATH,MODEL,TYPE,FSTYPE,MOUNTPOINTS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A block device as lsblk reports it."""

    path: str
    model: str
    type: str
    filesystem: str | None
    mount_points: tuple[str, ...]
    children: tuple["Device", ...] = ()


def read_lsblk(text: str) -> tuple[Device, ...]:
    """Parse the output of `lsblk --json`. Raises StepError."""
    try:
        return tuple(_device(entry) for entry in json.loads(text)["blockdevices"])
    except (ValueError, KeyError, TypeError) as error:
        raise StepError("lsblk: its output is not the JSON of `lsblk --json`") from error


def _device(entry: Mapping[str, Any]) -> Device:
    return Device(
        path=entry["path"],
        model=(entry.get("model") or "").strip(),
        type=entry.get("type") or "",
        filesystem=entry.get("fstype"),
        mount_points=tuple(point for point in entry.get("mountpoints") or () if point),
        children=tuple(_device(child) for child in entry.get("children") or ()),
    )


def local_disks(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the instance's local NVMe disks."""
    return tuple(device for device in devices if device.type == "disk" and device.model in LOCAL_MODELS)


def commands(devices: Sequence[Device], mount_point: str) -> list[list[str]]:
    """Return the commands that mount all local disks at `mount_point`; empty if they are mounted there.

    Formatted disks (after a reboot) are mounted without formatting. Raises StepError if they are mounted elsewhere.
    """
    disks = local_disks(devices)
    if not disks:
        return []
    volumes = list(_volumes(disks))
    mounted = sorted({point for volume in volumes for point in volume.mount_points})
    if mount_point in mounted:
        return []
    if mounted:
        raise StepError(f"the local disks are mounted on {', '.join(mounted)}: unmount them or change cache_dir")
    mount = ["mount", "-o", MOUNT_OPTIONS]
    if len(disks) == 1:
        return [*_format(disks[0]), [*mount, disks[0].path, mount_point]]
    arrays = [volume for volume in volumes if volume.type.startswith("raid")]
    if arrays:
        return [*_format(arrays[0]), [*mount, arrays[0].path, mount_point]]
    create = ["mdadm", "--create", ARRAY, "--run", "--force", "--level=0", "--chunk=256"]
    create += [f"--raid-devices={len(disks)}", *(disk.path for disk in disks)]
    return [create, ["mkfs.xfs", "-f", "-K", ARRAY], [*mount, ARRAY, mount_point]]


def _volumes(disks: Sequence[Device]) -> Iterator[Device]:
    for disk in disks:
        yield disk
        yield from disk.children


def _format(device: Device) -> list[list[str]]:
    """Return the command that formats the device, if needed. -K skips the discard, which takes minutes."""
    return [] if device.filesystem == "xfs" else [["mkfs.xfs", "-f", "-K", device.path]]


class LocalDisks:
    """The machine's disks. `root` is the prefix of all paths."""

    def __init__(self, root: Path, run: Callable[[Sequence[str]], str] = run) -> None:
        self._root = root
        self._run = run

    def prepare(self, mount_point: str) -> int:
        """Mount the local disks at `mount_point` and return their number. Raises StepError."""
        target = str(self._root / mount_point.lstrip("/"))
        Path(target).mkdir(parents=True, exist_ok=True)
        devices = read_lsblk(self._run(["lsblk", "--json", "--output", _COLUMNS]))
        for command in commands(devices, target):
            self._run(command)
        return len(local_disks(devices))


def missing(found: int, cloud: Cloud, machine_type: str) -> str | None:
    """Return a warning if a machine has fewer local disks than its machine type includes; otherwise None."""
    try:
        machine = catalogue.machine(cloud, machine_type)
    except UnknownMachineError:
        return None
    if machine.nvme_optional or found >= machine.nvme_disks:
        return None
    where = "models are stored on the system disk" if found == 0 else "the cache is smaller and slower"
    return f"found {found} of the {machine.nvme_disks} local NVMe disks of a {machine_type}: {where}"
