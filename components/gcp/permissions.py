"""The permissions that each kind of machine needs on Google Cloud. A test compares them with the code."""

from typing import Final

from components.gcp.identities import OnBucket
from gpufleet.domain import bucket as layout
from gpufleet.settings.document import PATH_IN_BUCKET

INSTANCE_ON_BUCKET: Final = (
    OnBucket(role="roles/storage.objectViewer", prefixes=("agents/", "approvals/", "models/")),
)
CONTROL_ON_BUCKET: Final = (
    # without permission to list the bucket, the host cannot distinguish a missing object (a router's policy) from a
    # denied one
    OnBucket(role="roles/storage.objectViewer"),
    # allows creation, but neither replacement nor deletion
    OnBucket(role="roles/storage.objectCreator", prefixes=(layout.BACKUPS,)),
    # each backup replaces the pointer to the newest backup, and Cloud Storage requires the delete permission for that
    OnBucket(role="roles/storage.objectUser", prefixes=(layout.BACKUPS,), ending=layout.POINTER),
)
ROUTER_ON_BUCKET: Final = (
    OnBucket(
        role="roles/storage.objectViewer",
        prefixes=(PATH_IN_BUCKET, layout.ROUTER_POLICY, layout.BUNDLES),
        listed=(layout.ROUTER_POLICY,),
    ),
)

ROUTER: Final = ("compute.instances.list", "compute.instanceGroupManagers.get")
"""Permissions of a router on its own machine: it reads the serving instances from the groups' member lists."""

CONTROL: Final = (
    # read calls
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
    # resizing of groups, and termination of single instances through their group
    "compute.instanceGroupManagers.update",
)
"""Permissions in the whole project. List calls have no instance, and IAM conditions do not support names of instance
groups.
"""

MARKS: Final = ("compute.instances.setLabels",)
"""Permission on instances of pools, matched by name. If an orphan rule exists, it covers all instances."""

STOP: Final = ("compute.instances.stop",)
"""Permission on all instances, granted only if an orphan rule stops machines."""
