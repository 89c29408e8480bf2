"""Sizes of slices: MIG profiles of NVIDIA GPUs, partitions of AMD GPUs, cores of Neuron devices. Pure.

A MIG profile `3g.40gb` holds three of the GPU's compute slices and 40 GB of its memory. Other accelerators are
divided into equal parts. Sources: NVIDIA's MIG user guide and NVIDIA/mig-parted commit bd7160f (profiles and their
counts), ROCm's device-metrics-exporter (partition types of Instinct GPUs with eight dies). Not tried on hardware.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_PROFILE: Final = re.compile(r"(?:[1-9]c\.)?([1-9])g\.([1-9]\d*)gb(?:[+.-][a-z]+)*", re.IGNORECASE)
"""`1g.10gb`, with a compute instance (`1c.3g.40gb`) or attributes (`1g.10gb+me`; Kubernetes: `1g.10gb.me`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSize:
    """The part of a device that a slice holds."""

    compute: int
    of: int
    """Compute parts of the whole device."""
    memory: int | None = None
    """Memory parts; None: not known. Without them it is not known whether another slice fits."""
    memory_of: int | None = None
    is_mig: bool = False
    """Whether slices are made and removed one by one, so that a part of the device can have no slice. Other devices
    are always divided completely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigGpu:
    """How a GPU can be divided."""

    compute: int
    memory: int
    gigabytes: int
    """Of the largest profile."""
    profiles: Mapping[str, int]
    """Profile to the largest number of its instances."""

    def size(self, profile: str) -> SliceSize:
        """Return the size of one of the profiles. Raises ValueError for text that is not a profile."""
        compute, gigabytes = _numbers(profile)
        memory = min(max(round(gigabytes * self.memory / self.gigabytes), 1), self.memory)
        return SliceSize(compute=compute, of=self.compute, memory=memory, memory_of=self.memory, is_mig=True)


def _seven(whole: int, half: str, quarter: str, eighth: str) -> MigGpu:
    """A GPU with seven compute slices and eight memory slices, by the memory of its profiles in GB."""
    profiles = {f"1g.{eighth}gb": 7, f"1g.{quarter}gb": 4, f"2g.{quarter}gb": 3, f"3g.{half}gb": 2, f"4g.{half}gb": 1}
    return MigGpu(compute=7, memory=8, gigabytes=whole, profiles={**profiles, f"7g.{whole}gb": 1})


def _four(whole: int) -> MigGpu:
    profiles = {f"1g.{whole // 4}gb": 4, f"2g.{whole // 2}gb": 2, f"4g.{whole}gb": 1}
    return MigGpu(compute=4, memory=4, gigabytes=whole, profiles=profiles)


MIG_GPUS: Final[Mapping[str, MigGpu]] = {
    "A30": _four(24),
    "A100-40GB": _seven(40, "20", "10", "5"),
    "A100-80GB": _seven(80, "40", "20", "10"),
    "H100-80GB": _seven(80, "40", "20", "10"),
    "H100-94GB": _seven(94, "47", "24", "12"),
    "H100-96GB": _seven(96, "48", "24", "12"),
    "H200-141GB": _seven(141, "71", "35", "18"),
    "B200-180GB": _seven(180, "90", "45", "23"),
    "GB200": _seven(186, "93", "47", "23"),
    "GB200-189GB": _seven(189, "93", "47", "23"),
    "B300": _seven(269, "135", "67", "34"),
    "GB300": _seven(278, "139", "70", "35"),
    "RTX-PRO-6000": _four(96),
}
"""By the GPU's name in the catalogue, or in its style where the catalogue has none."""

_EQUAL: Final[Mapping[str, int]] = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": 8}
"""Partition type of AMD Instinct GPUs to the number of equal parts of a GPU with eight dies."""


def size_of(profile: str, gpu: str | None, units_per_device: int = 1) -> SliceSize | None:
    """Return the size of a slice; None: unknown.

    `profile`: as its exporter names it, empty where slices have no profiles. `gpu`: the device's name in the
    catalogue; None: unknown. `units_per_device`: equal parts of a device whose slices have no profile.
    """
    if not profile:
        return SliceSize(compute=1, of=units_per_device) if units_per_device > 1 else None
    if profile.upper() in _EQUAL:
        return SliceSize(compute=1, of=_EQUAL[profile.upper()])
    known = MIG_GPUS.get(gpu or "")
    name = plain(profile)
    if name is None:
        return None
    if known is not None and (name in known.profiles or _numbers(name)[0] <= known.compute):
        return known.size(name)
    sizes = {one.size(name) for one in MIG_GPUS.values() if name in one.profiles}
    if len({(size.compute, size.of) for size in sizes}) != 1:
        return None  # no GPU has it, or GPUs differ
    one = next(iter(sizes))
    return one if len(sizes) == 1 else SliceSize(compute=one.compute, of=one.of, is_mig=True)


def plain(profile: str) -> str | None:
    """Return a MIG profile without its attributes and compute instance; None: it is not a MIG profile."""
    if _PROFILE.fullmatch(profile) is None:
        return None
    compute, gigabytes = _numbers(profile)
    return f"{compute}g.{gigabytes}gb"


def _numbers(profile: str) -> tuple[int, int]:
    found = _PROFILE.fullmatch(profile)
    if found is None:
        raise ValueError(f"{profile!r}: expected a MIG profile such as 1g.10gb")
    return int(found[1]), int(found[2])


def another_fits(gpu: str | None, used: Iterable[SliceSize]) -> bool | None:
    """Return whether another slice fits on a GPU in addition to those in use; None: unknown.

    It counts slices of compute and memory. The GPU also restricts their positions, so True means "may fit".
    """
    known = MIG_GPUS.get(gpu or "")
    sizes = tuple(used)
    if known is None or any(size.memory is None for size in sizes):
        return None
    compute = known.compute - sum(size.compute for size in sizes)
    memory = known.memory - sum(size.memory or 0 for size in sizes)
    return any(size.compute <= compute and (size.memory or 0) <= memory for size in _sizes(known))


def _sizes(known: MigGpu) -> Iterator[SliceSize]:
    return (known.size(profile) for profile in known.profiles)
