"""The program of a simulated exporter: it finds out which machine it runs on."""

import os
import sys

from gpufleet.domain.catalogue import UnknownMachineError
from localcloud.exporters.frame import ExporterKind, Simulator, fault_folder, run
from localcloud.exporters.metadata import hardware_of, metadata


def start(
    kind: ExporterKind, host: str, port: int, machine_type: str | None = None, engine: str | None = None
) -> int:
    """Serve until ended. `host`, `machine_type`: empty or None: from the instance metadata. Returns the exit code."""
    host = host or os.environ.get("GPUFLEET_LOCAL_ADDRESS") or metadata("local-ipv4") or "127.0.0.1"
    machine_type = machine_type or metadata("instance-type")
    if machine_type is None:
        return _fail("--machine-type is missing, and no instance metadata service is configured: add --machine-type")
    zone = metadata("placement/availability-zone") or ""
    try:
        hardware = hardware_of(machine_type, metadata("instance-id") or host, zone)
    except UnknownMachineError as error:
        return _fail(str(error))
    if hardware.kind != kind.kind:
        return _fail(f"{machine_type}: has no {kind.kind} device, its accelerators are of the kind {hardware.kind}")
    simulator = Simulator(
        kind=kind,
        hardware=hardware,
        engine_url=(engine or f"http://{host}:8000").rstrip("/"),
        faults=fault_folder(),
    )
    return run(simulator, (host, port))


def _fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1
