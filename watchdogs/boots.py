"""How long instances take from launch to ready. Pure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance

BOOT_DEFAULT: Final = timedelta(minutes=6)
"""Before any instance has shown how long it takes."""
BOOT_MOST: Final = timedelta(hours=1)
"""What is longer is no boot: an agent that restarts, or switches to another revision, enters `ready` anew, and hours
or days after the launch. A boot that really needs longer only has no say in what is expected."""


def took(instances: Iterable[Instance], statuses: Mapping[str, AgentStatus]) -> list[timedelta]:
    """What those that are ready needed, as far as it can have been a boot."""
    found: list[timedelta] = []
    for instance in instances:
        status = statuses.get(instance.id)
        if status is not None and status.ready and is_boot(instance.launched_at, status.phase_since):
            found.append((status.phase_since or instance.launched_at) - instance.launched_at)
    return found


def is_boot(launched_at: datetime, ready_since: datetime | None) -> bool:
    """Whether it can have become ready then because it booted."""
    return ready_since is not None and timedelta(0) < ready_since - launched_at <= BOOT_MOST


def expected(boots: Sequence[timedelta], otherwise: timedelta = BOOT_DEFAULT) -> timedelta:
    """The median; where there is none, what is said otherwise."""
    return timedelta(seconds=statistics.median(boot.total_seconds() for boot in boots)) if boots else otherwise
