"""The node exporter of an emulated machine, with node_exporter's metric names.

`python -m localcloud.node_exporter --web.listen-address=ADDRESS:9100 [--path.rootfs=ROOT]`. CPU and memory are those
of this computer, read from /proc at each request. Disks are those below the machine's root. Other flags of the real
one are accepted and ignored.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gpufleet.http_server import Answer, HttpRequest, HttpServer, Routes
from localcloud.same_user import LIMITS, refused
from serving import metrics
from serving.exposition import CONTENT_TYPE, Sample, render_family
from serving.metrics import Metric

MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The first columns of /proc/stat (proc_stat(5))."""
MOUNTS: Final = ("/", "/mnt/nvme")
_MEMORY: Final = {metrics.HOST_MEMORY_TOTAL: "MemTotal", metrics.HOST_MEMORY_AVAILABLE: "MemAvailable"}


def page(proc: Path, root: Path) -> str:
    """/metrics now."""
    families = {
        metrics.HOST_CPU_SECONDS: list(_cpus((proc / "stat").read_text("utf-8"))),
        **_memory((proc / "meminfo").read_text("utf-8")),
        **_disks(root),
    }
    return "".join(
        render_family(metric.name, metric.kind, metric.meaning, samples) for metric, samples in families.items()
    )


def _sample(metric: Metric, value: float, **labels: str) -> Sample:
    return Sample(name=metric.name, labels=labels, value=value)


def _cpus(stat: str) -> Iterator[Sample]:
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    for line in stat.splitlines():
        name, _, rest = line.partition(" ")
        if name.startswith("cpu") and name != "cpu":
            for mode, ticks in zip(MODES, rest.split(), strict=False):
                seconds = int(ticks) / ticks_per_second
                yield _sample(metrics.HOST_CPU_SECONDS, seconds, cpu=name.removeprefix("cpu"), mode=mode)


def _memory(meminfo: str) -> dict[Metric, list[Sample]]:
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in meminfo.splitlines())}
    return {metric: [_sample(metric, kib[name] * 1024)] for metric, name in _MEMORY.items()}


def _disks(root: Path) -> dict[Metric, list[Sample]]:
    there = {mount: os.statvfs(path) for mount in MOUNTS if (path := root / mount.lstrip("/")).is_dir()}
    size, free = metrics.HOST_DISK_SIZE, metrics.HOST_DISK_FREE
    return {
        size: [_sample(size, disk.f_blocks * disk.f_frsize, mountpoint=mount) for mount, disk in there.items()],
        free: [_sample(free, disk.f_bavail * disk.f_frsize, mountpoint=mount) for mount, disk in there.items()],
    }


def server(address: tuple[str, int], root: Path) -> HttpServer:
    """Serves the page of one machine. Raises OSError when the address is taken."""

    def answer(request: HttpRequest) -> Answer | None:
        return refused(request, "node exporter") or routes(request)

    routes = Routes({"GET /metrics": lambda _: Answer(body=page(Path("/proc"), root), content_type=CONTENT_TYPE)})
    product, simulated = "gpu-fleet-simulated-node-exporter", {"X-Simulated": "true"}
    return HttpServer(address, answer, limits=LIMITS, product=product, headers=simulated)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until ended."""
    parser = argparse.ArgumentParser(prog="node_exporter", description="Simulated node exporter.", allow_abbrev=False)
    parser.add_argument("--web.listen-address", dest="address", required=True, help="HOST:PORT to listen on")
    parser.add_argument(
        "--path.rootfs", dest="root", type=Path, default=Path("/"), help="where the machine's files are"
    )
    given, _ = parser.parse_known_args(arguments)
    host, _, port = given.address.rpartition(":")
    serving = server((host, int(port)), given.root)
    sys.stderr.write(f"simulated node exporter on {given.address}\n")
    serving.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
