"""Checks the health of the accelerators from the metrics of their exporter."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import UnknownMachineError
from gpufleet.domain.model import Cloud
from hosts.node.local_http import fetch
from serving.accelerators.contract import AcceleratorContract
from serving.accelerators.launch import EXPORTER_PORT
from serving.accelerators.reading import read
from serving.exposition import Sample, parse

_TIMEOUT_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """The result of a health check."""

    broken: str | None = None
    """Why this machine must not serve; None if no defect was found."""
    unknown: str | None = None
    """Why the health is unknown; None if it is known."""


def expected_gpus(cloud: Cloud, machine_type: str) -> int | None:
    """Return the number of devices of a machine type; None if the catalogue does not contain the type."""
    try:
        return catalogue.machine(cloud, machine_type).gpu_count
    except UnknownMachineError:
        return None


def check(contract: AcceleratorContract, address: str, expected: int | None = None) -> HealthReport:
    """Query the exporter on this machine. Without an answer the health is unknown, which is not a defect."""
    url = f"http://{address}:{EXPORTER_PORT}/metrics"
    try:
        return judge(contract, parse(fetch(url, _TIMEOUT_S).decode()), expected)
    except (OSError, ValueError) as error:
        return HealthReport(unknown=f"the exporter of {contract.title}s did not return metrics: {error}")


def judge(contract: AcceleratorContract, samples: Iterable[Sample], expected: int | None = None) -> HealthReport:
    """Evaluate the exporter's metrics. `expected`: the number of devices of the machine type; None if unknown."""
    page, title = tuple(samples), contract.title
    devices = _devices(contract, page)
    if not devices:
        return HealthReport(unknown=f"the exporter reports no {title}")
    if expected is not None and len(devices) < expected:
        found = f"the exporter reports {len(devices)} of {expected} {title}s"
        return HealthReport(broken=found) if contract.launch.reports_all else HealthReport(unknown=found)
    for sample in page:
        if defect := contract.launch.defect(sample):
            return HealthReport(broken=f"{title} {contract.identity.device_of(sample.labels)}: {defect}")
    return HealthReport()


def _devices(contract: AcceleratorContract, page: Iterable[Sample]) -> set[str]:
    """Return the devices with at least one measured value."""
    reading = read(contract, page)
    whole = {device for device, values in reading.devices.items() if values}
    return whole | {key.device for key, unit in reading.units.items() if unit.values}
