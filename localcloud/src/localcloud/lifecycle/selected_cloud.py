"""The embedded cloud of this clone's stack, router and Prometheus. Both clouds always run."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gpufleet.domain.model import Cloud
from gpufleet.toolchain.folders import Folders

FLEET_URLS: Final[Mapping[Cloud, str]] = MappingProxyType(
    {
        Cloud.AWS: "s3://gpu-fleet-local-models/fleet/fleet.json",
        Cloud.GCP: "gs://gpu-fleet-local-gcp-models/fleet/fleet.json",
    }
)
"""Where `pulumi up` writes the fleet document."""


def stack_of(cloud: Cloud) -> str:
    """The stack of an embedded cloud."""
    return f"{cloud}-local"


def chosen(folders: Folders) -> Cloud:
    """The cloud of the last `gpufleet local up`; AWS before the first."""
    try:
        return Cloud((folders.run / "chosen-cloud").read_text("utf-8").strip())
    except (OSError, ValueError):
        return Cloud.AWS


def choose(folders: Folders, cloud: Cloud) -> None:
    """Store it for `local env`, `local status` and the other commands."""
    folders.run.mkdir(parents=True, exist_ok=True)
    (folders.run / "chosen-cloud").write_text(f"{cloud}\n", "utf-8")
