"""What happened to groups, as this process read it: of each group only what came since the last look is read.

A group is asked while there is a question about it: it lacks or loses instances, its size or its members have changed
since it was last asked, or it has not answered a resize of a moment ago. Of a group that nobody has asked yet, what
its zone remembers is read once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from gpufleet.domain.activity import Activity, ActivityKind
from gpufleet.domain.model import Group

OVERLAP: Final = timedelta(hours=1)
"""An activity carries the time at which it began, and may be shown later: a launch ends when a hook does."""
LATE: Final = timedelta(minutes=2)
"""For so long after it was waited for in vain the answer to a resize may still come."""


class Groups(Protocol):
    """Of the port, what is asked here."""

    def activities(self, names: Sequence[str], since: datetime) -> Sequence[Activity]: ...


@dataclass(slots=True)
class _Known:
    group: Group
    """As it was when it was asked, or first seen."""
    at: datetime | None = None
    """When it was asked; None: never."""
    events: Sequence[Activity] = ()


@dataclass(slots=True)
class Happened:
    """The activities of a fleet's groups. It lives as long as its process."""

    _known: dict[str, _Known] = field(default_factory=dict[str, _Known])
    _since: datetime | None = None
    """Of the last look."""
    _silent: dict[str, Activity] = field(default_factory=dict[str, Activity])
    """By group: that it was waited for until then and did not answer."""
    _read_in_pass: set[str] = field(default_factory=set[str])
    _resized_in_pass: set[str] = field(default_factory=set[str])
    """Since they were read."""
    _fresh: set[str] = field(default_factory=set[str])
    """Groups that were asked since the last look: their answers were waited for."""

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
            known.group = replace(known.group, desired=size)

    def silent(self, name: str, now: datetime) -> None:
        """Note that a group has not answered for as long as somebody waited: a refusal, though it may answer yet."""
        self._silent[name] = Activity(
            id=f"unanswered:{name}", group=name, kind=ActivityKind.NO_CAPACITY, at=now, detail="it did not answer"
        )

    def look(
        self, groups: Groups, there: Iterable[Group], needed: Collection[str], since: datetime, now: datetime
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

    def wait(self, groups: Groups, there: Iterable[Group], now: datetime) -> None:
        """Read these now, since somebody waits for their answers. One that cannot be asked has not answered."""
        for group in there:
            try:
                self._read(groups, group, self._since or now, now)
            except OSError:
                continue
            self._fresh.add(group.name)

    def events(self, names: Collection[str], since: datetime) -> list[Activity]:
        """What is known of these since then, oldest first."""
        found = [event for name in names if name in self._known for event in self._known[name].events]
        found += [self._silent[name] for name in names if name in self._silent]
        return sorted((event for event in found if event.at >= since), key=lambda event: (event.at, event.id))

    def _is_asked(self, group: Group, needed: Collection[str], now: datetime) -> bool:
        known = self._known.get(group.name)
        if known is None:
            self._known[group.name] = known = _Known(group=group)
        if known.at is None and group.name in needed:
            return True
        if group.name in self._fresh:
            return False
        if group.name in self._read_in_pass:
            # it is asked again only when it was made larger since then, and has not answered
            return group.name in self._resized_in_pass and _looks(group)
        silent = self._silent.get(group.name)
        may_answer = silent is not None and now - silent.at <= LATE
        return may_answer or _looks(group) or _changed(known.group, group)

    def _read(self, groups: Groups, group: Group, since: datetime, now: datetime) -> None:
        known = self._known.get(group.name)
        start = since if known is None else max(since, _start(known, since))
        found = groups.activities([group.name], start)
        # one that began before `start` may have the time of its end: it is not read again, and stays known
        before = {} if known is None else {event.id: event for event in known.events if event.at >= since}
        events = before | {event.id: event for event in found}
        self._read_in_pass.add(group.name)
        self._resized_in_pass.discard(group.name)
        self._known[group.name] = _Known(group=group, at=now, events=tuple(events.values()))


def _start(known: _Known, since: datetime) -> datetime:
    """From when on something may have come: nothing that went on then was over."""
    if known.at is None:
        return since
    open_since = [event.at for event in known.events if event.kind is ActivityKind.IN_PROGRESS]
    return min([known.at - OVERLAP, *open_since])


def _looks(group: Group) -> bool:
    """Whether it looks for instances, or ends some."""
    return group.desired != len(group.instance_ids)


def _changed(before: Group, now: Group) -> bool:
    return (before.desired, {*before.instance_ids}, before.leaving) != (now.desired, {*now.instance_ids}, now.leaving)


def calm(groups: Mapping[str, Group], names: Collection[str], wanted: int) -> bool:
    """Whether these have all that is wanted, and look for nothing."""
    known = [groups[name] for name in names if name in groups]
    return not any(map(_looks, known)) and sum(group.desired for group in known) >= wanted
