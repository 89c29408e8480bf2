"""Which instances are in the groups of a fleet, as the groups themselves list them.

The metadata `created-by` of an instance names a group, too, but who makes an instance writes there what they like.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpufleet.clouds.gcp.calls import GoogleCalls
from gpufleet.clouds.gcp.group_lists import group_of
from gpufleet.domain.activity import CloudError
from gpufleet.domain.ownership import OwnedGroup

BELIEVED_S: Final = 300.0
"""For so long after it was listed an instance is taken for a member, at least: who was abandoned meanwhile still
counts."""
REFRESHED_AT_ONCE: Final = 2
REFRESHED_WITHIN_S: Final = 30.0
"""So many groups are asked anew within this time, since those that were first asked together are due together."""
LONGEST_BELIEVED_S: Final = 3600.0
"""However many groups are due, none goes unasked for longer."""
AGAIN_S: Final = 10.0
"""Between two questions to a group that does not list an instance, or that does not answer."""

_Member = tuple[str, str, int]
"""Zone, name and number: a name alone may be another instance's tomorrow."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a group said when it was asked last."""

    at: float
    members: frozenset[_Member] = frozenset()
    error: CloudError | None = None

    def holds(self, member: _Member, now: float) -> bool:
        """Whether it still answers for an instance."""
        return now - self.at < (BELIEVED_S if member in self.members else AGAIN_S)


class Members:
    """The members of a fleet's groups. A group is asked when an instance is new, and every few minutes."""

    def __init__(
        self,
        calls: GoogleCalls,
        region: str,
        groups: Mapping[str, OwnedGroup],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._region = region
        self._groups = groups
        self._clock = clock
        self._answers: dict[str, _Answer] = {}
        self._refreshed: deque[float] = deque(maxlen=REFRESHED_AT_ONCE)
        """When the last groups were asked anew."""

    def group_and_pool(self, raw: Any, zone: str) -> tuple[str | None, str | None]:
        """The group of an instance, and the fleet's pool that it makes it a member of. Raises CloudError."""
        if (named := group_of(raw)) is None:
            return None, None
        place, name = named
        if (owned := self._groups.get(name)) is None:
            return name, None
        if place != self._place(owned):
            return f"{place}/{name}", None  # another group, which has the name of one of ours elsewhere
        return (name, owned.pool) if self._lists(name, (zone, raw.name, int(raw.id))) else (None, None)

    def _place(self, owned: OwnedGroup) -> str:
        return f"zones/{owned.zone}" if owned.zone else f"regions/{self._region}"

    def _lists(self, group: str, member: _Member) -> bool:
        now = self._clock()
        known = self._answers.get(group)
        if known is None or not (known.holds(member, now) or self._waits(known, member, now)):
            known = self._answers[group] = self._ask(group, now)
        if known.error is not None:
            raise known.error
        return member in known.members

    def _waits(self, known: _Answer, member: _Member, now: float) -> bool:
        """Whether an old answer still counts, since enough others are asked anew at this time."""
        if member not in known.members or now - known.at >= LONGEST_BELIEVED_S:
            return False
        if len(self._refreshed) == REFRESHED_AT_ONCE and now - self._refreshed[0] < REFRESHED_WITHIN_S:
            return True
        self._refreshed.append(now)
        return False

    def _ask(self, group: str, now: float) -> _Answer:
        zone = self._groups[group].zone
        service = "instance_group_managers" if zone else "region_instance_group_managers"
        place = {"zone": zone} if zone else {"region": self._region}
        try:
            listed = self._calls.pages(service, "list_managed_instances", **place, instance_group_manager=group)
            return _Answer(now, frozenset(map(_member, listed)))
        except CloudError as error:
            return _Answer(now, error=error)


def _member(raw: Any) -> _Member:
    """Of `…/zones/ZONE/instances/NAME`; one that does not exist yet has the number 0."""
    parts = str(raw.instance).split("/")
    return (parts[-3] if len(parts) >= 3 else "", parts[-1], int(raw.id))  # noqa: PLR2004
