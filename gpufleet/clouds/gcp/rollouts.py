"""Rolls out a changed template to the instances of a group. Google's updater cannot drain instances.

The update policy of groups is OPPORTUNISTIC, so only new instances have the new template. A rollout replaces one
instance at a time. If the group may grow, a replacement serves first. Then the old instance is drained and deleted
through its group, which lowers the size. The rollout stores no state, so an interrupted one can be repeated.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol

from gpufleet.clouds.gcp.groups import GoogleGroups
from gpufleet.clouds.gcp.inventory import GoogleInventory
from gpufleet.clouds.versions import GroupVersion
from gpufleet.domain import floors
from gpufleet.domain.activity import CloudError
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import CapacityType, Instance
from gpufleet.settings.document import GroupEntry, Pool

POLL_S: Final = 2.0
REASON: Final = "a newer template is rolled out"
_GOING: Final = frozenset({"ABANDONING", "DELETING"})


class RolloutAgents(Protocol):
    """Client of the node agents."""

    def statuses(self, instances: Sequence[Instance]) -> Mapping[str, Mapping[str, Any]]:
        """Status by instance id. Instances that do not respond are absent."""
        ...

    def drain(self, instance: Instance, by: DrainOwner, reason: str, deadline_seconds: int) -> object:
        """Ask an agent to drain. Idempotent. Raises CloudError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleRollouts:
    """Rollouts in the groups of one pool. All methods raise CloudError."""

    groups: GoogleGroups
    inventory: GoogleInventory
    agents: RolloutAgents
    pool: Pool
    announce: Callable[[str], None]
    now: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)

    def version(self, group: str) -> GroupVersion:
        """Template of a group and of its instances."""
        wanted, members = self.groups.templates(group)
        living = {m.instance: m.template for m in members if m.action not in _GOING}
        return GroupVersion(
            group=group,
            wanted=wanted,
            outdated=tuple(sorted(i for i, template in living.items() if template != wanted)),
            current=tuple(sorted(i for i, template in living.items() if template == wanted)),
        )

    def roll(self, entry: GroupEntry, limit: timedelta) -> None:
        """Replace the outdated instances of a group. Raises CloudError after `limit`; the others then stay."""
        until = self.now() + limit.total_seconds()
        while outdated := self.version(entry.name).outdated:
            self.announce(f"{entry.name}: {len(outdated)} instances to replace, next {outdated[0]}")
            self._replace(entry, outdated[0], until)

    def _replace(self, entry: GroupEntry, old: str, until: float) -> None:
        current = self.version(entry.name).current
        before = self._serving(current)
        group = self.groups.groups([entry.name])[0]
        # a reservation has no capacity for an additional instance
        first = entry.type is not CapacityType.RESERVED and group.desired < entry.max
        if len(before) < len(current):
            # an interrupted run already requested a replacement; do not request one more each time
            self._await_replacement(entry, before, until)
        elif first:
            self.groups.resize(group, group.desired + 1)
            self._await_replacement(entry, before, until)
        if not first:
            self._check_floor(entry)
        self._drain(old, until)
        self.groups.end(old, entry.name, lower_desired=True)
        self._wait(until, f"{old} to leave {entry.name}", lambda: old not in self.version(entry.name).outdated)
        if not first:
            group = self.groups.groups([entry.name])[0]
            self.groups.resize(group, group.desired + 1)
            self._await_replacement(entry, before, until)

    def _await_replacement(self, entry: GroupEntry, before: Collection[str], until: float) -> None:
        def serves() -> bool:
            return bool(self._serving([i for i in self.version(entry.name).current if i not in before]))

        silent = sorted(set(self.version(entry.name).current) - set(before))
        hint = f" ({', '.join(silent)} does not serve yet: delete what never will)" if silent else ""
        self._wait(until, f"a replacement in {entry.name} to serve{hint}", serves)

    def _serving(self, names: Collection[str]) -> list[str]:
        return self._ready([found for name in names if (found := self.inventory.instance(name))])

    def _check_floor(self, entry: GroupEntry) -> None:
        """Raise CloudError if the other ready instances would not satisfy the pool's minimum."""
        mine = [i for i in self.inventory.instances() if i.pool == self.pool.name and i.alive]
        if (objection := floors.objection(self.pool.name, self.pool.min, len(self._ready(mine)))) is not None:
            raise CloudError(f"{entry.name}: {objection}")

    def _ready(self, instances: list[Instance]) -> list[str]:
        return [i for i, status in self.agents.statuses(instances).items() if status.get("ready")]

    def _drain(self, old: str, until: float) -> None:
        instance = self.inventory.instance(old)
        if instance is None or not self._status(instance):
            return  # the agent does not respond, so the instance serves no requests
        deadline = int(self.pool.drain_deadline.total_seconds())
        self.agents.drain(instance, DrainOwner.ROLLOUT, REASON, deadline)

        def drained() -> bool:
            status = self._status(instance)
            return not status or bool(status.get("drained"))

        # the agent ends open requests at its deadline; the extra 15 s limit the wait for a dead agent
        self._wait(min(until, self.now() + deadline + 15), f"{old} to drain", drained, fails=False)

    def _status(self, instance: Instance) -> Mapping[str, Any]:
        return self.agents.statuses([instance]).get(instance.id, {})

    def _wait(self, until: float, what: str, done: Callable[[], bool], *, fails: bool = True) -> None:
        while not done():
            if self.now() > until:
                if not fails:
                    return
                raise CloudError(
                    f"waited too long for {what}; completed steps are kept: run this again to continue"
                    f" (`gpufleet rollout {self.pool.name} --apply`)"
                )
            self.sleep(POLL_S)
