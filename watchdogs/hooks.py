"""Completes the lifecycle hooks of groups, by the reports of node agents.

Instances do not have this permission: no cloud can limit it to the instance itself. A false report of an agent
affects only its own instance. A hook that is never completed times out, and the group continues.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Group, Instance
from watchdogs.ports import Ports

MAX_INSTANCES: Final = 100
"""Instances whose hooks one pass completes, one call each; the next pass continues."""


def complete(
    ports: Ports, groups: Iterable[Group], listed: Mapping[str, Instance], known: Mapping[str, AgentStatus]
) -> Mapping[str, str]:
    """Complete the hooks of instances that serve or have drained. Returns the error by group where it failed.

    `listed`: instances by id. `known`: statuses read already; the agents of other waiting instances are asked. Raises
    OSError when agents cannot be asked.
    """
    waiting = [group for group in groups if group.waiting_to_serve or group.waiting_to_end]
    statuses = _statuses(ports, waiting, listed, known)
    errors: dict[str, str] = {}
    left = MAX_INSTANCES
    for group in waiting:
        serving = [key for key in sorted(group.waiting_to_serve) if _has_served(statuses.get(key))][:left]
        left -= len(serving)
        drained = [key for key in sorted(group.waiting_to_end) if _has_drained(statuses.get(key))][:left]
        left -= len(drained)
        if (serving or drained) and (error := _complete(ports, group, serving, drained)) is not None:
            errors[group.name] = error
    return errors


def _statuses(
    ports: Ports, waiting: Sequence[Group], listed: Mapping[str, Instance], known: Mapping[str, AgentStatus]
) -> Mapping[str, AgentStatus]:
    ids = [key for group in waiting for key in group.waiting_to_serve | group.waiting_to_end]
    asked = [listed[key] for key in ids if key in listed and key not in known]
    return {**known, **ports.agents.statuses(asked)} if asked else known


def _has_served(status: AgentStatus | None) -> bool:
    """True also for an instance that served and drains now: its group does not end what it still waits for."""
    return status is not None and (status.ready or (status.has_served and (status.draining or status.drained)))


def _has_drained(status: AgentStatus | None) -> bool:
    return status is not None and status.drained


def _complete(ports: Ports, group: Group, serving: Sequence[str], drained: Sequence[str]) -> str | None:
    errors = ports.groups.complete_hooks(group.name, serving=serving, drained=drained)
    for keys, code in ((serving, "serving"), (drained, "drained")):
        for key in keys:
            if (failed := errors.get(key)) is None:
                ports.log.info("hook", pool=group.pool, resource=key, outcome="done", reason_code=code)
            else:
                ports.log.error(
                    "hook", pool=group.pool, resource=key, outcome="failed", reason_code=code, error=failed
                )
    return next((errors[key] for key in sorted(errors)), None)
