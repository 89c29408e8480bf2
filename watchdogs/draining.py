"""Instances on their way out: what drains is waited for, what its group is ending already is left to it."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.decisions import Decision
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance
from gpufleet.domain.ownership import owner_of
from gpufleet.settings.document import FleetDocument
from watchdogs.ports import Ports

POLL_SECONDS: Final = 1.0
DRAIN_SLACK: Final = timedelta(seconds=10)
"""How much longer than the drain's own deadline a pass waits; then a later pass goes on."""

RENEW_EVERY: Final = timedelta(minutes=1)
"""Between two renewals of the lease by a pass that waits."""

Drain = tuple[Decision, Instance]


def until_drained(ports: Ports, drains: Sequence[Drain], deadline: timedelta) -> Iterator[tuple[Decision, bool]]:
    """Each decision as soon as its instance is empty (True), and those that are not in time (False)."""
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
    """Between two looks of a pass that waits: renew its lease when it is time, for a drain may last longer than its
    term. When it was last renewed; whether it is still ours is asked before each step.
    """
    ports.clock.sleep(POLL_SECONDS)
    now = ports.clock.now()
    if now - renewed < RENEW_EVERY:
        return renewed
    ports.ledger.hold(now)
    return now


def leaving(ports: Ports, instances: Iterable[Instance]) -> frozenset[str]:
    """Whom the groups of these are ending already: they may live for minutes yet, and are not ended again.

    Raises OSError.
    """
    names = sorted({instance.group for instance in instances if instance.group is not None})
    found = ports.groups.groups(names) if names else ()
    return frozenset(key for group in found for key in group.leaving)


def is_terminated(ports: Ports, document: FleetDocument, instance: Instance | None) -> bool:
    """Whether an end that was begun has happened: it is there no more, or its group sees to it. Raises OSError.

    A group that left the settings cannot be asked: its instance has gone when it is there no more.
    """
    if instance is None or not instance.alive:
        return True
    return owner_of(document.group_names(), instance) is not None and instance.id in leaving(ports, [instance])


def drained(status: AgentStatus | None) -> bool:
    """Whether the agent said so itself; silence is no yes, and neither is a yes beside requests that run."""
    return status is not None and status.drained and not status.requests_running
