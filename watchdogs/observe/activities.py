"""Activities of groups, read incrementally. The ledger keeps them, so that a new process reads no more than the
previous one would have.

A group is read only when its activities matter: it lacks or loses instances, its size or members changed since the
last read, or it has not answered a recent resize. A group that was never read is read once for the history of its
zone.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from gpufleet.domain.activity import Activity, ActivityKind, GroupActivities
from gpufleet.domain.model import Group

OVERLAP: Final = timedelta(hours=1)
"""An activity has the time of its start and may be reported later: a launch ends when its hook ends."""
LATE: Final = timedelta(minutes=2)
"""A group may answer a resize this long after the pass stopped waiting for it."""


class ActivitySource(Protocol):
    """The part of the port `Groups` that is used here."""

    def activities(self, names: Sequence[str], since: datetime) -> Sequence[Activity]: ...


@dataclass(slots=True)
class RecentActivities:
    """The activities of the groups of a fleet, kept for the lifetime of the process."""

    _known: dict[str, GroupActivities] = field(default_factory=dict[str, GroupActivities])
    _recalled: bool = False
    _unsaved: dict[str, dict[str, Activity]] = field(default_factory=dict[str, dict[str, Activity]])
    """By group: the events that the ledger does not have yet."""
    _since: datetime | None = None
    """Oldest event of interest at the last observation."""
    _read_in_pass: set[str] = field(default_factory=set[str])
    _resized_in_pass: set[str] = field(default_factory=set[str])
    """Groups resized since their last read."""
    _fresh: set[str] = field(default_factory=set[str])
    """Groups read since the last observation, while the pass waited for their answers."""

    def recall(self, remembered: Callable[[], Iterable[GroupActivities]]) -> None:
        """Load what earlier processes have read. Only the first call reads it."""
        if not self._recalled:
            self._known = {one.group: one for one in remembered()} | self._known
            self._recalled = True

    def unsaved(self) -> list[GroupActivities]:
        """The groups with the events that the ledger does not have yet."""
        return [replace(self._known[name], events=tuple(events.values())) for name, events in self._unsaved.items()]

    def saved(self) -> None:
        """Note that the ledger has all events."""
        self._unsaved.clear()

    def begin(self) -> None:
        """Begin a pass."""
        self._read_in_pass.clear()
        self._resized_in_pass.clear()
        self._fresh.clear()

    def resized(self, name: str) -> None:
        """Note that a group was resized: its answer must be read."""
        self._resized_in_pass.add(name)
        self._fresh.discard(name)

    def shrunk(self, name: str, size: int) -> None:
        """Note that a group was made smaller to `size`: its activities need not be read for that."""
        if (known := self._known.get(name)) is not None:
            self._know(replace(known, desired=size))

    def silent(self, name: str, now: datetime) -> None:
        """Note that a group has not answered in time. It counts as a refusal, although an answer may still arrive."""
        if (known := self._known.get(name)) is not None:
            self._know(replace(known, silent_at=now))

    def read_new(
        self, groups: ActivitySource, there: Iterable[Group], needed: Collection[str], since: datetime, now: datetime
    ) -> dict[str, str]:
        """Read new activities. Returns the error by group that could not be read.

        `needed`: groups whose history is needed even if they were never read. `since`: older events are ignored.
        """
        errors: dict[str, str] = {}
        self._since = since
        for group in there:
            if not self._is_asked(group, needed, now):
                continue
            try:
                self._read(groups, group, since, now)
            except OSError as error:
                errors[group.name] = str(error)
        self._fresh.clear()
        return errors

    def wait(self, groups: ActivitySource, there: Iterable[Group], now: datetime) -> None:
        """Read these groups now because the pass waits for their answers. A failed read counts as no answer yet."""
        for group in there:
            try:
                self._read(groups, group, self._since or now, now)
            except OSError:
                continue
            self._fresh.add(group.name)

    def events(self, names: Collection[str], since: datetime) -> list[Activity]:
        """The known activities of these groups since then, oldest first."""
        known = [self._known[name] for name in names if name in self._known]
        found = [event for one in known for event in (*one.events, *_unanswered(one))]
        return sorted((event for event in found if event.at >= since), key=lambda event: (event.at, event.id))

    def _is_asked(self, group: Group, needed: Collection[str], now: datetime) -> bool:
        known = self._known.get(group.name)
        if known is None:
            self._know(known := _without_events(group))
        if known.read_at is None and group.name in needed:
            return True
        if group.name in self._fresh:
            return False
        if group.name in self._read_in_pass:
            # it is read again only if it was resized since then and has not answered
            return group.name in self._resized_in_pass and _is_changing(group)
        may_answer = known.silent_at is not None and now - known.silent_at <= LATE
        return may_answer or _is_changing(group) or _changed(known, _without_events(group))

    def _read(self, groups: ActivitySource, group: Group, since: datetime, now: datetime) -> None:
        known = self._known.get(group.name, _without_events(group))
        found = groups.activities([group.name], max(since, _start(known, since, now)))
        # an event that began before `start` may be dated by its end: it is not read again, so it is kept
        before = {event.id: event for event in known.events if event.at >= since}
        events = before | {event.id: event for event in found}
        self._read_in_pass.add(group.name)
        self._resized_in_pass.discard(group.name)
        read = replace(_without_events(group), read_at=now, silent_at=known.silent_at, events=tuple(events.values()))
        self._know(read, [event for event in found if before.get(event.id) != event])

    def _know(self, one: GroupActivities, new_events: Iterable[Activity] = ()) -> None:
        self._known[one.group] = one
        self._unsaved.setdefault(one.group, {}).update({event.id: event for event in new_events})


def _without_events(group: Group) -> GroupActivities:
    """A group without known activities."""
    return GroupActivities(
        group=group.name, desired=group.desired, members=frozenset(group.instance_ids), leaving=group.leaving
    )


def _unanswered(one: GroupActivities) -> Iterable[Activity]:
    """A missing answer as a refusal."""
    if one.silent_at is not None:
        yield Activity(
            id=f"unanswered:{one.group}",
            group=one.group,
            kind=ActivityKind.NO_CAPACITY,
            at=one.silent_at,
            detail="it did not answer",
        )


def _start(known: GroupActivities, since: datetime, now: datetime) -> datetime:
    """Time from which new events may exist: the last read, or the oldest event that was in progress then."""
    if known.read_at is None or known.read_at > now:  # a clock that was ahead must not skip events
        return since
    open_since = [event.at for event in known.events if event.kind is ActivityKind.IN_PROGRESS]
    return min([known.read_at - OVERLAP, *open_since])


def _is_changing(group: Group) -> bool:
    """Whether the group is launching or ending instances."""
    return group.desired != len(group.instance_ids)


def _changed(before: GroupActivities, now: GroupActivities) -> bool:
    return (before.desired, before.members, before.leaving) != (now.desired, now.members, now.leaving)


def is_stable(groups: Mapping[str, Group], names: Collection[str], wanted: int) -> bool:
    """Whether these groups have all wanted instances and are neither launching nor ending any."""
    known = [groups[name] for name in names if name in groups]
    return not any(map(_is_changing, known)) and sum(group.desired for group in known) >= wanted
