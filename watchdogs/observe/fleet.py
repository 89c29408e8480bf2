"""Reads the groups, instances and agents of a fleet. A failure affects only what could not be read.

A group or instance that cannot be read stops decisions about itself (`frozen`). If a list that all pools share cannot
be read, the last list is used for `LASTS`, and the pass ends nothing (`incomplete`). A new process finds the last
list in the ledger.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Final, Generic, TypeVar

from gpufleet.domain.activity import ActivityKind
from gpufleet.domain.decisions import Objection, Reason
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.last_lists import CachedAnswer, LastLists
from gpufleet.domain.model import Group, GroupList, Instance
from watchdogs.observe.activities import RecentActivities
from watchdogs.observe.completeness import InstanceReader, Unlisted, unlisted
from watchdogs.ports import Ports

LASTS: Final = timedelta(minutes=5)
"""How long the last answer is used for a list that cannot be read."""
SAVE_EVERY: Final = LASTS / 2
"""How often a process writes its lists to the ledger. The first pass of a process always does."""
_LAUNCHES: Final = frozenset({ActivityKind.LAUNCHED, ActivityKind.IN_PROGRESS})
_T = TypeVar("_T")


@dataclass(slots=True)
class CachedCall(Generic[_T]):
    """The last answer of a call about all pools."""

    answer: CachedAnswer[_T] | None = None

    def ask(
        self, call: Callable[[], _T], now: datetime, noted: Callable[[], CachedAnswer[_T] | None]
    ) -> tuple[_T, str | None]:
        """The answer and None, or the last answer and the error. Raises OSError if the last answer is absent or too
        old.

        `noted`: returns the last answer of another process.
        """
        try:
            self.answer = CachedAnswer(value=call(), at=now)
        except OSError as error:
            last = self.answer or noted()
            if last is None or now - last.at > LASTS:
                raise
            return last.value, str(error)
        return self.answer.value, None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFleet:
    """The result of one observation."""

    groups: Mapping[str, Group]
    listed: Mapping[str, Instance]
    """Instances of all pools, with those that run but that the list of instances lacks."""
    members: Mapping[str, Instance]
    """The running instances of the groups that count as members."""
    statuses: Mapping[str, AgentStatus]
    unreadable: Mapping[str, str] = field(default_factory=dict[str, str])
    """By group that could not be read: the error."""
    unlisted: Unlisted = Unlisted()
    incomplete: str | None = None
    """The error because of which an old list is used for all pools; None: all lists are current."""

    def unseen(self, group: Group) -> int:
        """How many instances a group lists that are not observed alive: ended ones not yet replaced, or very new
        ones.
        """
        known = (self.members, self.unlisted.unknown, group.leaving)
        return sum(not any(key in some for some in known) for key in group.instance_ids)

    def frozen(self) -> dict[str, Objection]:
        """Instances about which nothing is decided, and why."""
        lost = "its group lists it, the list of instances does not: check that it has the tags of its pool"
        found = {
            one.id: Objection(reason=Reason.GROUP_UNREADABLE, detail=self.unreadable[one.group], of=one.group)
            for one in self.members.values()
            if one.group is not None and one.group in self.unreadable
        }
        found |= {key: Objection(reason=Reason.NOT_LISTED, detail=lost) for key in self.unlisted.living}
        return found | {
            key: Objection(reason=Reason.NOT_LISTED, detail=error)
            for key, (_, error) in self.unlisted.unknown.items()
        }


@dataclass(slots=True)
class SharedLists:
    """What this process read last: the lists that all pools share, and the activities of their groups."""

    groups: CachedCall[GroupList] = field(default_factory=CachedCall[GroupList])
    instances: CachedCall[Sequence[Instance]] = field(default_factory=CachedCall[Sequence[Instance]])
    statuses: CachedCall[Mapping[str, AgentStatus]] = field(default_factory=CachedCall[Mapping[str, AgentStatus]])
    happened: RecentActivities = field(default_factory=RecentActivities)
    _noted_at: datetime | None = None

    def note(self, ports: Ports, now: datetime) -> None:
        """Write the lists to the ledger for a process that cannot read them, at most once per `SAVE_EVERY`."""
        if self._noted_at is not None and now - self._noted_at < SAVE_EVERY:
            return
        last = LastLists(groups=self.groups.answer, instances=self.instances.answer, statuses=self.statuses.answer)
        ports.ledger.note_last_lists(last, now)
        self._noted_at = now


@dataclass(slots=True)
class PassObservations:
    """State shared by the observations of one pass: the next one reads only what the pass may have changed."""

    reader: InstanceReader
    lists: SharedLists
    started: datetime
    """When the pass began, in whole seconds as activities are."""
    _groups: GroupList | None = None
    _resized: set[str] = field(default_factory=set[str])
    """Groups resized since they were read."""
    _instances: Sequence[Instance] | None = None

    def resized(self, name: str) -> None:
        """Note that a group is about to be resized."""
        self._resized.add(name)
        self.lists.happened.resized(name)

    def shrunk(self, name: str, size: int) -> None:
        """Note that a group was made smaller to `size`: it need not be read again."""
        known = self._groups
        if known is not None and name in known.groups:
            smaller = replace(known.groups[name], desired=size)
            self._groups = replace(known, groups={**known.groups, name: smaller})
            self._resized.discard(name)
        self.lists.happened.shrunk(name, size)

    def again(self, ports: Ports, names: Sequence[str]) -> Sequence[Group]:
        """Read these groups again. Returns those that could be read."""
        try:
            found = ports.groups.readable(names)
        except OSError:
            return ()  # a caller that waits for an answer calls again
        self._merge(found)
        return list(found.groups.values())

    def groups(self, ports: Ports, names: Sequence[str]) -> GroupList:
        """All groups. Raises OSError."""
        if self._groups is None:
            self._groups = ports.groups.readable(names)
        elif self._resized:
            self._merge(ports.groups.readable(sorted(self._resized)))
        return self._groups

    def _merge(self, found: GroupList) -> None:
        read = found.groups.keys() | found.errors.keys()
        known = self._groups or GroupList(groups={})
        self._resized -= read
        self._groups = GroupList(
            groups={name: group for name, group in known.groups.items() if name not in read} | dict(found.groups),
            errors={name: error for name, error in known.errors.items() if name not in read} | dict(found.errors),
        )

    def instances(self, ports: Ports, groups: Collection[Group], now: datetime) -> Sequence[Instance]:
        """The instances of all pools. Read again when a group lists or launched one that this pass has not read yet.

        Raises OSError, also when the list is incomplete.
        """
        known = {one.id for one in self._instances or ()}
        events = self.lists.happened.events([group.name for group in groups], self.started)
        there = {key for group in groups for key in group.instance_ids}
        there |= {event.instance_id for event in events if event.instance_id and event.kind in _LAUNCHES}
        if self._instances is None or any(key not in known and not self.reader.has_read(key) for key in there):
            found = ports.inventory.listed()
            self.reader.fails(found.errors)
            unlisted(self.reader, groups, {one.id for one in found.instances}, now)
            self._instances = found.instances
        return self._instances


def read(ports: Ports, looks: PassObservations, names: Sequence[str], now: datetime) -> ObservedFleet:
    """Observe the fleet once. Raises OSError when a shared list cannot be read and no recent one is known."""
    lists = looks.lists
    noted = cache(ports.ledger.last_lists)
    groups, old_groups = lists.groups.ask(lambda: looks.groups(ports, names), now, lambda: noted().groups)
    instances, old_instances = lists.instances.ask(
        lambda: looks.instances(ports, groups.groups.values(), now), now, lambda: noted().instances
    )
    listed = {one.id: one for one in instances}
    missing = unlisted(looks.reader, groups.groups.values(), listed, now)
    listed |= missing.living
    members = _members(groups, listed, names, is_old=old_instances is not None)
    statuses, old_statuses = lists.statuses.ask(
        lambda: ports.agents.statuses(list(members.values())), now, lambda: noted().statuses
    )
    return ObservedFleet(
        groups=groups.groups,
        listed=listed,
        members=members,
        statuses=statuses,
        unreadable=groups.errors,
        unlisted=missing,
        incomplete=old_groups or old_instances or old_statuses,
    )


def _members(
    groups: GroupList, instances: Mapping[str, Instance], names: Sequence[str], *, is_old: bool
) -> dict[str, Instance]:
    """The instances that count as members. With an old list, only those that their groups still have."""
    # an instance that its group is ending does not serve or count, though it may run for minutes
    leaving = {key for group in groups.groups.values() for key in group.leaving}
    there = {key for group in groups.groups.values() for key in group.instance_ids}
    return {
        one.id: one
        for one in instances.values()
        if one.alive
        and one.group in names
        and one.id not in leaving
        and not (is_old and one.group in groups.groups and one.id not in there)
    }
