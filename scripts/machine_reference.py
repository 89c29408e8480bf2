"""The page of machine types, generated from the catalogue and the packaged prices."""

from collections.abc import Iterator
from typing import Final

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import EXCLUDED, Gpu, Interconnect, MachineType, launch_obstacle
from gpufleet.domain.images import MachineImage, machine_images
from gpufleet.domain.model import Cloud
from gpufleet.domain.tpu_slices import tpu_slices
from gpufleet.prices.packaged import PackagedPrices

_REGIONS: Final = {Cloud.AWS: "us-east-1", Cloud.GCP: "us-central1"}
_TITLES: Final = {Cloud.AWS: "AWS", Cloud.GCP: "Google Cloud"}
_COLUMNS: Final = (
    *("machine type", "devices", "GiB each", "units each", "joined by"),
    *("vCPUs", "GiB RAM", "local NVMe GB", "Gbps", "USD/h", "pools"),
)


def machine_lines() -> Iterator[str]:
    """Yield the lines of the page."""
    yield (
        "Machine types with accelerators that the catalogue knows. Instances of all of them are found, and priced "
        "where a price is known. Pools launch those without a note in the last column. **This project has run on "
        "none of them: not tried on hardware.** Sources: `gpufleet/domain/data/SOURCE.md` and "
        "`gpufleet/prices/data/SOURCE.md`.\n"
    )
    yield (
        "AMD Instinct GPUs are rented on neither cloud. Their figures are in the catalogue for sizing, and for "
        "machines elsewhere.\n"
    )
    prices = PackagedPrices()
    for cloud in Cloud:
        yield f"## {_TITLES[cloud]}\n"
        yield f"USD per hour: on-demand list price in {_REGIONS[cloud]}, where one is packaged.\n"
        yield f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"
        for machine in catalogue.machines(cloud):
            yield _machine(machine, prices)
        yield ""
    yield from _devices()
    yield from _slices()
    yield from _images()
    yield from _excluded()


def _machine(machine: MachineType, prices: PackagedPrices) -> str:
    service = {Cloud.AWS: "ec2", Cloud.GCP: "compute"}[machine.cloud]
    sku = f"{machine.cloud}:{service}:{machine.name}:on-demand"
    known = prices.prices(sku, _REGIONS[machine.cloud])
    count = f"{machine.gpu_count}" if machine.gpu_share == 1 else f"{machine.gpu_share}"
    disks = f"{machine.nvme_bytes / 1e9:.0f}" if machine.nvme_disks else ""
    cells = (
        f"`{machine.name}`",
        f"{count} × {machine.gpu}",
        f"{machine.gpu_memory_mib / 1024:.1f}",
        str(machine.units_per_device) if machine.units_per_device > 1 else "",
        "" if machine.interconnect is Interconnect.NONE else machine.interconnect.value,
        str(machine.vcpus),
        f"{machine.memory_mib / 1024:g}",
        f"up to {disks}" if machine.nvme_optional else disks,
        "" if machine.network_mbps is None else f"{machine.network_mbps / 1000:g}",
        f"{known[-1].usd_per_hour:.4f}" if known else "",
        (launch_obstacle(machine) or "").partition(",")[0],
    )
    return f"| {' | '.join(cells)} |"


def _devices() -> Iterator[str]:
    yield "## Devices\n"
    yield "Dense figures. Empty: not published, or not confirmed by a second source. Other devices have no figures.\n"
    yield "| device | kind | GiB | GB/s | FP16 or BF16 TFLOPS | FP8 TFLOPS | watts |\n|---|---|---|---|---|---|---|"
    for gpu in catalogue.devices():
        yield f"| {' | '.join(_device(gpu))} |"
    yield ""


def _device(gpu: Gpu) -> Iterator[str]:
    yield from (gpu.name, gpu.accelerator.label, f"{gpu.memory_mib / 1024:.1f}", f"{gpu.memory_bandwidth_gb_s:g}")
    yield f"{gpu.fp16_dense_tflops:g}"
    yield "" if gpu.fp8_dense_tflops is None else f"{gpu.fp8_dense_tflops:g}"
    yield "" if gpu.watts is None else str(gpu.watts)


def _slices() -> Iterator[str]:
    yield "## TPU slices\n"
    yield "The hosts of a slice are created, and lost, together. Common topologies, with the number of hosts:\n"
    yield "| machine type | topologies |\n|---|---|"
    for machine in catalogue.machines(Cloud.GCP):
        found = [f"{one.topology} ({one.hosts})" for one in tpu_slices(machine)]
        if found:
            yield f"| `{machine.name}` | {', '.join(found)} |"
    yield ""


def _images() -> Iterator[str]:
    yield "## Images and drivers\n"
    yield "The image that has the driver of each kind. Not tried on hardware. Settings need a fixed version of it.\n"
    yield "| cloud | kind | machine types | image | TPU runtime | driver |\n|---|---|---|---|---|---|"
    for one in machine_images():
        yield f"| {' | '.join(_image(one))} |"
    yield ""


def _image(one: MachineImage) -> Iterator[str]:
    yield from (_TITLES[one.cloud], f"{one.accelerator.label}, {one.architecture}")
    yield ", ".join(f"`{family}`" for family in one.families) or "all others"
    yield from (f"`{text}`" if text else "" for text in (one.image, one.tpu_runtime))
    yield one.driver


def _excluded() -> Iterator[str]:
    yield "## Left out\n"
    yield "| cloud | machine types | reason |\n|---|---|---|"
    for one in EXCLUDED:
        yield f"| {_TITLES[one.cloud]} | `{one.prefix}*` | {one.reason} |"
    yield ""
