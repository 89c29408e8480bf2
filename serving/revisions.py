"""A revision's way through a pool: one ready instance after the other, above the floor, stopped by a failure."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

from gpufleet.domain import floors
from gpufleet.domain.model import Instance

POLL_S: Final = 2.0


class RevisionAgents(Protocol):
    """The node agents, as far as this needs them."""

    def statuses(self, instances: Sequence[Instance]) -> Mapping[str, Mapping[str, Any]]:
        """Of those that answer."""
        ...

    def switch(self, instance: Instance, digest: str) -> object:
        """Ask one to serve a revision. Raises what the cloud's room raises."""
        ...


class RolloutError(RuntimeError):
    """The rollout stopped; says where and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRollout:
    """One pool, and how careful to be."""

    pool: str
    floor: int
    """Ready replicas that must stay while one changes."""
    limit: timedelta
    """For one instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """What is to be done in a pool now; nothing of both: wait."""

    change: str | None = None
    """The next ready instance of another revision."""
    done: bool = False
    """All serve it, or are on their way out."""


def next_step(
    rollout: PoolRollout, digest: str, known: Collection[str], statuses: Mapping[str, Mapping[str, Any]]
) -> RolloutStep:
    """The next step towards a revision. `known`: all instances of the pool; `statuses`: of those that answer."""
    old = _outdated(statuses, digest)
    if not old and len(statuses) == len(known) and all(_is_done(status, digest) for status in statuses.values()):
        return RolloutStep(done=True)
    ready = sum(1 for status in statuses.values() if status.get("ready"))
    # whoever began before left an instance that still changes: it is the one of this moment
    changing = any(status.get("switching_to") for status in statuses.values())
    if old and not changing and floors.objection(rollout.pool, rollout.floor, ready) is None:
        return RolloutStep(change=old[0])
    return RolloutStep()


def _outdated(statuses: Mapping[str, Mapping[str, Any]], digest: str) -> list[str]:
    """Who is ready with another revision, by name."""
    return sorted(
        name for name, status in statuses.items() if status.get("ready") and status.get("model_digest") != digest
    )


def rolled_back(digest: str, statuses: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The first instance that tried a revision and went back, and why; None: there is none."""
    for name, status in sorted(statuses.items()):
        error = str(status.get("switch_error") or "")
        if error.startswith(digest[:12]) and status.get("model_digest") != digest and not status.get("switching_to"):
            return f"{name}: went back: {error}"
    return None


@dataclass(slots=True, kw_only=True)
class Walk:
    """Walks one pool. `instances` is asked again before every step: pools change while they are walked.

    It keeps nothing: a walk that was killed goes on with the next one, from what the instances say of themselves.
    """

    rollout: PoolRollout
    instances: Callable[[], Sequence[Instance]]
    agents: RevisionAgents
    say: Callable[[str], None]
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def run(self, digest: str) -> int:
        """How many instances were changed. Raises RolloutError."""
        changed = 0
        while (following := self._next(digest)) is not None:
            self.say(f"{self.rollout.pool} {following.id}: drains and changes to {digest[:12]}")
            self.agents.switch(following, digest)
            self._wait(following, digest)
            changed += 1
        return changed

    def _next(self, digest: str) -> Instance | None:
        """The next ready instance of another revision; None when all serve this one. Waits for those that boot."""
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
            return f"{pool}: {names} changes its revision already and did not end within {self.rollout.limit}"
        if old and (objection := floors.objection(pool, self.rollout.floor, ready)) is not None:
            return f"{pool}: {objection}"
        silent = sorted(known.keys() - statuses.keys())
        waiting = [
            f"{name} is {status.get('phase')}" for name, status in sorted(statuses.items()) if not status.get("ready")
        ]
        return f"{pool}: waited too long for {', '.join([*waiting, *(f'{name} (no answer)' for name in silent)])}"

    def _wait(self, instance: Instance, digest: str) -> None:
        until = self.clock() + self.rollout.limit.total_seconds()
        while self.clock() < until:
            self.sleep(POLL_S)
            status = self.agents.statuses([instance]).get(instance.id)
            if status is None or status.get("switching_to"):
                continue
            if _is_done(status, digest) or status.get("draining"):
                # one that was preempted meanwhile is replaced by one that boots with the new revision
                return
            if status.get("switch_error") or status.get("phase") == "failed":
                words = status.get("switch_error") or status.get("error")
                raise RolloutError(
                    f"{self.rollout.pool} {instance.id}: went back: {words}; the others keep what they serve: "
                    "`gpufleet model rollback` makes the bucket say so, too"
                )
        raise RolloutError(
            f"{self.rollout.pool} {instance.id}: did not serve {digest[:12]} within {self.rollout.limit}"
        )


def _is_done(status: Mapping[str, Any], digest: str) -> bool:
    """Ready with this revision, or on its way out."""
    return bool(status.get("ready") and status.get("model_digest") == digest) or bool(status.get("draining"))
