"""Reservations and disks of Compute Engine."""

from __future__ import annotations

from gpufleet.domain.parsed import is_list
from localcloud.documents import items
from localcloud.provider.checks import between, conflicts, matches
from localcloud.provider.errors import Failure
from localcloud.provider.gcp.balancing import set_labels
from localcloud.provider.gcp.rest_resource import NAME_RULE, RestResource, error_context, fit_labels, is_same_thing
from localcloud.provider.resource import Change
from localcloud.provider.session import Cloud
from localcloud.provider.wire import Properties

_COUNT = "specificReservation.count"


class Reservation(RestResource):
    token = "gcp:compute/reservation:Reservation"
    api = ("compute.v1", "Reservation")
    place = "zones/{zone}/reservations"
    force_new = frozenset(
        {"deleteAfterDuration", "deleteAtTime", "description", "name", "specificReservationRequired"}
    )
    mutable = frozenset({"specificReservation"})
    computed = {
        "selfLink": "selfLink",
        "creationTimestamp": "creationTimestamp",
        "commitment": "commitment",
        "kind": "kind",
        "status": "status",
    }
    enums = {"specificReservation.instanceProperties.localSsds[*].interface": frozenset({"NVME", "SCSI"})}
    rules = (
        NAME_RULE,
        between(_COUNT, 1, 10000),
        conflicts("deleteAtTime", "deleteAfterDuration"),
        matches(
            "deleteAtTime",
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)",
            "a time such as 2026-11-21T09:00:00Z",
        ),
    )

    def replaces(self, path: str, new: Properties) -> bool:
        if path.startswith("specificReservation.") and path != _COUNT:
            return True
        return super().replaces(path, new)

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        count = change.new["specificReservation"]["count"]
        if count != change.old.get("specificReservation", {}).get("count"):
            with error_context(f"Error updating Reservation {ident!r}"):
                body = {"specificSkuCount": str(count)}
                self.finish(cloud, self.client(cloud).call("POST", f"{ident}/resize", body))


def _grows(old: object, new: object) -> bool:
    return isinstance(old, int) and isinstance(new, int) and new > old


class Disk(RestResource):
    token = "gcp:compute/disk:Disk"
    api = ("compute.v1", "Disk")
    place = "zones/{zone}/disks"
    labelled = True
    force_new = frozenset({"description", "image", "name", "physicalBlockSizeBytes", "snapshot", "type"})
    mutable = frozenset({"provisionedIops", "provisionedThroughput", "size"})
    renames = {"image": "sourceImage", "size": "sizeGb", "snapshot": "sourceSnapshot"}
    computed = {
        "selfLink": "selfLink",
        "creationTimestamp": "creationTimestamp",
        "diskId": "id",
        "labelFingerprint": "labelFingerprint",
        "lastAttachTimestamp": "lastAttachTimestamp",
        "size": "sizeGb",
        "users": "users",
    }
    volatile = frozenset({"labelFingerprint"})
    rules = (NAME_RULE, fit_labels, between("size", 1, 65536), conflicts("image", "snapshot"))

    def body(self, cloud: Cloud, inputs: Properties) -> Properties:
        zone = self.zone(cloud, inputs)
        kind = inputs.get("type")
        full = {} if not kind or "/" in kind else {"type": f"projects/{cloud.project}/zones/{zone}/diskTypes/{kind}"}
        return super().body(cloud, {**inputs, **full})

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        if change.touches("size"):
            old, new = change.old.get("size") or change.state.get("size"), change.new.get("size")
            if new is not None and not _grows(old, new):
                raise ValueError(f"size: a disk cannot shrink, from {old} to {new} GB; make a new one and copy")
            with error_context(f"Error updating Disk {ident!r}"):
                body = {"sizeGb": str(new)}
                self.finish(cloud, self.client(cloud).call("POST", f"{ident}/resize", body))
        if change.touches("labels"):
            set_labels(self, cloud, ident, change)
        self.patch(cloud, ident, change, change.keys - {"labels", "size"})


def _members_fit(given: Properties) -> list[Failure]:
    instances = given.get("instances")
    if is_list(instances) and len(instances) > 1000:
        return [Failure(path="instances", reason=f"at most 1000 instances, got {len(instances)}")]
    return []


class InstanceGroup(RestResource):
    """A list of machines that nobody manages."""

    token = "gcp:compute/instanceGroup:InstanceGroup"
    api = ("compute.v1", "InstanceGroup")
    place = "zones/{zone}/instanceGroups"
    force_new = frozenset({"description", "name", "network"})
    mutable = frozenset({"namedPorts"})
    local = frozenset({"instances"})
    computed = {"selfLink": "selfLink", "network": "network", "size": "size"}
    volatile = frozenset({"size"})
    rules = (NAME_RULE, _members_fit)

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        self._change_members(cloud, ident, "addInstances", items(inputs, "instances"))

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        shown = super().read(cloud, ident, state)
        if shown is None:
            return None
        listed = self.client(cloud).call("POST", f"{ident}/listInstances", {"instanceState": "ALL"})
        live = sorted(str(item["instance"]) for item in listed.get("items", []))
        given: list[str] = items(state, "instances")
        return {**shown, "instances": [_given_for(link, given) for link in live]}

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        old, new = items(change.old, "instances"), items(change.new, "instances")
        self._change_members(cloud, ident, "removeInstances", [i for i in old if i not in new])
        self._change_members(cloud, ident, "addInstances", [i for i in new if i not in old])
        if change.touches("namedPorts"):
            body = {"namedPorts": items(change.new, "namedPorts")}
            with error_context(f"Error updating InstanceGroup {ident!r}"):
                self.finish(cloud, self.client(cloud).call("POST", f"{ident}/setNamedPorts", body))

    def _change_members(self, cloud: Cloud, ident: str, call: str, instances: list[str]) -> None:
        if instances:
            with error_context(f"Error updating InstanceGroup {ident!r}"):
                body = {"instances": [{"instance": i} for i in instances]}
                self.finish(cloud, self.client(cloud).call("POST", f"{ident}/{call}", body))


def _given_for(link: str, given: list[str]) -> str:
    return next((g for g in given if g == link or is_same_thing(g, link)), link)
