"""The rights that each kind of machine needs on Google Cloud. A test compares them with the code that uses them."""

from typing import Final

from components.gcp.identities import OnBucket
from gpufleet.domain import bucket as layout
from gpufleet.settings.document import PATH_IN_BUCKET

INSTANCE_ON_BUCKET: Final = (
    OnBucket(role="roles/storage.objectViewer", prefixes=("agents/", "approvals/", "models/")),
)
CONTROL_ON_BUCKET: Final = (
    # without a right to list the bucket it cannot tell what is absent, a router's policy, from what is refused
    OnBucket(role="roles/storage.objectViewer"),
    # creates, and neither replaces nor deletes
    OnBucket(role="roles/storage.objectCreator", prefixes=(layout.BACKUPS,)),
    # the pointer to the newest backup is replaced each time, for which Cloud Storage asks for the right to delete
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
"""Of a router on a machine of its own: who serves, as the groups list their members."""

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
)
"""In the whole project: lists belong to no instance, and conditions know no names of instance groups."""

MARKS: Final = ("compute.instances.setLabels",)
"""On instances of pools alone, by their names; on all, where a rule looks at machines outside every pool."""

STOP: Final = ("compute.instances.stop",)
"""On all, where such a rule stops."""
