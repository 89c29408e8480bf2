"""The simulated GPU exporter: the fields and labels of dcgm-exporter, for GPUs that do what the engine does.

`python -m localcloud.dcgm -a ADDRESS:9400 [--engine URL] [--machine-type T]`. It looks at the engine's /metrics about
once a second, as DCGM samples a GPU. Files in the machine's folder of faults silence, freeze or damage it while
it runs.
"""

import argparse
import contextlib
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpufleet.domain import catalogue
from gpufleet.domain.model import Cloud
from gpufleet.http_server import Answer, HttpRequest, HttpServer, Routes
from localcloud.engine.page import own_name
from localcloud.faults import FAULT_FOLDER
from localcloud.same_user import LIMITS, refused
from serving import metrics
from serving.exposition import CONTENT_TYPE, Sample, parse, render_family, total
from serving.metrics import Metric

SAMPLE_S: Final = 1.0
FAULT_NAMES: Final = ("exporter", "exporter-frozen", "exporter-blank", "xid", "gpus", "gpu-active", "ecc")
"""Files in the machine's folder of faults; the last four hold a number."""
_BLANK: Final = metrics.DCGM_BLANKS[0]
_RESERVED_MIB: Final = 512
_UTILIZATION: Final = 0.92
"""Share of device memory that vLLM takes, whatever the model's size."""
_IDLE_SHARE: Final = 0.18
"""Power of a GPU that holds a context and computes nothing, as a share of its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHardware:
    """The GPUs of the machine."""

    name: str
    count: int
    memory_mib: int
    watts: float
    seed: str
    """Decides the UUIDs: the instance's id."""


@dataclass(slots=True)
class GpuState:
    """What the GPUs do now."""

    active: float = 0.0
    engine_up: bool = False
    energy_mj: float = 0.0
    tokens: float | None = None


@dataclass(slots=True)
class Simulator:
    """Samples the engine and writes the page."""

    hardware: GpuHardware
    engine_url: str
    faults: Path
    state: GpuState = field(default_factory=GpuState)
    frozen_page: str | None = None

    def sample(self, seconds: float) -> None:
        """Sample the engine; `seconds`: the time since the last sample."""
        page = self._engine_page()
        self.state.engine_up = page is not None
        self.state.active = self._activity(page or [], seconds)
        faults = self.read_faults()
        self.state.active = faults.get("gpu-active", self.state.active)
        self.state.energy_mj += self._watts() * 1000 * seconds

    def read_faults(self) -> dict[str, float]:
        """The faults that are on, with their number (1 without one)."""
        found: dict[str, float] = {}
        for name in FAULT_NAMES:
            with contextlib.suppress(FileNotFoundError):
                text = (self.faults / name).read_text("utf-8").strip()
                found[name] = float(text or 1)
        return found

    def page(self) -> str:
        """The present page /metrics."""
        faults = self.read_faults()
        if "exporter-frozen" in faults:
            self.frozen_page = self.frozen_page or self._render(faults)
            return self.frozen_page
        self.frozen_page = None
        return self._render(faults)

    def _engine_page(self) -> list[Sample] | None:
        try:
            with urllib.request.urlopen(f"{self.engine_url}/metrics", timeout=0.8) as answer:
                return list(parse(answer.read().decode()))
        except (OSError, ValueError):
            return None

    def _activity(self, page: list[Sample], seconds: float) -> float:
        """GPU activity from 0 to 1, estimated from running requests and processed tokens."""
        running = total(page, own_name(metrics.REQUESTS_RUNNING)) or 0
        made = total(page, own_name(metrics.GENERATION_TOKENS))
        read = total(page, own_name(metrics.PROMPT_TOKENS))
        tokens = None if made is None or read is None else made + read
        moved = 0.0 if tokens is None or self.state.tokens is None else max(0.0, tokens - self.state.tokens)
        self.state.tokens = tokens
        if running == 0 and moved == 0:
            return 0.0
        return min(0.97, 0.55 * (running > 0) + moved / max(seconds, 0.1) / 400 + 0.05)

    def _watts(self) -> float:
        limit = self.hardware.watts
        return limit * (_IDLE_SHARE + (1 - _IDLE_SHARE) * 0.9 * self.state.active)

    def _render(self, faults: dict[str, float]) -> str:
        count = min(self.hardware.count, int(faults.get("gpus", self.hardware.count)))
        blank = "exporter-blank" in faults
        return "".join(
            render_family(
                metric.name,
                metric.kind,
                metric.meaning,
                [
                    Sample(name=metric.name, labels=self._labels(gpu), value=_BLANK if blank else value)
                    for gpu in range(count)
                ],
            )
            for metric, value in self._values(faults)
        )

    def _values(self, faults: dict[str, float]) -> Iterator[tuple[Metric, float]]:
        memory, active = self.hardware.memory_mib, self.state.active
        used = int((memory - _RESERVED_MIB) * _UTILIZATION) if self.state.engine_up else 4
        yield metrics.SM_CLOCK, 1980 if active else 345
        yield metrics.MEM_CLOCK, 2619 if active else 405
        yield metrics.MEMORY_TEMPERATURE, round(38 + 30 * active)
        yield metrics.GPU_TEMPERATURE, round(33 + 32 * active)
        yield metrics.POWER_USAGE, round(self._watts(), 3)
        yield metrics.ENERGY, int(self.state.energy_mj)
        yield metrics.GPU_UTILIZATION, min(100, round(active * 110))
        yield metrics.XID_ERRORS, int(faults.get("xid", 0))
        yield metrics.FB_FREE, memory - _RESERVED_MIB - used
        yield metrics.FB_USED, used
        yield metrics.FB_RESERVED, _RESERVED_MIB
        yield metrics.ECC_SINGLE_BIT, 0
        yield metrics.ECC_DOUBLE_BIT, int(faults.get("ecc", 0))
        yield metrics.UNCORRECTABLE_REMAPPED_ROWS, 0
        yield metrics.ROW_REMAP_FAILURE, 0
        yield metrics.GPU_ACTIVE, round(active, 6)
        yield metrics.SM_ACTIVE, round(active * 0.8, 6)
        yield metrics.TENSOR_ACTIVE, round(active * 0.3, 6)
        yield metrics.DRAM_ACTIVE, round(active * 0.6, 6)

    def _labels(self, gpu: int) -> dict[str, str]:
        return {
            "gpu": str(gpu),
            "UUID": f"GPU-{self.hardware.seed}-{gpu:04d}",
            "pci_bus_id": f"00000000:{gpu + 0x16:02X}:00.0",
            "device": f"nvidia{gpu}",
            "modelName": f"NVIDIA {self.hardware.name} (simulated)",
            "Hostname": socket.gethostname(),
            "DCGM_FI_DRIVER_VERSION": "580.95.05",
        }


def server(address: tuple[str, int], simulator: Simulator) -> HttpServer:
    """Serves the page. Raises OSError when the address is taken."""

    def answer(request: HttpRequest) -> Answer | None:
        found = refused(request, "DCGM exporter")
        if found is None and "exporter" in simulator.read_faults():
            return None
        return found or routes(request)

    routes = Routes(
        {
            "GET /metrics": lambda _: Answer(body=simulator.page(), content_type=CONTENT_TYPE),
            "GET /health": lambda _: Answer(body="OK"),
        }
    )
    product, simulated = "gpu-fleet-simulated-dcgm-exporter", {"X-Simulated": "true"}
    return HttpServer(address, answer, limits=LIMITS, product=product, headers=simulated)


def hardware_of(machine_type: str, seed: str) -> GpuHardware:
    """The GPUs of a machine type. Raises catalogue.UnknownMachineError."""
    cloud = Cloud.AWS if "." in machine_type else Cloud.GCP
    machine = catalogue.machine(cloud, machine_type)
    gpu = catalogue.gpu(machine.gpu)
    return GpuHardware(
        name=machine.gpu, count=machine.gpu_count, memory_mib=machine.gpu_memory_mib, watts=gpu.watts, seed=seed
    )


_GOOGLE_PATHS: Final = {
    "local-ipv4": "network-interfaces/0/ip",
    "instance-type": "machine-type",
    "instance-id": "name",
}


def _google_metadata(host: str, path: str) -> str | None:
    request = urllib.request.Request(
        f"http://{host}/computeMetadata/v1/instance/{_GOOGLE_PATHS[path]}", headers={"Metadata-Flavor": "Google"}
    )
    try:
        with urllib.request.urlopen(request, timeout=2) as answer:
            return answer.read().decode().rpartition("/")[2]
    except (OSError, ValueError):
        return None


def _metadata(path: str) -> str | None:
    """A value of the instance metadata (IMDSv2, or Google's); None without a metadata service."""
    google = os.environ.get("GCE_METADATA_HOST", "")
    if google:
        return _google_metadata(google, path)
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


def main() -> int:
    """Serve until ended."""
    parser = argparse.ArgumentParser(prog="dcgm-exporter", description="Simulated GPU exporter.")
    parser.add_argument("-a", "--address", default=":9400", help="HOST:PORT to listen on")
    parser.add_argument("-f", "--collectors", help="accepted as by the real exporter, and ignored")
    parser.add_argument("-c", "--collect-interval", help="accepted and ignored")
    parser.add_argument("--machine-type", help="default: from the instance metadata")
    parser.add_argument("--engine", help="default: port 8000 of the same address")
    given = parser.parse_args()
    host, _, port = given.address.rpartition(":")
    host = host or _metadata("local-ipv4") or "127.0.0.1"
    machine_type = given.machine_type or _metadata("instance-type")
    if machine_type is None:
        parser.error("--machine-type is missing, and no instance metadata service is configured: add --machine-type")
    try:
        hardware = hardware_of(machine_type, _metadata("instance-id") or host)
    except catalogue.UnknownMachineError as error:
        parser.error(str(error))
    simulator = Simulator(
        hardware=hardware,
        engine_url=(given.engine or f"http://{host}:8000").rstrip("/"),
        faults=Path(os.environ.get("GPUFLEET_ROOT", "/")) / FAULT_FOLDER,
    )
    server((host, int(port)), simulator).start("page")
    print(
        f"simulated GPU exporter: {hardware.count} x {hardware.name} on {host}:{port}; simulated, without a GPU",
        file=sys.stderr,
        flush=True,
    )
    last = time.monotonic()
    while True:
        time.sleep(SAMPLE_S)
        now = time.monotonic()
        simulator.sample(now - last)
        last = now


if __name__ == "__main__":
    sys.exit(main())
