"""`gpufleet rollout`: replaces the instances of a pool that run an older template, one at a time."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from app.errors import AppError
from app.wiring import agents_of, inventory_of
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.rollouts import AwsRollouts
from gpufleet.clouds.versions import GroupVersion
from gpufleet.domain import floors
from gpufleet.domain.activity import CloudError
from gpufleet.domain.durations import approximate
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.settings.document import FleetDocument, GroupEntry, Pool

POLL_S: Final = 2.0
Announce = Callable[[str], None]
"""Receives a line of progress."""


@contextmanager
def _cloud_errors(pool: Pool) -> Generator[None]:
    try:
        yield
    except CloudError as error:
        raise AppError(f"rollout of {pool.name}: {error}") from error


def versions_of(document: FleetDocument, pool: Pool, announce: Announce) -> dict[str, GroupVersion]:
    """The templates of a pool's groups, and the instances of each. Raises AppError."""
    with _cloud_errors(pool):
        return {group.name: _version(document, pool, group.name, announce) for group in pool.groups}


def _version(document: FleetDocument, pool: Pool, group: str, announce: Announce) -> GroupVersion:
    match document.cloud:
        case Cloud.AWS:
            return AwsRollouts(AwsCalls(document.region)).version(group)
        case Cloud.GCP:
            from app.rollout_google import rollouts_of

            return rollouts_of(document, pool, announce).version(group)


def cancel(document: FleetDocument, pool: Pool) -> None:
    """Stop the running rollout. Raises AppError."""
    with _cloud_errors(pool):
        match document.cloud:
            case Cloud.AWS:
                rollouts = AwsRollouts(AwsCalls(document.region))
                for group in pool.groups:
                    rollouts.cancel(group.name)
            case Cloud.GCP:
                from app.rollout_google import release

                # it runs in the process that started it, and ends with that process
                release(document, pool)


def roll(
    document: FleetDocument, pool: Pool, groups: Sequence[GroupEntry], limit: timedelta, announce: Announce
) -> None:
    """Replace the outdated instances of some groups. `limit`: longest time for one group. Raises AppError."""
    with _cloud_errors(pool):
        match document.cloud:
            case Cloud.AWS:
                rollouts = AwsRollouts(AwsCalls(document.region))
                for group in groups:
                    _start(rollouts, document, pool, group, announce)
                    _wait(rollouts, pool.name, group.name, limit, announce)
            case Cloud.GCP:
                from app.rollout_google import paused, rollouts_of

                with paused(document, pool, limit * len(groups)):
                    for group in groups:
                        rollouts_of(document, pool, announce).roll(group, limit)


def _start(rollouts: AwsRollouts, document: FleetDocument, pool: Pool, group: GroupEntry, announce: Announce) -> None:
    """Start the refresh of a group, unless one is running."""
    launch_first = group.type is not CapacityType.RESERVED
    state = rollouts.state(group.name)
    if state is None or state.is_over:
        if not launch_first:
            _check_floor(document, pool, group)
        rollouts.start(group.name, launch_first=launch_first)
        announce(f"{group.name}: replacing {'before' if launch_first else 'after'} draining")


def _wait(rollouts: AwsRollouts, pool: str, group: str, limit: timedelta, announce: Announce) -> None:
    """Wait until a group's refresh has succeeded. Raises AppError."""
    until, shown = time.monotonic() + limit.total_seconds(), -1
    while True:
        state = rollouts.state(group)
        if state is None:
            raise AppError(f"{group}: the refresh that was started no longer exists")
        if state.percent != shown:
            announce(f"{group}: {state.percent} %")
            shown = state.percent
        if state.succeeded:
            return
        if state.is_over:
            raise AppError(f"{group}: the refresh ended as {state.status}: {state.reason or 'no reason given'}")
        if time.monotonic() > until:
            raise AppError(
                f"{group}: not done after {approximate(limit)}; the cloud continues it: run this again to wait"
                f" for it, or stop it with `gpufleet rollout {pool} --cancel`"
            )
        time.sleep(POLL_S)


def _check_floor(document: FleetDocument, pool: Pool, group: GroupEntry) -> None:
    """Raises AppError if the others do not meet the pool's floor while the old instance is terminated first."""
    instances = [i for i in inventory_of(document).instances() if i.pool == pool.name and i.alive]
    statuses = agents_of(document).statuses(instances)
    ready = sum(1 for status in statuses.values() if status.get("ready"))
    if (objection := floors.objection(pool.name, pool.min, ready)) is not None:
        raise AppError(f"{group.name}: {objection}")
