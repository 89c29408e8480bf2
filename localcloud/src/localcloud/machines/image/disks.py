"""Disk commands of an emulated machine: its own disks are remembered in `run/disks.json`, nothing is formatted."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from localcloud.machines.image import this_machine, volumes
from localcloud.machines.spec import MachineSpec

_STATE: Final = "run/disks.json"
_NVME_MODEL: Final = "Amazon EC2 NVMe Instance Storage"
_EBS_MODEL: Final = "Amazon Elastic Block Store"
_EBS_BYTES: Final = 100 * 1024**3
_COLUMNS: Final = ("name", "size", "type", "mountpoint")


def _load() -> dict[str, dict[str, Any]]:
    """Devices by name: the root disk, and the NVMe disks that the machine type has."""
    path = this_machine.root() / _STATE
    if path.is_file():
        return json.loads(path.read_text("utf-8"))
    spec = this_machine.spec()
    if spec.cloud == "gcp":
        return _google_disks(spec)
    root_disk = {"model": _EBS_MODEL, "size": _EBS_BYTES, "serial": f"vol{spec.instance[2:]}", "fstype": "ext4"}
    found: dict[str, dict[str, Any]] = {"nvme0n1": {**root_disk, "type": "disk", "mountpoint": "/"}}
    for number in range(1, spec.nvme_disks + 1):
        found[f"nvme{number}n1"] = {
            "model": _NVME_MODEL,
            "size": spec.nvme_disk_bytes,
            "serial": f"AWS{spec.instance[-12:].upper()}{number}",
            "type": "disk",
            "fstype": None,
            "mountpoint": None,
        }
    return found


def _google_disks(spec: MachineSpec) -> dict[str, dict[str, Any]]:
    boot = {"model": "PersistentDisk", "size": _EBS_BYTES, "serial": "persistent-disk-0", "fstype": "ext4"}
    found: dict[str, dict[str, Any]] = {"sda": {**boot, "type": "disk", "mountpoint": "/"}}
    for number in range(spec.nvme_disks):
        found[f"nvme0n{number + 1}"] = {
            "model": "nvme_card",
            "size": spec.nvme_disk_bytes,
            "serial": f"nvme_card{number}",
            "type": "disk",
            "fstype": None,
            "mountpoint": None,
        }
    return found


def _save(devices: dict[str, dict[str, Any]]) -> None:
    (this_machine.root() / _STATE).write_text(json.dumps(devices, indent=1), "utf-8")


def _device(devices: dict[str, dict[str, Any]], path: str, who: str) -> dict[str, Any]:
    name = path.removeprefix("/dev/")
    found = devices.get(name) or next((d for d in devices.values() if d.get("alias") == path), None)
    if found is None:
        this_machine.fail(f"{who}: {path}: No such file or directory")
    return found


def lsblk(arguments: list[str]) -> int:
    """`lsblk [--json] [-b] [-d] [-n] [-p] [-o COLUMNS] [DEVICE]`."""
    short = "".join(
        argument[1:] for argument in arguments if argument.startswith("-") and not argument.startswith("--")
    )
    columns = _columns(arguments)
    shown: list[dict[str, Any]] = []
    named = [argument for argument in arguments if argument.startswith("/dev/")]
    devices = _load()
    style = _Style(columns=columns, paths="p" in short, in_bytes="b" in short or "--bytes" in arguments)
    for name, device in devices.items():
        if (named and f"/dev/{name}" not in named) or (not named and device["type"] == "raid0"):
            continue
        row = _row(name, device, style)
        below = [other for other in devices if name in devices[other].get("members", ())]
        if below and "d" not in short and "--nodeps" not in arguments:
            row["children"] = [_row(other, devices[other], style) for other in below]
        shown.append(row)
    if "--json" in arguments or "J" in short:
        print(json.dumps({"blockdevices": shown}, indent=3))
    else:
        if "n" not in short and "--noheadings" not in arguments:
            print(" ".join(column.upper() for column in columns))
        for row in shown:
            print(" ".join("" if row[column] is None else str(row[column]) for column in columns))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    columns: list[str]
    paths: bool
    in_bytes: bool


def _row(name: str, device: dict[str, Any], style: _Style) -> dict[str, Any]:
    full = {**device, "name": f"/dev/{name}" if style.paths else name, "path": f"/dev/{name}", "kname": name}
    full["mountpoints"] = [device["mountpoint"]]
    if not style.in_bytes:
        full["size"] = f"{device['size'] / 1024**3:.1f}G"
    return {column: full.get(column) for column in style.columns}


def _columns(arguments: list[str]) -> list[str]:
    for position, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag == "--output" and equals:
            return value.lower().split(",")
        is_short = argument.startswith("-") and not argument.startswith("--") and argument.endswith("o")
        if (is_short or argument == "--output") and position + 1 < len(arguments):
            return arguments[position + 1].lower().split(",")
    return list(_COLUMNS)


def nvme(arguments: list[str]) -> int:
    """`nvme list [-o json]`."""
    if arguments[:1] != ["list"]:
        this_machine.fail(f"nvme: an emulated machine knows `nvme list` only, not {' '.join(arguments)!r}")
    disks = {name: device for name, device in _load().items() if device["type"] == "disk"}
    if "json" in arguments or "--output-format=json" in arguments:
        shown = [
            {
                "DevicePath": f"/dev/{name}",
                "ModelNumber": device["model"],
                "SerialNumber": device["serial"],
                "PhysicalSize": device["size"],
            }
            for name, device in disks.items()
        ]
        print(json.dumps({"Devices": shown}, indent=2))
        return 0
    print("Node                  SN                   Model")
    for name, device in disks.items():
        print(f"/dev/{name:<16} {device['serial']:<20} {device['model']}")
    return 0


def mdadm(arguments: list[str]) -> int:
    """`mdadm --create /dev/mdN --level=0 --raid-devices=N … DISKS`, `--detail`, `--stop`."""
    devices = _load()
    named = [argument for argument in arguments if argument.startswith("/dev/")]
    if "--create" in arguments or "-C" in arguments:
        made, parts = named[0], named[1:]
        if not parts:
            this_machine.fail("mdadm: You haven't given enough devices (real or missing) to create this array")
        size = sum(int(_device(devices, part, "mdadm")["size"]) for part in parts)
        for part in parts:
            devices[part.removeprefix("/dev/")]["fstype"] = "linux_raid_member"
        array = {"model": None, "size": size, "serial": None, "type": "raid0", "fstype": None, "mountpoint": None}
        # a named array (/dev/md/NAME) is a link to the next number from 127 down
        number = 127 - sum(1 for device in devices.values() if device["type"] == "raid0")
        name = f"md{number}" if made.startswith("/dev/md/") else made.removeprefix("/dev/")
        devices[name] = {**array, "alias": made, "members": [part.removeprefix("/dev/") for part in parts]}
        _save(devices)
        print(f"mdadm: array {made} started.", file=sys.stderr)
        return 0
    if "--stop" in arguments or "-S" in arguments:
        for name in named:
            devices.pop(name.removeprefix("/dev/"), None)
        _save(devices)
        return 0
    for name, device in devices.items():
        if device["type"] == "raid0":
            print(f"ARRAY /dev/{name} metadata=1.2 name={this_machine.spec().instance}:0")
    return 0


def make_filesystem(arguments: list[str], kind: str) -> int:
    """`mkfs.xfs [-f] DEVICE`: refuses what holds a filesystem already, unless forced."""
    devices = _load()
    path = next((argument for argument in arguments if argument.startswith("/dev/")), None)
    if path is None:
        this_machine.fail(f"mkfs.{kind}: no device given")
    device = _device(devices, path, f"mkfs.{kind}")
    if device["fstype"] is not None and not {"-f", "-F"} & set(arguments):
        this_machine.fail(
            f"mkfs.{kind}: {path} appears to contain an existing filesystem ({device['fstype']}). Use the -f option"
        )
    device["fstype"] = kind
    _save(devices)
    return 0


def mount(arguments: list[str]) -> int:
    """`mount [-t TYPE] [-o OPTIONS] DEVICE FOLDER`."""
    named = _positional(arguments, {"-t", "-o", "--types", "--options"})
    if len(named) != 2:
        this_machine.fail(f"mount: give a device and a folder, not {named}", 32)
    devices = _load()
    device = _device(devices, named[0], "mount")
    if device["fstype"] in (None, "linux_raid_member"):
        this_machine.fail(f"mount: {named[1]}: wrong fs type, bad option, bad superblock on {named[0]}", 32)
    if device["mountpoint"] is not None:
        this_machine.fail(f"mount: {named[1]}: {named[0]} already mounted on {device['mountpoint']}.", 32)
    this_machine.inside(named[1]).mkdir(parents=True, exist_ok=True)
    device["mountpoint"] = named[1]
    _save(devices)
    return 0


def umount(arguments: list[str]) -> int:
    """`umount DEVICE|FOLDER`."""
    devices = _load()
    for given in _positional(arguments, set()):
        mounted = [
            d for n, d in devices.items() if d["mountpoint"] == given or given in (f"/dev/{n}", d.get("alias"))
        ]
        if not mounted or mounted[0]["mountpoint"] is None:
            this_machine.fail(f"umount: {given}: not mounted.", 32)
        mounted[0]["mountpoint"] = None
    _save(devices)
    return 0


def is_mounted(arguments: list[str]) -> int:
    """`mountpoint [-q] FOLDER`, `findmnt [-n] FOLDER`."""
    asked = {str(this_machine.inside(argument)) for argument in _positional(arguments, {"-o", "-t"})}
    found = any(d["mountpoint"] and str(this_machine.inside(d["mountpoint"])) in asked for d in _load().values())
    return 0 if found else 1


def blkid(arguments: list[str]) -> int:
    """`blkid [-o value] [-s TYPE] DEVICE`: exit code 2 when nothing is on it."""
    devices = _load()
    named = [argument for argument in arguments if argument.startswith("/dev/")]
    found = [(path, _device(devices, path, "blkid")["fstype"]) for path in named]
    if not any(kind for _, kind in found):
        return 2
    for path, kind in found:
        print(kind if "value" in arguments else f'{path}: TYPE="{kind}"')
    return 0


def _positional(arguments: list[str], with_value: set[str]) -> list[str]:
    found: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in with_value:
            skip = True
        elif not argument.startswith("-"):
            found.append(argument)
    return found


def main(name: str, arguments: list[str]) -> int:
    """Run one command; the machine's log gets its command line."""
    with (this_machine.root() / "var/log/disks.log").open("a", encoding="utf-8") as log:
        log.write(" ".join([name, *arguments]) + "\n")
    if (code := volumes.run(name, arguments)) is not None:
        return code
    match name:
        case "lsblk":
            return lsblk(arguments)
        case "nvme":
            return nvme(arguments)
        case "mdadm":
            return mdadm(arguments)
        case "mkfs.xfs" | "mkfs.ext4":
            return make_filesystem(arguments, Path(name).suffix[1:])
        case "mount":
            return mount(arguments)
        case "umount":
            return umount(arguments)
        case "mountpoint" | "findmnt":
            return is_mounted(arguments)
        case "blkid":
            return blkid(arguments)
        case _:
            # blockdev, wipefs: only logged
            return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
