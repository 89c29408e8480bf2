"""Detects whether a plan replaces machines. `make up` uses it to decide whether watchdogs may run during the
update.
"""

import json
from typing import Final

from gpufleet.prices.plan.preview import as_list, as_map

MOVES: Final = {
    "aws:autoscaling/group:Group": "group",
    "aws:ec2/launchTemplate:LaunchTemplate": "launch template of a group",
    "aws:ec2/capacityReservation:CapacityReservation": "reservation",
    "aws:ec2/instance:Instance": "control host or router",
    "gcp:compute/instanceGroupManager:InstanceGroupManager": "group",
    "gcp:compute/regionInstanceGroupManager:RegionInstanceGroupManager": "group",
    "gcp:compute/reservation:Reservation": "reservation",
    "gcp:compute/instance:Instance": "control host or router",
}
"""Types whose deletion terminates machines. Google's instance templates are excluded, because each change creates a
new one.
"""
_ENDS: Final = frozenset({"delete", "replace", "delete-replaced", "create-replacement"})


class PlanError(ValueError):
    """The text is not the plan of an update."""


def ended(plan: str) -> tuple[str, ...]:
    """Return the groups and machines that a plan (JSON of `pulumi preview`) deletes or replaces, one line each.

    Raises PlanError for text that is not a preview, because a plan that cannot be read may be large.
    """
    try:
        digest = as_map(json.loads(plan))
    except ValueError as error:
        raise PlanError(f"`pulumi preview --json` did not print JSON: {error}") from error
    if "steps" not in digest:
        raise PlanError("`pulumi preview --json` printed no steps")
    found: dict[str, str] = {}
    for step in map(as_map, as_list(digest["steps"])):
        urn, op = str(step.get("urn", "")), str(step.get("op", ""))
        *_, kinds, name = ["", *urn.split("::")]
        what = MOVES.get(kinds.rsplit("$", 1)[-1])
        if what is not None and op in _ENDS:
            found.setdefault(urn, f"{what} {name} is {'deleted' if op == 'delete' else 'replaced'}")
    return tuple(found.values())
