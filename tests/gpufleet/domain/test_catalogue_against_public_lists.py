"""The catalogue and the packaged prices against public lists. Each difference is named, with its reason."""

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Final

from gpufleet.domain.catalogue import EXCLUDED, MachineType, machines
from gpufleet.domain.model import Cloud
from gpufleet.prices.packaged import PackagedPrices

RECORDED: Final = Path(__file__).parents[2] / "recorded/catalogue"
_ARCHITECTURES: Final = {"amd64": "x86_64", "arm64": "arm64"}
_HBM: Final = "EC2 states 512 GiB for each Trainium2 chip; the Neuron SDK documents 96 GiB"
_ROUNDED: Final = "the page rounds to whole GiB; the driver reports 189,471 MiB"
_FRACTION: Final = "the list counts whole GPUs, and this machine has a fraction of one"
_NEURON: Final = "the list counts GPUs only"
_OLD: Final = "the price list of 2026-01-22 does not have it: newer, or sold only in capacity blocks"
_NO_SSD: Final = "the page describes the variant with local SSDs only"
_ONE_CHIP: Final = "Google's page lists 4-chip machines only; the API lists this one, too"
_GKE: Final = "not in the list of the Compute Engine API"

_FRACTIONAL: Final = ("g6f.large", "g6f.xlarge", "g6f.2xlarge", "g6f.4xlarge", "gr6f.4xlarge")
_WITH_NEURON: Final = (
    *("inf1.xlarge", "inf1.2xlarge", "inf1.6xlarge", "inf1.24xlarge"),
    *("inf2.xlarge", "inf2.8xlarge", "inf2.24xlarge", "inf2.48xlarge"),
    *("trn1.2xlarge", "trn1.32xlarge", "trn1n.32xlarge"),
)
_NOT_IN_PRICE_LIST: Final = (
    *("g7.2xlarge", "g7.4xlarge", "g7.8xlarge", "g7.12xlarge", "g7.24xlarge", "g7.48xlarge"),
    *("p5e.48xlarge", "p6-b300.48xlarge", "p6e-gb200.36xlarge"),
    *("trn2.3xlarge", "trn2.48xlarge", "trn2u.48xlarge"),
)
DIFFERENCES: Final[dict[tuple[str, str, str], str]] = {
    ("aws_documentation", "p6e-gb200.36xlarge", "device_memory_mib"): _ROUNDED,
    **{
        (listed, name, "device_memory_mib"): _HBM
        for listed in ("aws_documentation", "skypilot")
        for name in ("trn2.3xlarge", "trn2.48xlarge")
    },
    **{("karpenter", name, "devices"): _FRACTION for name in _FRACTIONAL},
    **{("cluster_autoscaler", name, "gpus"): _FRACTION for name in _FRACTIONAL},
    **{("cluster_autoscaler", name, "gpus"): _NEURON for name in _WITH_NEURON},
    **{("cluster_autoscaler", name, "listed"): _OLD for name in _NOT_IN_PRICE_LIST},
    **{("cluster_toolkit", name, "catalogue"): _GKE for name in ("ct5p-hightpu-1t", "ct5p-hightpu-2t")},
    **{
        ("google_documentation/cluster_toolkit", name, "listed"): reason
        for name, reason in (
            ("a3-edgegpu-8g-nolssd", _NO_SSD),
            ("a3-ultragpu-8g-nolssd", _NO_SSD),
            ("tpu7x-standard-1t", _ONE_CHIP),
        )
    },
}
"""(list, machine type, field) -> the reason. The field `listed` means that the list lacks the machine type,
`catalogue` that the catalogue does.
"""

SKYPILOT_NAMES: Final = {
    "A100": "A100-40GB",
    "B200": "B200-180GB",
    "H100": "H100-80GB",
    "H200": "H200-141GB",
    "RTX PRO Server 6000": "RTX-PRO-6000",
    "V100": "V100-16GB",
}
"""Names of devices in `skypilot.csv` that the catalogue has with their memory, or in another form."""


def rows(name: str) -> list[dict[str, str]]:
    with (RECORDED / f"{name}.csv").open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def catalogue(cloud: Cloud) -> dict[str, MachineType]:
    return {machine.name: machine for machine in machines(cloud)}


def is_excluded(cloud: Cloud, name: str) -> bool:
    return any(one.cloud is cloud and name.startswith(one.prefix) for one in EXCLUDED)


def aws_differences(listed: str) -> Iterator[tuple[str, str, str]]:
    known = catalogue(Cloud.AWS)
    for row in rows(listed):
        name = row["name"]
        if is_excluded(Cloud.AWS, name):
            continue
        if name not in known:
            yield listed, name, "catalogue"
            continue
        machine = known[name]
        figures = {
            "architecture": machine.architecture,
            "vcpus": machine.vcpus,
            "memory_mib": machine.memory_mib,
            "devices": machine.gpu_count,
            "gpus": machine.gpu_count,
            "device_memory_mib": machine.gpu_memory_mib,
            "nvme_gb": machine.nvme_bytes // 10**9,
            "network_mbps": machine.network_mbps,
        }
        for field in row.keys() & figures.keys():
            # an empty field is a figure that the list does not have, except that no NVMe is an empty field
            text = _ARCHITECTURES.get(row[field], row[field]) or ("0" if field == "nvme_gb" else "")
            if text and text != str(figures[field]):
                yield listed, name, field


def skypilot_differences() -> Iterator[tuple[str, str, str]]:
    known = catalogue(Cloud.AWS)
    for row in rows("skypilot"):
        machine = known[row["name"]]
        figures = {
            "gpu": machine.gpu == SKYPILOT_NAMES.get(row["gpu"], row["gpu"]),
            "devices": machine.gpu_count * machine.gpu_share == Fraction(row["devices"]),
            "vcpus": machine.vcpus == int(row["vcpus"]),
            "memory_mib": machine.memory_mib == int(row["memory_mib"]),
            "device_memory_mib": machine.gpu_memory_mib == int(row["device_memory_mib"]),
        }
        yield from (("skypilot", machine.name, field) for field, is_equal in figures.items() if not is_equal)


def google_differences(listed: str) -> Iterator[tuple[str, str, str]]:
    known = catalogue(Cloud.GCP)
    for row in rows(listed):
        name = row["name"]
        if is_excluded(Cloud.GCP, name):
            continue
        if name not in known:
            yield listed, name, "catalogue"
            continue
        machine = known[name]
        devices = machine.gpu_count * machine.gpu_share
        exact = {
            "vcpus": Fraction(machine.vcpus),
            "memory_gib": Fraction(machine.memory_mib, 1024),
            "local_ssd_gib": Fraction(machine.nvme_bytes, 2**30),
            "network_gbps": Fraction(machine.network_mbps or 0, 1000),
            "devices": devices,
        }
        for field in row.keys() & exact.keys():
            if row[field] and Fraction(row[field]) != exact[field]:
                yield listed, name, field
        if total := row.get("total_device_memory_gb"):
            # the page rounds, and names the nominal size: an L4 reports 22.4 of its 24 GB
            ratio = machine.total_gpu_memory_mib / 1024 / float(total)
            if not 0.93 < ratio < 1.03:
                yield listed, name, "total_device_memory_gb"


def unlisted(cloud: Cloud, *lists: str) -> Iterator[tuple[str, str, str]]:
    """Machine types of the catalogue that none of the lists has."""
    names = {row["name"] for listed in lists for row in rows(listed)}
    for name in catalogue(cloud):
        if name not in names:
            yield "/".join(lists), name, "listed"


def test_every_difference_from_the_public_lists_is_named() -> None:
    found = {
        *aws_differences("karpenter"),
        *aws_differences("cluster_autoscaler"),
        *aws_differences("aws_documentation"),
        *skypilot_differences(),
        *google_differences("gcloud_machine_types"),
        *google_differences("google_documentation"),
        *google_differences("cluster_toolkit"),
        *unlisted(Cloud.AWS, "karpenter", "aws_documentation"),
        *unlisted(Cloud.AWS, "cluster_autoscaler"),
        *unlisted(Cloud.GCP, "gcloud_machine_types"),
        *unlisted(Cloud.GCP, "google_documentation", "cluster_toolkit"),
    }
    assert found == DIFFERENCES.keys()


def test_aws_prices_agree_with_an_older_list() -> None:
    """Another project read the same prices from AWS at 2025-04-14."""
    then = datetime(2025, 4, 14, 13, 15, 19, tzinfo=UTC)
    packaged = PackagedPrices()
    known = catalogue(Cloud.AWS)
    wrong: list[str] = []
    compared = 0
    for row in rows("eks_node_viewer_prices"):
        if row["name"] not in known:
            continue
        history = packaged.prices(f"aws:ec2:{row['name']}:on-demand", "us-east-1")
        valid = [price.usd_per_hour for price in history if price.valid_from <= then <= price.as_of]
        compared += 1
        if valid != [Decimal(row["usd_per_hour"]).normalize()]:
            wrong.append(f"{row['name']}: {row['usd_per_hour']}, packaged {valid}")
    assert not wrong
    assert compared > 60


def test_aws_prices_agree_with_another_list_in_all_regions() -> None:
    """Another project read the prices of 2026-01-19 or some days later from AWS. A price that it lacks is unknown."""
    then = datetime(2026, 1, 19, 13, 23, 24, tzinfo=UTC)
    packaged = PackagedPrices()
    differences: set[tuple[str, str]] = set()
    regions: set[str] = set()
    for row in rows("skypilot_prices"):
        name, region = row["name"], row["region"]
        history = packaged.prices(f"aws:ec2:{name}:on-demand", region)
        valid = [price.usd_per_hour for price in history if price.valid_from <= then <= price.as_of]
        listed = [Decimal(row["usd_per_hour"])] if row["usd_per_hour"] else []
        if valid != listed:
            differences.add((name, region))
        regions.add(region)
    assert differences == {(name, "us-east-1") for name in catalogue(Cloud.AWS) if name.startswith("g7e.")}, (
        "the packaged list of us-east-1 has g7e since 2026-01-21 only"
    )
    assert len(regions) == 19


def test_tpu_prices_agree_with_an_older_list() -> None:
    """Another project typed Google's price page of December 2024. On-demand prices have not changed since."""
    packaged = PackagedPrices()
    chips = {machine.gpu: machine for machine in machines(Cloud.GCP) if machine.gpu_count == 4}
    for row in rows("gpuhunt_tpu_prices"):
        machine = chips[row["tpu"]]
        (price,) = packaged.prices(f"gcp:compute:{machine.name}:on-demand", row["region"])
        listed = Decimal(row["usd_per_chip_hour"])
        assert abs(price.usd_per_hour / 4 - listed) < Decimal("0.0001"), row


def test_machine_types_without_a_packaged_price_are_known() -> None:
    packaged = PackagedPrices()
    with_price = {
        sku.split(":")[2] for region in ("us-east-1", "us-central1", "us-east4") for sku in packaged.skus(region)
    }
    missing = {re.split(r"[.-]", name)[0] for cloud in Cloud for name in catalogue(cloud) if name not in with_price}
    assert missing == {"a3", "a4", "a4x", "p5e", "p6e", "tpu7x", "trn2", "trn2u"}
    a3 = {name for name in catalogue(Cloud.GCP) if name.startswith("a3") and name not in with_price}
    assert a3 == {"a3-edgegpu-8g", "a3-edgegpu-8g-nolssd", "a3-ultragpu-8g", "a3-ultragpu-8g-nolssd"}
