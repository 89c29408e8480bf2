"""The instance metadata of an emulated machine, and its accelerators."""

import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud
from localcloud.machines.spec import MachineSpec

_GOOGLE_PATHS: Final = {
    "local-ipv4": "network-interfaces/0/ip",
    "instance-type": "machine-type",
    "instance-id": "name",
    "placement/availability-zone": "zone",
}
_UNPUBLISHED_WATTS: Final = 300.0
"""Simulated power of a device whose rated power is not published. Exporters of Neuron and TPU report no power."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The accelerators of a machine."""

    kind: str
    name: str
    count: int
    """Devices."""
    cores: int = 1
    """Units of each device that programs use separately: cores of a Neuron device."""
    memory_mib: int
    """Per device."""
    watts: float
    seed: str
    """Decides serial numbers: the instance's id."""
    machine_type: str = ""
    zone: str = ""


def hardware_of(machine_type: str, seed: str, zone: str = "") -> Hardware:
    """The accelerators of a machine type. Raises catalogue.UnknownMachineError."""
    cloud = Cloud.AWS if "." in machine_type else Cloud.GCP
    machine = catalogue.machine(cloud, machine_type)
    return Hardware(
        kind=machine.accelerator.value,
        name=machine.gpu,
        count=machine.gpu_count,
        cores=machine.units_per_device,
        memory_mib=machine.gpu_memory_mib,
        watts=_watts(machine.gpu),
        seed=seed,
        machine_type=machine_type,
        zone=zone,
    )


def _watts(device: str) -> float:
    try:
        return catalogue.gpu(device).watts or _UNPUBLISHED_WATTS
    except catalogue.UnknownMachineError:
        return _UNPUBLISHED_WATTS


def hardware_here() -> Hardware | None:
    """The accelerators of the emulated machine that this process runs on; None outside of one, or without any."""
    root = os.environ.get("GPUFLEET_ROOT")
    if not root:
        return None
    try:
        spec = MachineSpec.load(Path(root))
        return hardware_of(spec.machine_type, spec.instance, spec.zone)
    except (OSError, catalogue.UnknownMachineError):
        return None


def metadata(path: str) -> str | None:
    """A value of the instance metadata (IMDSv2, or Google's); None without a metadata service."""
    google = os.environ.get("GCE_METADATA_HOST", "")
    if google:
        return _google(google, path)
    endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "").rstrip("/")
    if not endpoint:
        return None
    request = urllib.request.Request(
        f"{endpoint}/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    )
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            token = answer.read().decode()
        request = urllib.request.Request(
            f"{endpoint}/latest/meta-data/{path}", headers={"X-aws-ec2-metadata-token": token}
        )
        with urllib.request.urlopen(request, timeout=2) as answer:
            return answer.read().decode()
    except (OSError, ValueError):
        return None


def _google(host: str, path: str) -> str | None:
    request = urllib.request.Request(
        f"http://{host}/computeMetadata/v1/instance/{_GOOGLE_PATHS[path]}", headers={"Metadata-Flavor": "Google"}
    )
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return answer.read().decode().rpartition("/")[2]
    except (OSError, ValueError):
        return None
