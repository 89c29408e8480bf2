"""Canonical metrics of accelerators, in SI units. `serving.accelerators` maps each exporter's own names to them.

Prometheus relabelling gives a series its canonical name and the label `unit`, but cannot scale its values. A query
reads the number in SI units through `serving.accelerators.queries.scaled`.
"""

from collections.abc import Mapping
from typing import Final

from serving.metrics import Metric, MetricKind, Source

PREFIX: Final = "gpufleet_accelerator_"
"""All canonical names begin with it."""


def _accelerator(name: str, kind: MetricKind, unit: str, meaning: str) -> Metric:
    return Metric(name=PREFIX + name, kind=kind, source=Source.ACCELERATOR, unit=unit, meaning=meaning)


SHARE: Final = "share 0 to 1"
BYTES: Final = "bytes"
WATTS: Final = "watts"
JOULES: Final = "joules"
SECONDS: Final = "seconds"
EXECUTIONS_UNIT: Final = "executions"
HEALTH: Final = "0 or 1"

ACTIVE: Final = _accelerator(
    "active_ratio", MetricKind.GAUGE, SHARE, "time in which the unit computed; of a slice relative to the slice"
)
MEMORY_USED: Final = _accelerator("memory_used_bytes", MetricKind.GAUGE, BYTES, "device memory used")
MEMORY_FREE: Final = _accelerator("memory_free_bytes", MetricKind.GAUGE, BYTES, "device memory free")
MEMORY_RESERVED: Final = _accelerator(
    "memory_reserved_bytes", MetricKind.GAUGE, BYTES, "device memory reserved by the driver"
)
MEMORY_TOTAL: Final = _accelerator("memory_total_bytes", MetricKind.GAUGE, BYTES, "device memory")
POWER: Final = _accelerator("power_watts", MetricKind.GAUGE, WATTS, "current power of the whole device")
ENERGY: Final = _accelerator(
    "energy_joules_total", MetricKind.COUNTER, JOULES, "energy of the whole device since its driver was loaded"
)
HEALTHY: Final = _accelerator("healthy", MetricKind.GAUGE, HEALTH, "1: the exporter reports no hardware error")
IDLE_SECONDS: Final = _accelerator("idle_seconds", MetricKind.GAUGE, SECONDS, "time since the unit last computed")
EXECUTIONS: Final = _accelerator(
    "executions_total",
    MetricKind.COUNTER,
    EXECUTIONS_UNIT,
    "executed graphs, successful or not: a change proves work",
)
HOST_MEMORY_USED: Final = _accelerator(
    "host_memory_used_bytes", MetricKind.GAUGE, BYTES, "memory of the host: it changes while the exporter measures"
)

ALL: Final[Mapping[str, Metric]] = {
    metric.name: metric for metric in tuple(globals().values()) if isinstance(metric, Metric)
}
"""All canonical metrics of accelerators, by name."""
MAX_MEMORY: Final = float(1 << 40)
"""More bytes than any accelerator has."""
RANGES: Final[Mapping[Metric, tuple[float, float]]] = {
    ACTIVE: (0.0, 1.0),
    # an idle accelerator draws more (a T4 about 9), and the largest less (about 1,400)
    POWER: (3.0, 2_900.0),
    MEMORY_USED: (0.0, MAX_MEMORY),
    MEMORY_FREE: (0.0, MAX_MEMORY),
    MEMORY_RESERVED: (0.0, MAX_MEMORY),
    # an eighth of an L4 has 2.8 GiB
    MEMORY_TOTAL: (float(1 << 31), MAX_MEMORY),
}
"""Lowest and highest plausible value in SI units. A value outside of it is not a measurement, or has another unit.

The ranges of power and of all memory are narrower than a factor of 1,000, so that a unit that is wrong by it never
stays inside.
"""
MIN_USED: Final = float(1 << 20)
"""Fewer used bytes, but more than 0, are a number of MiB."""
