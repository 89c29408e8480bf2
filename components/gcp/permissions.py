"""The rights that each kind of machine needs on Google Cloud. A test compares them with the code that uses them."""

from typing import Final

from components.gcp.identities import OnBucket
from components.paths import BUNDLES, ROUTER_OBJECTS, ROUTER_POLICY

INSTANCE_ON_BUCKET: Final = (OnBucket(role="roles/storage.objectViewer", prefixes=("agents/", "models/")),)
CONTROL_ON_BUCKET: Final = (OnBucket(role="roles/storage.objectUser"),)
ROUTER_ON_BUCKET: Final = (
    OnBucket(role="roles/storage.objectViewer", prefixes=(*ROUTER_OBJECTS, BUNDLES), listed=(ROUTER_POLICY,)),
)

INSTANCE: Final = (
    # its own phase, as a label
    "compute.instances.get",
    "compute.instances.setLabels",
)
"""Google knows no "itself" in a role: the agent's code names its own instance alone."""

ROUTER: Final = ("compute.instances.list",)
"""Of a router on a machine of its own: who serves."""

CONTROL: Final = (
    # looking
    "compute.instances.get",
    "compute.instances.list",
    "compute.instanceGroupManagers.get",
    "compute.instanceGroupManagers.list",
    "compute.instanceGroups.get",
    "compute.instanceGroups.list",
    "compute.machineTypes.list",
    "compute.regions.get",
    "compute.reservations.list",
    "compute.globalOperations.get",
    "compute.regionOperations.get",
    "compute.zoneOperations.get",
    "compute.zoneOperations.list",
    # sizes, and the end of single instances through their group
    "compute.instanceGroupManagers.update",
    "compute.instances.delete",
    # marks
    "compute.instances.setLabels",
)

STOP: Final = ("compute.instances.stop",)
"""Beside those, where a rule for machines outside every pool stops."""
