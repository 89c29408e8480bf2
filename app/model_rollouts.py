"""Rolls out a model's new revision in a fleet, or waits until the control host has rolled it out."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from app.errors import AppError
from gpufleet.domain.activity import CloudError
from gpufleet.domain.durations import approximate
from gpufleet.settings.document import FleetDocument, Pool
from serving.revisions import PoolRollout, RevisionRollout, RolloutError, next_step, rolled_back

POLL_S: Final = 5.0


def change_pools(
    model: str, digest: str, document: FleetDocument, limit: timedelta, announce: Callable[[str], None]
) -> dict[str, int]:
    """Change every pool of the model, one instance at a time. Returns the number of changed instances by pool.

    `limit`: longest time for one instance. Raises AppError where the rollout stops.
    """
    # imported late: the cloud clients take a second to import
    from app.wiring import agents_of, inventory_of

    inventory, agents = inventory_of(document), agents_of(document, announce)
    changed: dict[str, int] = {}
    for pool in _pools(model, document, announce):
        change = RevisionRollout(
            rollout=PoolRollout(pool=pool.name, floor=pool.min, limit=limit),
            instances=lambda pool=pool: [one for one in inventory.instances() if one.pool == pool.name and one.alive],
            agents=agents,
            announce=announce,
            clock=time.monotonic,
            sleep=time.sleep,
        )
        try:
            changed[pool.name] = change.run(digest)
        except (RolloutError, CloudError) as error:
            raise AppError(str(error)) from error
        announce(f"{pool.name}: instances changed: {changed[pool.name]}")
    return changed


def wait(
    model: str, digest: str, document: FleetDocument, limit: timedelta, announce: Callable[[str], None]
) -> dict[str, int]:
    """Wait until the control host has changed every pool of the model. Returns the number of changed instances by
    pool.

    `limit`: longest time without another instance that serves it. Raises AppError where the rollout stops.
    """
    from app.wiring import agents_of, inventory_of

    inventory, agents = inventory_of(document), agents_of(document, announce)

    def statuses(pool: Pool) -> tuple[list[str], Mapping[str, Mapping[str, Any]]]:
        members = [one for one in inventory.instances() if one.pool == pool.name and one.alive]
        return [one.id for one in members], agents.statuses(members)

    changed: dict[str, int] = {}
    for pool in _pools(model, document, announce):
        waiting = Waiting(pool=pool, digest=digest, limit=limit, statuses=statuses, announce=announce)
        try:
            changed[pool.name] = waiting.run()
        except CloudError as error:
            raise AppError(str(error)) from error
        announce(f"{pool.name}: instances changed: {changed[pool.name]}")
    return changed


@dataclass(slots=True, kw_only=True)
class Waiting:
    """Waits for the rollout of one pool, and sends no orders."""

    pool: Pool
    digest: str
    limit: timedelta
    statuses: Callable[[Pool], tuple[list[str], Mapping[str, Mapping[str, Any]]]]
    """All instance ids of a pool, and the status of each instance whose agent answers."""
    announce: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _serving: set[str] = field(default_factory=set[str], init=False)

    def run(self) -> int:
        """Wait. Returns the number of instances that changed meanwhile. Raises AppError."""
        rollout = PoolRollout(pool=self.pool.name, floor=self.pool.min, limit=self.limit)
        before: set[str] | None = None
        until = self.clock() + self.limit.total_seconds()
        while True:
            known, found = self.statuses(self.pool)
            serving = {name for name, status in found.items() if status.get("model_digest") == self.digest}
            if before is None:
                before = serving
            if fresh := serving - self._serving - before:
                self.announce(f"{self.pool.name}: {', '.join(sorted(fresh))} serves {self.digest[:12]}")
                until = self.clock() + self.limit.total_seconds()
            self._serving |= serving
            if (failed := rolled_back(self.digest, found)) is not None:
                raise AppError(
                    f"{self.pool.name} {failed}; the others keep their revision: "
                    "run `gpufleet model rollback` to restore it in the bucket"
                )
            if next_step(rollout, self.digest, known, found).done:
                return len(self._serving - before)
            if self.clock() >= until:
                raise AppError(self._stuck())
            self.sleep(POLL_S)

    def _stuck(self) -> str:
        return (
            f"{self.pool.name}: no other instance served {self.digest[:12]} within {approximate(self.limit)}. On the "
            "control host, check that `gpufleet watch run --apply` runs (cron: `gpufleet watch revisions --apply`), "
            "its log (revisions), pauses (`gpufleet status`) "
            f"and the floor ({self.pool.min}). The rollout continues; run the same command to wait again"
        )


def _pools(model: str, document: FleetDocument, announce: Callable[[str], None]) -> list[Pool]:
    path = f"models/{model}"
    pools = [pool for pool in document.pools if pool.model == path]
    adapters = [(pool.name, name) for pool in document.pools for name in pool.adapters if pool.adapters[name] == path]
    for pool, name in adapters:
        announce(f"{pool}: instances load adapter {name} when they start; replace running ones to change them")
    if not pools and not adapters:
        announce(f"{document.environment}: no pool serves {path}, so nothing changes there")
    return pools
