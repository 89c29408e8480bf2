"""All managed instance groups of a project, and the instances that they made, by one list each.

A group that is at rest, or only makes instances, needs no call of its own: its manager states how many it leaves
alone, and as many are listed, beside those that are being made. Any other is asked for its members.
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
"""Metadata that a managed instance group writes on its instances: the group's path."""
UNBORN: Final = frozenset({"PROVISIONING", "STAGING"})
"""What Compute Engine says of an instance that is being made."""
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
"""`zones/Z` or `regions/R`, and the group's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLists:
    """What was read at one time."""

    managers: Mapping[Key, Any]
    made: Mapping[Key, frozenset[str]]
    """Names of the listed instances that each group made."""

    unborn: frozenset[str]
    """Names of those of them that are being made."""

    def members(self, key: Key, *, grows: bool = False) -> frozenset[str] | None:
        """The instances of a group that does nothing but make some; None: the group itself must be asked.

        `grows`: it was resized just now, so that it may have begun less than it is to make.
        """
        raw, made = self.managers[key], self.made.get(key, frozenset())
        actions = raw.current_actions
        if any(getattr(actions, move) for move in _MOVES):
            return None
        makes = sum(getattr(actions, action) for action in _MAKES)
        rest = resting(raw)
        # one of them that restarts is not being made, and what was abandoned is in no count
        there = made - self.unborn if makes else made
        lacks = int(raw.target_size) - rest - makes
        return made if (lacks == 0 or (grows and lacks > 0)) and rest == len(there) else None


def resting(raw: Any) -> int:
    """How many instances a manager leaves alone."""
    return sum(getattr(raw.current_actions, action) for action in _AT_REST)


def managers(calls: GoogleCalls, region: str) -> dict[Key, Any]:
    """All managers as they are now. Raises CloudError when a page fails, or a place of the region."""
    found: dict[Key, Any] = {}
    for place, scoped in calls.pages("instance_group_managers", "aggregated_list", max_results=PAGE):
        check(place, scoped, region)
        found |= {(str(place), raw.name): raw for raw in scoped.instance_group_managers}
    return found


def read(calls: GoogleCalls, environment: str, region: str) -> GroupLists:
    """The lists as they are now. Raises CloudError when a page fails, or a place of the region."""
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
    """The group that made an instance: `projects/NUMBER/zones/ZONE/instanceGroupManagers/NAME` in its metadata."""
    path = next((str(item.value) for item in instance.metadata.items if item.key == CREATED_BY), "")
    parts = path.split("/")
    return ("/".join(parts[-4:-2]), parts[-1]) if len(parts) >= 4 else None


def check(place: object, scoped: Any, region: str) -> None:
    """Raises CloudError when a place of the region could not be listed. What fails elsewhere is no matter of ours."""
    name = str(place).rsplit("/", 1)[-1]
    # not by its beginning: europe-west1 is that of europe-west10, too
    is_ours = region in (name, name.rpartition("-")[0])
    if is_ours and scoped.warning.code and scoped.warning.code != "NO_RESULTS_ON_PAGE":
        raise CloudError(f"{place} could not be listed: {scoped.warning.message}")
