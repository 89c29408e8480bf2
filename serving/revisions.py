"""Rolls a revision out to a pool: one ready instance at a time, never below the floor; stops at the first failure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

from gpufleet.domain import floors
from gpufleet.domain.durations import approximate
from gpufleet.domain.model import Instance

POLL_S: Final = 2.0


class RevisionAgents(Protocol):
    """The calls to node agents that a rollout needs."""

    def statuses(self, instances: Sequence[Instance]) -> Mapping[str, Mapping[str, Any]]:
        """Return the status of each instance that responds, by instance ID."""
        ...

    def switch(self, instance: Instance, digest: str) -> object:
        """Ask one instance to serve a revision. Raises the exceptions of the cloud's package."""
        ...


class RolloutError(RuntimeError):
    """The rollout stopped; the message says where, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRollout:
    """The rollout settings of one pool."""

    pool: str
    floor: int
    """Minimum number of ready replicas while one instance changes."""
    limit: timedelta
    """Time limit for one instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """The next action in a pool. Without `change` and `done`: wait."""

    change: str | None = None
    """ID of the next ready instance that serves another revision."""
    done: bool = False
    """All instances serve the revision, or are draining."""


def next_step(
    rollout: PoolRollout, digest: str, known: Collection[str], statuses: Mapping[str, Mapping[str, Any]]
) -> RolloutStep:
    """Return the next step of a rollout. `known`: all instances of the pool; `statuses`: of those that respond."""
    old = _outdated(statuses, digest)
    if not old and len(statuses) == len(known) and all(_is_done(status, digest) for status in statuses.values()):
        return RolloutStep(done=True)
    ready = sum(1 for status in statuses.values() if status.get("ready"))
    # an earlier rollout that was killed can leave an instance that still changes: wait for it
    changing = any(status.get("switching_to") for status in statuses.values())
    if old and not changing and floors.objection(rollout.pool, rollout.floor, ready) is None:
        return RolloutStep(change=old[0])
    return RolloutStep()


def _outdated(statuses: Mapping[str, Mapping[str, Any]], digest: str) -> list[str]:
    """Return the IDs of ready instances that serve another revision, sorted."""
    return sorted(
        name for name, status in statuses.items() if status.get("ready") and status.get("model_digest") != digest
    )


def rolled_back(digest: str, statuses: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the first instance that tried the revision and rolled back, with the error; None if none did."""
    for name, status in sorted(statuses.items()):
        error = str(status.get("switch_error") or "")
        if error.startswith(digest[:12]) and status.get("model_digest") != digest and not status.get("switching_to"):
            return f"{name}: rolled back: {error}"
    return None


@dataclass(slots=True, kw_only=True)
class RevisionRollout:
    """Rolls a revision out to one pool. It calls `instances` before every step, because pools change meanwhile.

    It stores no state: after a killed rollout, the next one continues from the statuses of the instances.
    """

    rollout: PoolRollout
    instances: Callable[[], Sequence[Instance]]
    agents: RevisionAgents
    announce: Callable[[str], None]
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def run(self, digest: str) -> int:
        """Run the rollout; return the number of changed instances. Raises RolloutError."""
        changed = 0
        while (following := self._next(digest)) is not None:
            self.announce(f"{self.rollout.pool} {following.id}: drains and switches to {digest[:12]}")
            self.agents.switch(following, digest)
            self._wait(following, digest)
            changed += 1
        return changed

    def _next(self, digest: str) -> Instance | None:
        """Return the next ready instance to change; None when all serve the revision. Waits for booting instances."""
        until = self.clock() + self.rollout.limit.total_seconds()
        while True:
            known = {instance.id: instance for instance in self.instances()}
            statuses = self.agents.statuses(list(known.values()))
            step = next_step(self.rollout, digest, known, statuses)
            if step.done:
                return None
            if step.change is not None:
                return known[step.change]
            if self.clock() >= until:
                raise RolloutError(self._stuck(known, statuses, digest))
            self.sleep(POLL_S)

    def _stuck(self, known: Mapping[str, Instance], statuses: Mapping[str, Mapping[str, Any]], digest: str) -> str:
        pool = self.rollout.pool
        ready = sum(1 for status in statuses.values() if status.get("ready"))
        old = _outdated(statuses, digest)
        changing = sorted(name for name, status in statuses.items() if status.get("switching_to"))
        if changing:
            names = ", ".join(changing)
            limit = approximate(self.rollout.limit)
            return f"{pool}: {names} is switching its revision and did not finish within {limit}"
        if old and (objection := floors.objection(pool, self.rollout.floor, ready)) is not None:
            return f"{pool}: {objection}"
        silent = sorted(known.keys() - statuses.keys())
        waiting = [
            f"{name} is {status.get('phase')}" for name, status in sorted(statuses.items()) if not status.get("ready")
        ]
        return f"{pool}: timed out waiting for {', '.join([*waiting, *(f'{name} (no answer)' for name in silent)])}"

    def _wait(self, instance: Instance, digest: str) -> None:
        until = self.clock() + self.rollout.limit.total_seconds()
        while self.clock() < until:
            self.sleep(POLL_S)
            status = self.agents.statuses([instance]).get(instance.id)
            if status is None or status.get("switching_to"):
                continue
            if _is_done(status, digest) or status.get("draining"):
                # an instance that is preempted meanwhile gets a successor, which boots with the new revision
                return
            if status.get("switch_error") or status.get("phase") == "failed":
                error = status.get("switch_error") or status.get("error")
                raise RolloutError(
                    f"{self.rollout.pool} {instance.id}: rolled back: {error}; the others keep their revision: "
                    "run `gpufleet model rollback` to restore it in the bucket"
                )
        raise RolloutError(
            f"{self.rollout.pool} {instance.id}: did not serve {digest[:12]} within {approximate(self.rollout.limit)}"
        )


def _is_done(status: Mapping[str, Any], digest: str) -> bool:
    """Whether the instance is ready with this revision, or draining."""
    return bool(status.get("ready") and status.get("model_digest") == digest) or bool(status.get("draining"))
