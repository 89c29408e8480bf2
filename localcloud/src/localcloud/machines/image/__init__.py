"""The commands that an emulated machine's image brings: `aws`, `systemctl`, `docker`, disks; small scripts."""

import shlex
import sys
from pathlib import Path
from typing import Final

COMMANDS: Final = {
    "aws": "aws_cli",
    "systemctl": "systemctl",
    "docker": "docker",
    "install": "owners",
    "iptables": "packets",
    "ip6tables": "packets",
    "lsblk": "disks",
    "nvme": "disks",
    "mdadm": "disks",
    "mkfs.xfs": "disks",
    "mkfs.ext4": "disks",
    "mount": "disks",
    "umount": "disks",
    "mountpoint": "disks",
    "findmnt": "disks",
    "blkid": "disks",
    "blockdev": "disks",
    "wipefs": "disks",
    "poweroff": "power",
    "shutdown": "power",
}
"""Command -> the module of this package that implements it."""


def install(folder: Path, code: str) -> None:
    """Write the commands into `folder`, with `python3` as the interpreter of this process. `code`: its PYTHONPATH."""
    folder.mkdir(parents=True, exist_ok=True)
    python = shlex.quote(sys.executable)
    for name, module in COMMANDS.items():
        # -P: never import from the caller's folder
        run = f"{python} -P -m {__name__}.{module} {name}"
        _write(folder / name, f'exec env PYTHONPATH={shlex.quote(code)} {run} "$@"')
    _write(folder / "python3", f'exec {python} "$@"')


def _write(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", "utf-8")
    path.chmod(0o755)
