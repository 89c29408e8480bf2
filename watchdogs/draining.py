"""Instances that are about to end: waits for drains, and finds instances that their group is ending already."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.decisions import Decision
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance
from gpufleet.domain.ownership import owning_pool
from gpufleet.settings.document import FleetDocument
from watchdogs.ports import Ports

POLL_SECONDS: Final = 1.0
DRAIN_SLACK: Final = timedelta(seconds=10)
"""How much longer than the drain's own deadline a pass waits; a later pass continues."""

RENEW_EVERY: Final = timedelta(minutes=1)
"""Interval at which a waiting pass renews its lease."""

PendingDrain = tuple[Decision, Instance]


def until_drained(
    ports: Ports, drains: Sequence[PendingDrain], deadline: timedelta
) -> Iterator[tuple[Decision, bool]]:
    """Each decision as soon as its instance has drained (True); at the deadline the others (False)."""
    clock = ports.clock
    renewed = clock.now()
    limit = renewed + deadline + DRAIN_SLACK
    waiting = list(drains)
    while waiting:
        statuses = ports.agents.statuses([instance for _, instance in waiting])
        for drain in [d for d in waiting if drained(statuses.get(d[1].id))]:
            waiting.remove(drain)
            yield drain[0], True
        if not waiting or clock.now() >= limit:
            break
        renewed = sleep_and_renew(ports, renewed)
    for decision, _ in waiting:
        yield decision, False


def sleep_and_renew(ports: Ports, renewed: datetime) -> datetime:
    """Sleep between two polls, and renew the lease when it is due: a drain may last longer than the lease.

    Returns the time of the last renewal. Each step checks by itself whether the lease is still held.
    """
    ports.clock.sleep(POLL_SECONDS)
    now = ports.clock.now()
    if now - renewed < RENEW_EVERY:
        return renewed
    ports.ledger.renew_lease(now)
    return now


def leaving(ports: Ports, instances: Iterable[Instance]) -> frozenset[str]:
    """The instances that their groups are ending already. They may run for minutes, and are not ended again.

    Raises OSError.
    """
    names = sorted({instance.group for instance in instances if instance.group is not None})
    found = ports.groups.groups(names) if names else ()
    return frozenset(key for group in found for key in group.leaving)


def is_terminated(ports: Ports, document: FleetDocument, instance: Instance | None) -> bool:
    """Whether an instance has ended, or its group is ending it. Raises OSError.

    A group that was removed from the settings cannot be read: its instance counts only once it no longer exists.
    """
    if instance is None or not instance.alive:
        return True
    return owning_pool(document.group_names(), instance) is not None and instance.id in leaving(ports, [instance])


def drained(status: AgentStatus | None) -> bool:
    """Whether the agent reported it and no request runs. No answer does not count as drained."""
    return status is not None and status.drained and not status.requests_running
