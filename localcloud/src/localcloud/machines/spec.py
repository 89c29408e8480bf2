"""What the yard tells a machine's supervisor: written as JSON into the machine's root."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpufleet.domain.model import Cloud
from localcloud.machines.volumes import Volume

SPEC_FILE: Final = "run/machine.json"
LOG_FOLDER: Final = "var/log"
UNIT_FOLDER: Final = "etc/systemd/system"
MARK: Final = "GPUFLEET_LOCAL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A machine that a cloud wants started."""

    instance: str
    """Its name among the machines that live: the folder."""

    uid: str
    address: str
    zone: str
    region: str
    machine_type: str
    cloud: Cloud
    variables: Mapping[str, str]
    script: bytes | None
    """User data or startup script."""

    nvme_disks: int | None = None
    """None: as many as the machine type brings along."""

    volumes: tuple[Volume, ...] = ()
    """Attached from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """One emulated machine."""

    instance: str
    address: str
    zone: str
    region: str
    machine_type: str
    cloud: str
    """`aws` or `gcp`: what its disks are called."""

    uid: str
    """Names no other machine of any cloud, also not one that has the instance's name later."""

    variables: dict[str, str]
    """How its programs reach the cloud's APIs and its metadata."""

    nvme_disks: int
    nvme_disk_bytes: int
    image_commands: str
    """Folder with the image's commands, first on PATH."""

    code: str
    """Folder that holds this package, for the image's commands."""

    mark: str
    """Value of the mark that every local process of a clone carries; empty outside of `gpufleet local`."""

    def save(self, root: Path) -> None:
        """Write it where `load` finds it."""
        path = root / SPEC_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", "utf-8")

    @staticmethod
    def load(root: Path) -> "MachineSpec":
        """The spec of the machine with this root. Raises OSError."""
        return MachineSpec(**json.loads((root / SPEC_FILE).read_text("utf-8")))

    def socket_name(self) -> bytes:
        """Abstract socket of the supervisor: paths of sockets are short, clones lie anywhere."""
        return b"\0gpufleet-machine-" + self.uid.encode()

    def environment(self, root: Path) -> dict[str, str]:
        """What each process of the machine gets: no credential, nothing of who started the cloud."""
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {
            "PATH": f"{self.image_commands}:{system}",
            "HOME": str(root / "root"),
            "TMPDIR": str(root / "tmp"),
            "LANG": "C.UTF-8",
            "GPUFLEET_ROOT": str(root),
            "GPUFLEET_LOCAL_ADDRESS": self.address,
            "GPUFLEET_LOCAL_STATE": str(root / "run"),
            **self.variables,
            # the loopback cloud must be reached, whatever proxy the user has
            "NO_PROXY": "*",
            # how `gpufleet local down` finds what belongs to this clone
            **({MARK: self.mark} if self.mark else {}),
        }
