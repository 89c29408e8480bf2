"""Reads all managed instance groups of a project with one list, and their instances with another.

A stable group, or one that only creates instances, needs no separate call: the number of instances that its manager
leaves unchanged must equal the number of listed ones, apart from those in creation. For all other groups, the caller
lists the members separately.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpufleet.clouds.gcp.calls import GoogleCalls
from gpufleet.clouds.gcp.operations import PAGE
from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError

CREATED_BY: Final = "created-by"
"""Metadata key that a managed instance group sets on its instances. The value is the group's path."""
UNBORN: Final = frozenset({"PROVISIONING", "STAGING"})
"""Statuses of an instance in creation."""
_AT_REST: Final = ("none", "verifying")
_MAKES: Final = ("creating", "creating_without_retries")
_MOVES: Final = (
    "abandoning",
    "deleting",
    "recreating",
    "refreshing",
    "restarting",
    "resuming",
    "starting",
    "stopping",
    "suspending",
)
Key = tuple[str, str]
"""Location (`zones/Z` or `regions/R`) and name of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLists:
    """Groups and instances, read at the same time."""

    managers: Mapping[Key, Any]
    made: Mapping[Key, frozenset[str]]
    """Names of the listed instances, by the group that created them."""

    unborn: frozenset[str]
    """Names of the instances that are in creation."""

    def members(self, key: Key, *, grows: bool = False) -> frozenset[str] | None:
        """Members of a group that is stable or only creates instances; None: list its members separately.

        `grows`: the group was just resized, so it may not have started all creations yet.
        """
        raw, made = self.managers[key], self.made.get(key, frozenset())
        actions = raw.current_actions
        if any(getattr(actions, move) for move in _MOVES):
            return None
        makes = sum(getattr(actions, action) for action in _MAKES)
        left_unchanged = unchanged_count(raw)
        # without creations, these statuses mean a restart; abandoned instances are in no count of the manager
        there = made - self.unborn if makes else made
        lacks = int(raw.target_size) - left_unchanged - makes
        return made if (lacks == 0 or (grows and lacks > 0)) and left_unchanged == len(there) else None


def unchanged_count(raw: Any) -> int:
    """Number of instances that a manager leaves unchanged."""
    return sum(getattr(raw.current_actions, action) for action in _AT_REST)


def managers(calls: GoogleCalls, region: str) -> dict[Key, Any]:
    """Current state of all group managers. Raises CloudError if a page or a location of the region fails."""
    found: dict[Key, Any] = {}
    for place, scoped in calls.pages("instance_group_managers", "aggregated_list", max_results=PAGE):
        check(place, scoped, region)
        found |= {(str(place), raw.name): raw for raw in scoped.instance_group_managers}
    return found


def read(calls: GoogleCalls, environment: str, region: str) -> GroupLists:
    """Read both lists. Raises CloudError if a page or a location of the region fails."""
    listed = managers(calls, region)
    made: dict[Key, set[str]] = defaultdict(set)
    unborn: set[str] = set()
    wanted = f"labels.{tags.label(tags.ENVIRONMENT)}={environment}"
    for place, scoped in calls.pages("instances", "aggregated_list", filter=wanted, max_results=PAGE):
        check(place, scoped, region)
        for raw in scoped.instances:
            if (key := group_of(raw)) is not None:
                made[key].add(raw.name)
                if raw.status in UNBORN:
                    unborn.add(raw.name)
    names = {key: frozenset(some) for key, some in made.items()}
    return GroupLists(managers=listed, made=names, unborn=frozenset(unborn))


def group_of(instance: Any) -> Key | None:
    """The group that created an instance, from its metadata; None without this metadata.

    The value has the form `projects/NUMBER/zones/ZONE/instanceGroupManagers/NAME`.
    """
    path = next((str(item.value) for item in instance.metadata.items if item.key == CREATED_BY), "")
    parts = path.split("/")
    return ("/".join(parts[-4:-2]), parts[-1]) if len(parts) >= 4 else None


def check(place: object, scoped: Any, region: str) -> None:
    """Raise CloudError if a location of the region could not be listed. Failures in other regions are ignored."""
    name = str(place).rsplit("/", 1)[-1]
    # no prefix match: europe-west1 is also a prefix of europe-west10
    is_ours = region in (name, name.rpartition("-")[0])
    if is_ours and scoped.warning.code and scoped.warning.code != "NO_RESULTS_ON_PAGE":
        raise CloudError(f"{place} could not be listed: {scoped.warning.message}")
