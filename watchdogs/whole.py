"""Whether a list of instances is whole, judged by what their groups and their metrics say."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.activity import CloudError
from gpufleet.domain.evidence import Evidence
from gpufleet.domain.model import Group, Instance
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


def check_reporting(
    inventory: Inventory, environment: str, told: Mapping[str, Evidence], listed: Collection[str], now: datetime
) -> None:
    """Raise CloudError when a living, settled instance of the environment reports itself and the list lacks it.

    No call to the cloud while list and metrics agree: half a page without an error is rare.
    """
    for key in sorted(key for key, evidence in told.items() if key not in listed and _fresh(evidence))[:MOST_ASKED]:
        one = inventory.instance(key)
        if one is None or not one.alive or one.environment != environment:
            continue  # what has gone reports for a little longer
        if now - one.launched_at > SETTLED:
            raise CloudError(f"{key} lives and reports, but the list of instances lacks it: it is not whole")


def _fresh(evidence: Evidence) -> bool:
    return any(evidence.is_new(side) for side in (evidence.engine, evidence.gpu) if side is not None)
