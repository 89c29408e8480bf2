"""Reads an instance of Compute Engine."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState

_STATES: Final = {
    "PROVISIONING": InstanceState.PENDING,
    "STAGING": InstanceState.PENDING,
    "RUNNING": InstanceState.RUNNING,
    "REPAIRING": InstanceState.PENDING,
    "PENDING": InstanceState.PENDING,
    "PENDING_STOP": InstanceState.STOPPING,
    "STOPPING": InstanceState.STOPPING,
    "SUSPENDING": InstanceState.STOPPING,
    "DEPROVISIONING": InstanceState.STOPPING,
    "SUSPENDED": InstanceState.STOPPED,
    "STOPPED": InstanceState.STOPPED,
    "TERMINATED": InstanceState.STOPPED,
}
"""Compute Engine uses TERMINATED for a stopped machine. It does not list deleted machines."""
_ACCELERATED: Final = re.compile(r"(a[2-9]\w*|g[2-9]\w*|ct\d\w*|tpu\d\w*)-")
"""Machine families with built-in GPUs."""


def parse(raw: Any, zone: str, group: str | None, pool: str | None) -> Instance:
    """Return the instance. Raises ValueError for invalid times."""
    labels = {_tag(key): value for key, value in raw.labels.items()}
    return Instance(
        id=raw.name,
        cloud=Cloud.GCP,
        region=zone.rpartition("-")[0],
        zone=zone,
        machine_type=raw.machine_type.rsplit("/", 1)[-1],
        capacity_type=_capacity_type(raw, labels),
        state=_STATES.get(raw.status, InstanceState.STOPPING),
        launched_at=datetime.fromisoformat(raw.creation_timestamp).astimezone(UTC),
        environment=labels.get(tags.ENVIRONMENT),
        pool=pool,
        group=group,
        private_address=raw.network_interfaces[0].network_i_p if raw.network_interfaces else None,
        reservation=next(iter(raw.reservation_affinity.values), None),
        ends_at=_ends_at(raw),
        tags=labels,
    )


def has_accelerator(raw: Any) -> bool:
    """Whether an instance, or the properties of one, has accelerators."""
    return bool(raw.guest_accelerators) or is_accelerated(raw.machine_type)


def _ends_at(raw: Any) -> datetime | None:
    """When Google will terminate the instance: a fixed time, or its start plus the maximum run duration."""
    if raw.scheduling.termination_time:
        return datetime.fromisoformat(raw.scheduling.termination_time).astimezone(UTC)
    seconds = int(raw.scheduling.max_run_duration.seconds)
    began = datetime.fromisoformat(raw.last_start_timestamp or raw.creation_timestamp).astimezone(UTC)
    return began + timedelta(seconds=seconds) if seconds else None


def _tag(label: str) -> str:
    """The tag key for a label key. Only keys of gpu-fleet have two forms."""
    prefix = tags.label("gpu-fleet:")
    return f"gpu-fleet:{label.removeprefix(prefix)}" if label.startswith(prefix) else label


def _capacity_type(raw: Any, labels: Mapping[str, str]) -> CapacityType:
    """Capacity type as Compute Engine reports it; the label counts only if it reports none."""
    if raw.scheduling.provisioning_model == "SPOT":
        return CapacityType.SPOT
    if raw.scheduling.provisioning_model == "FLEX_START":
        return CapacityType.FLEX_START
    bound = raw.scheduling.provisioning_model == "RESERVATION_BOUND"
    if bound or raw.reservation_affinity.consume_reservation_type == "SPECIFIC_RESERVATION":
        return CapacityType.RESERVED
    try:
        return CapacityType(labels.get(tags.CAPACITY_TYPE, CapacityType.ON_DEMAND))
    except ValueError:
        return CapacityType.ON_DEMAND


def is_accelerated(machine_type: str) -> bool:
    """Whether a machine type has built-in accelerators. It may be a URL."""
    return _ACCELERATED.match(machine_type.rsplit("/", 1)[-1]) is not None
