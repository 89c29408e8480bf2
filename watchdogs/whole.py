"""Whether a list of instances is whole, judged by what their groups say."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from fleet.activity import CloudError
from fleet.model import Group, Instance
from watchdogs.ports import Inventory

SETTLED: Final = timedelta(minutes=2)
"""A cloud may list a new instance later than its group does."""
MOST_ASKED: Final = 20


def check_whole(inventory: Inventory, groups: Iterable[Group], listed: Mapping[str, Instance], now: datetime) -> None:
    """Raise CloudError when a group has a living, settled instance that the list lacks: it is empty, or half."""
    missing = [(group.name, key) for group in groups for key in group.instance_ids if key not in listed]
    for name, key in missing[:MOST_ASKED]:
        one = inventory.instance(key)
        if one is not None and one.alive and now - one.launched_at > SETTLED:
            raise CloudError(
                f"group {name} has {key}, which lives, but the list of instances lacks it: it is not whole"
            )
