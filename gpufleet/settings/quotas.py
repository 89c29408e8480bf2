"""The maximum that a fleet can need of an account's quotas, from the pools' maxima, in the clouds' units."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import AcceleratorKind
from gpufleet.domain.model import CapacityType, Cloud, Instance
from gpufleet.settings.document import FleetDocument, GroupEntry, Pool

AWS_CODES: Final = {
    ("G", False): "L-DB2E81BA",
    ("G", True): "L-3819A6DF",
    ("P", False): "L-417A185B",
    ("P", True): "L-7212CCBC",
    ("P5", False): "L-417A185B",
    ("P5", True): "L-C4BD4855",
    ("P6", False): "L-417A185B",
    ("Inf", False): "L-1945791B",
    ("Inf", True): "L-B5D1601B",
    ("Trn", False): "L-2C3B7624",
    ("Trn", True): "L-6B0D517C",
}
"""(family, whether spot) -> code in EC2's Service Quotas, in vCPUs of running instances. Families: G and VT, P (P2
to P4), P5, P6 (its spot quota is unknown), Inf, Trn."""
GOOGLE_METRICS: Final = {
    "T4": "NVIDIA_T4_GPUS",
    "L4": "NVIDIA_L4_GPUS",
    "A100-40GB": "NVIDIA_A100_GPUS",
    "A100-80GB": "NVIDIA_A100_80GB_GPUS",
}
"""GPU -> regional quota metric, in GPUs. The metric for spot has the prefix `PREEMPTIBLE_`. Newer GPUs are absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaNeed:
    """The maximum that the pools can need of one quota at the same time."""

    quota: str | None
    """The cloud's name of the quota; None if it is unknown for that machine type."""
    unit: str
    most: int
    for_: str
    """Machine types and capacity, for people."""


def needs(document: FleetDocument) -> tuple[QuotaNeed, ...]:
    """Return all quotas that the fleet's pools use, with the sum of their maxima."""
    found: dict[tuple[str | None, str], tuple[int, set[str]]] = {}
    for pool in document.pools:
        for group, most in _most(pool):
            for quota, unit, each, label in [_largest_use(document.cloud, group.machine_types, group.type)]:
                total, labels = found.get((quota, unit), (0, set[str]()))
                found[quota, unit] = (total + most * each, labels | {label})
    return tuple(
        QuotaNeed(quota=quota, unit=unit, most=total, for_=", ".join(sorted(labels)))
        for (quota, unit), (total, labels) in sorted(found.items(), key=lambda item: (item[0][0] or "", item[0][1]))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUsage:
    """The use of one quota by running and pending instances."""

    quota: str
    unit: str
    used: int


def uses(cloud: Cloud, instances: Iterable[Instance]) -> tuple[QuotaUsage, ...]:
    """Return the use of each quota. Machines without a GPU, or with an unknown type or quota, are ignored."""
    found: dict[tuple[str, str], int] = {}
    for instance in instances:
        if not instance.alive:
            continue
        quota, unit, each, _ = _largest_use(cloud, (instance.machine_type,), instance.capacity_type)
        if quota is not None:
            found[quota, unit] = found.get((quota, unit), 0) + each
    return tuple(QuotaUsage(quota=quota, unit=unit, used=used) for (quota, unit), used in sorted(found.items()))


def _most(pool: Pool) -> Iterable[tuple[GroupEntry, int]]:
    """Return the maximum instances of each group; the spot groups of all zones share the pool's maximum."""
    left = pool.max
    for group in pool.groups:
        if not group.machine_types:
            continue
        if group.type is not CapacityType.SPOT:
            yield group, min(group.max, pool.max)
            continue
        share = min(group.max, left)
        left -= share
        yield group, share


def _largest_use(cloud: Cloud, names: tuple[str, ...], kind: CapacityType) -> tuple[str | None, str, int, str]:
    """Return the quota, its unit, the maximum use by one instance of these machine types, and a label.

    The quota of types that the catalogue does not contain is unknown.
    """
    # Flex-start uses the preemptible quota although it is not spot (Google's documentation).
    spot = kind in (CapacityType.SPOT, CapacityType.FLEX_START)
    if kind is CapacityType.RESERVED:
        kind = CapacityType.ON_DEMAND
    known = catalogue.known(cloud, names)
    if not known:
        return None, "instances", 1, f"{names[0]} {kind}"
    chosen = max(known, key=lambda m: (m.vcpus, m.gpu_count))
    label = f"{chosen.name} {kind}"
    if cloud is Cloud.AWS:
        return AWS_CODES.get((_family(chosen.name), spot)), "vCPUs", chosen.vcpus, label
    if chosen.accelerator is AcceleratorKind.TPU:
        # TPU chips have quotas by family, which no regional metric shows
        return None, "TPU chips", chosen.gpu_count, label
    metric = GOOGLE_METRICS.get(chosen.gpu)
    if metric is not None and spot:
        metric = f"PREEMPTIBLE_{metric}"
    return metric, "GPUs", chosen.gpu_count, label


def _family(name: str) -> str:
    """Return the family of `AWS_CODES`; empty for newer families, whose quota is unknown here."""
    return next((family for start, family in _FAMILIES if name.startswith(start)), "")


_FAMILIES: Final = (
    *(("g", "G"), ("p2", "P"), ("p3", "P"), ("p4", "P"), ("p5", "P5"), ("p6", "P6")),
    *(("inf", "Inf"), ("trn", "Trn")),
)
"""Beginning of the machine type's name -> family."""
