"""Machine images with the driver of each kind of accelerator. Not tried on hardware. Source: `data/SOURCE.md`."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from gpufleet.domain.catalogue import AcceleratorKind, MachineType
from gpufleet.domain.model import Cloud


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineImage:
    """An image that a cloud publishes for machines with accelerators."""

    cloud: Cloud
    accelerator: AcceleratorKind
    architecture: str
    families: tuple[str, ...]
    """First parts of machine types; empty: all of this kind and architecture that no other row names."""
    image: str | None
    """The newest image: `resolve:ssm:` and a parameter, or an image family. Settings need a fixed version. None: the
    cloud publishes none."""
    tpu_runtime: str | None
    """Runtime version of the Cloud TPU API, which creates machines without Compute Engine's images."""
    driver: str
    """For people."""


def image_of(machine: MachineType) -> MachineImage | None:
    """Return the image for a machine type; None if no row describes it."""
    family = machine.name.partition(".")[0] if machine.cloud is Cloud.AWS else machine.name.partition("-")[0]
    fitting = [
        one
        for one in machine_images()
        if (one.cloud, one.accelerator, one.architecture)
        == (machine.cloud, machine.accelerator, machine.architecture)
    ]
    named = [one for one in fitting if family in one.families]
    return next(iter([*named, *(one for one in fitting if not one.families)]), None)


@cache
def machine_images() -> tuple[MachineImage, ...]:
    """Return all images."""
    text = resources.files("gpufleet.domain.data").joinpath("images.csv").read_text(encoding="utf-8")
    return tuple(
        MachineImage(
            cloud=Cloud(row["cloud"]),
            accelerator=AcceleratorKind(row["accelerator"]),
            architecture=row["architecture"],
            families=tuple(row["families"].split()),
            image=row["image"] or None,
            tpu_runtime=row["tpu_runtime"] or None,
            driver=row["driver"],
        )
        for row in csv.DictReader(text.splitlines())
    )
