"""Whether a plan moves machines: what `make up` looks at before it lets watchdogs go on beside the update."""

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
"""Types whose end takes machines along. Google's instance templates are not: each change makes a new one."""
_ENDS: Final = frozenset({"delete", "replace", "delete-replaced", "create-replacement"})


class PlanError(ValueError):
    """The text is no plan of an update."""


def ended(plan: str) -> tuple[str, ...]:
    """What the JSON of `pulumi preview` deletes or replaces of groups and machines, one line each.

    Raises PlanError for what is no preview: an unread plan is not a small one.
    """
    try:
        digest = as_map(json.loads(plan))
    except ValueError as error:
        raise PlanError(f"`pulumi preview --json` said no JSON: {error}") from error
    if "steps" not in digest:
        raise PlanError("`pulumi preview --json` said no steps")
    found: dict[str, str] = {}
    for step in map(as_map, as_list(digest["steps"])):
        urn, op = str(step.get("urn", "")), str(step.get("op", ""))
        *_, kinds, name = ["", *urn.split("::")]
        what = MOVES.get(kinds.rsplit("$", 1)[-1])
        if what is not None and op in _ENDS:
            found.setdefault(urn, f"{what} {name} is {'deleted' if op == 'delete' else 'replaced'}")
    return tuple(found.values())
