"""What happened to groups: of each only what came since it was last asked is read. The ledger keeps it, so that a new
process asks no more than the one before would have.

A group is asked while there is a question about it: it lacks or loses instances, its size or its members have changed
since it was last asked, or it has not answered a resize of a moment ago. Of a group that nobody has asked yet, what
its zone remembers is read once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from gpufleet.domain.activity import Activity, ActivityKind, GroupActivities
from gpufleet.domain.model import Group

OVERLAP: Final = timedelta(hours=1)
"""An activity carries the time at which it began, and may be shown later: a launch ends when a hook does."""
LATE: Final = timedelta(minutes=2)
"""For so long after it was waited for in vain the answer to a resize may still come."""


class ActivitySource(Protocol):
    """Of the port, what is asked here."""

    def activities(self, names: Sequence[str], since: datetime) -> Sequence[Activity]: ...


@dataclass(slots=True)
class Happened:
    """The activities of a fleet's groups. It lives as long as its process."""

    _known: dict[str, GroupActivities] = field(default_factory=dict[str, GroupActivities])
    _recalled: bool = False
    _unsaved: dict[str, dict[str, Activity]] = field(default_factory=dict[str, dict[str, Activity]])
    """By group of which the ledger lacks something: the events that it lacks."""
    _since: datetime | None = None
    """Of the last look."""
    _read_in_pass: set[str] = field(default_factory=set[str])
    _resized_in_pass: set[str] = field(default_factory=set[str])
    """Since they were read."""
    _fresh: set[str] = field(default_factory=set[str])
    """Groups that were asked since the last look: their answers were waited for."""

    def recall(self, remembered: Callable[[], Iterable[GroupActivities]]) -> None:
        """Begin with what earlier processes have read. It is asked for once."""
        if not self._recalled:
            self._known = {one.group: one for one in remembered()} | self._known
            self._recalled = True

    def unsaved(self) -> list[GroupActivities]:
        """What later processes are to know, each group with the events that they do not know yet."""
        return [replace(self._known[name], events=tuple(events.values())) for name, events in self._unsaved.items()]

    def saved(self) -> None:
        """Note that the ledger has all that is known."""
        self._unsaved.clear()

    def begin(self) -> None:
        """A pass begins."""
        self._read_in_pass.clear()
        self._resized_in_pass.clear()
        self._fresh.clear()

    def resized(self, name: str) -> None:
        """Note that a group was resized: its answer is to be read."""
        self._resized_in_pass.add(name)
        self._fresh.discard(name)

    def shrunk(self, name: str, size: int) -> None:
        """Note that a group is as small as it was asked to be: there is no question about that."""
        if (known := self._known.get(name)) is not None:
            self._know(replace(known, desired=size))

    def silent(self, name: str, now: datetime) -> None:
        """Note that a group has not answered for as long as somebody waited: a refusal, though it may answer yet."""
        if (known := self._known.get(name)) is not None:
            self._know(replace(known, silent_at=now))

    def look(
        self, groups: ActivitySource, there: Iterable[Group], needed: Collection[str], since: datetime, now: datetime
    ) -> dict[str, str]:
        """Read what is not known yet. Groups that could not be asked, and why.

        `needed`: groups whose past is wanted though nobody has asked them yet. `since`: older events do not count.
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
        """Read these now, since somebody waits for their answers. One that cannot be asked has not answered."""
        for group in there:
            try:
                self._read(groups, group, self._since or now, now)
            except OSError:
                continue
            self._fresh.add(group.name)

    def events(self, names: Collection[str], since: datetime) -> list[Activity]:
        """What is known of these since then, oldest first."""
        known = [self._known[name] for name in names if name in self._known]
        found = [event for one in known for event in (*one.events, *_unanswered(one))]
        return sorted((event for event in found if event.at >= since), key=lambda event: (event.at, event.id))

    def _is_asked(self, group: Group, needed: Collection[str], now: datetime) -> bool:
        known = self._known.get(group.name)
        if known is None:
            self._know(known := _as_it_is(group))
        if known.read_at is None and group.name in needed:
            return True
        if group.name in self._fresh:
            return False
        if group.name in self._read_in_pass:
            # it is asked again only when it was made larger since then, and has not answered
            return group.name in self._resized_in_pass and _looks(group)
        may_answer = known.silent_at is not None and now - known.silent_at <= LATE
        return may_answer or _looks(group) or _changed(known, _as_it_is(group))

    def _read(self, groups: ActivitySource, group: Group, since: datetime, now: datetime) -> None:
        known = self._known.get(group.name, _as_it_is(group))
        found = groups.activities([group.name], max(since, _start(known, since, now)))
        # one that began before `start` may have the time of its end: it is not read again, and stays known
        before = {event.id: event for event in known.events if event.at >= since}
        events = before | {event.id: event for event in found}
        self._read_in_pass.add(group.name)
        self._resized_in_pass.discard(group.name)
        read = replace(_as_it_is(group), read_at=now, silent_at=known.silent_at, events=tuple(events.values()))
        self._know(read, [event for event in found if before.get(event.id) != event])

    def _know(self, one: GroupActivities, news: Iterable[Activity] = ()) -> None:
        self._known[one.group] = one
        self._unsaved.setdefault(one.group, {}).update({event.id: event for event in news})


def _as_it_is(group: Group) -> GroupActivities:
    """A group of whose past nothing is known."""
    return GroupActivities(
        group=group.name, desired=group.desired, members=frozenset(group.instance_ids), leaving=group.leaving
    )


def _unanswered(one: GroupActivities) -> Iterable[Activity]:
    """That it has not answered counts as a refusal."""
    if one.silent_at is not None:
        yield Activity(
            id=f"unanswered:{one.group}",
            group=one.group,
            kind=ActivityKind.NO_CAPACITY,
            at=one.silent_at,
            detail="it did not answer",
        )


def _start(known: GroupActivities, since: datetime, now: datetime) -> datetime:
    """From when on something may have come: nothing that went on then was over."""
    if known.read_at is None or known.read_at > now:  # a clock that was ahead must not skip what came since
        return since
    open_since = [event.at for event in known.events if event.kind is ActivityKind.IN_PROGRESS]
    return min([known.read_at - OVERLAP, *open_since])


def _looks(group: Group) -> bool:
    """Whether it looks for instances, or ends some."""
    return group.desired != len(group.instance_ids)


def _changed(before: GroupActivities, now: GroupActivities) -> bool:
    return (before.desired, before.members, before.leaving) != (now.desired, now.members, now.leaving)


def calm(groups: Mapping[str, Group], names: Collection[str], wanted: int) -> bool:
    """Whether these have all that is wanted, and look for nothing."""
    known = [groups[name] for name in names if name in groups]
    return not any(map(_looks, known)) and sum(group.desired for group in known) >= wanted
