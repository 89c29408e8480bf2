"""The specification of a machine for its supervisor, a JSON file in the machine's root."""

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
    """A machine to start."""

    instance: str
    """Its name, unique among running machines; also that of its folder."""

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
    """None: the number of the machine type."""

    volumes: tuple[Volume, ...] = ()
    """The volumes that are attached at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """One emulated machine."""

    instance: str
    address: str
    zone: str
    region: str
    machine_type: str
    cloud: str
    """`aws` or `gcp`; selects the names of its disks."""

    uid: str
    """A unique id, also compared with later machines of the same name."""

    variables: dict[str, str]
    """Environment variables for the cloud's APIs and the metadata."""

    nvme_disks: int
    nvme_disk_bytes: int
    image_commands: str
    """Folder with the image's commands, first on PATH."""

    code: str
    """PYTHONPATH of the image's commands."""

    mark: str
    """Value of the variable that marks the local processes of a clone; empty outside `gpufleet local`."""

    def save(self, root: Path) -> None:
        """Write it to the machine's root."""
        path = root / SPEC_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", "utf-8")

    @staticmethod
    def load(root: Path) -> "MachineSpec":
        """The spec of the machine with this root. Raises OSError."""
        return MachineSpec(**json.loads((root / SPEC_FILE).read_text("utf-8")))

    def socket_name(self) -> bytes:
        """The abstract socket of the supervisor: the path of a file socket could be too long."""
        return b"\0gpufleet-machine-" + self.uid.encode()

    def environment(self, root: Path) -> dict[str, str]:
        """The environment of the machine's processes: no credential, nothing of the user's environment."""
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
            # the embedded cloud is never reached through the user's proxy
            "NO_PROXY": "*",
            # `gpufleet local down` finds processes by this mark
            **({MARK: self.mark} if self.mark else {}),
        }
