"""Which instances belong to the groups of a fleet, according to the groups' own lists.

The metadata key `created-by` of an instance also names a group, but the creator of an instance can set any value.
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

MEMBERSHIP_VALID_S: Final = 300.0
"""How long a listed instance counts as a member, at least. An instance that is abandoned meanwhile still counts."""
REFRESHED_AT_ONCE: Final = 2
REFRESHED_WITHIN_S: Final = 30.0
"""At most `REFRESHED_AT_ONCE` groups are listed again within this time.

Groups that were first listed together are otherwise all due at the same time.
"""
MAX_LIST_AGE_S: Final = 3600.0
"""Maximum age of a group's list, regardless of how many groups are due."""
RETRY_AFTER_S: Final = 10.0
"""Minimum time between two requests to a group that does not list an instance, or that does not respond."""

_Member = tuple[str, str, int]
"""Zone, name and numeric id of an instance. A later instance may have the same name."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Last response of a group."""

    at: float
    members: frozenset[_Member] = frozenset()
    error: CloudError | None = None

    def holds(self, member: _Member, now: float) -> bool:
        """Whether the response is recent enough for this instance."""
        return now - self.at < (MEMBERSHIP_VALID_S if member in self.members else RETRY_AFTER_S)


class Members:
    """Members of a fleet's groups. A group is listed when an instance is new, and again every few minutes."""

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
        """When groups were last listed again."""

    def group_and_pool(self, raw: Any, zone: str) -> tuple[str | None, str | None]:
        """Group of an instance, and the fleet's pool that the group belongs to. Raises CloudError.

        Returns (None, None) for an instance without a group, or if the fleet's group does not list the instance.
        """
        if (named := group_of(raw)) is None:
            return None, None
        place, name = named
        if (owned := self._groups.get(name)) is None:
            return name, None
        if place != self._place(owned):
            return f"{place}/{name}", None  # another group with the same name in another location
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
        """Whether to keep using an old response, because enough other groups are listed again at this time."""
        if member not in known.members or now - known.at >= MAX_LIST_AGE_S:
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
    """Parse `…/zones/ZONE/instances/NAME` and the id. An instance that does not exist yet has the id 0."""
    parts = str(raw.instance).split("/")
    return (parts[-3] if len(parts) >= 3 else "", parts[-1], int(raw.id))  # noqa: PLR2004
