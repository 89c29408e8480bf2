"""Compute Engine instances outside groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localcloud.documents import inner, is_document, items
from localcloud.provider.checks import values_at
from localcloud.provider.errors import Failure
from localcloud.provider.gcp.balancing import set_labels
from localcloud.provider.gcp.rest_resource import ATTRIBUTION, NAME_RULE, RestResource, error_context, fit_labels
from localcloud.provider.gcp.templates import (
    MACHINE_ENUMS,
    affinity_fits,
    machine_from_wire,
    machine_to_wire,
    one_script,
    scheduling_fits,
)
from localcloud.provider.resource import Change
from localcloud.provider.session import Cloud
from localcloud.provider.wire import UNKNOWN, Properties

_INITIAL = "initializeParams"
_NEEDS_STOP = frozenset({"machineType", "serviceAccount", "shieldedInstanceConfig"})


def _boot_disk_fits(given: Properties) -> list[Failure]:
    disk = given.get("bootDisk")
    if is_document(disk) and (_INITIAL in disk) == ("source" in disk):
        return [Failure(path="bootDisk", reason=f"exactly one of {_INITIAL!r}, 'source' is required")]
    return []


def _interfaces_fit(given: Properties) -> list[Failure]:
    return [
        Failure(path=path, reason="one of 'network', 'subnetwork' is required")
        for path, interface in values_at(given, "networkInterfaces[*]")
        if is_document(interface) and not {"network", "networkAttachment", "subnetwork"} & interface.keys()
    ]


class Instance(RestResource):
    token = "gcp:compute/instance:Instance"
    api = ("compute.v1", "Instance")
    place = "zones/{zone}/instances"
    labelled = True
    force_new = frozenset(
        {
            "attachedDisks", "bootDisk", "canIpForward", "description", "guestAccelerators", "hostname",
            "metadataStartupScript", "minCpuPlatform", "name", "networkInterfaces", "reservationAffinity",
            "scheduling",
        }
    )  # fmt: skip
    mutable = frozenset(
        {"deletionProtection", "machineType", "metadata", "serviceAccount", "shieldedInstanceConfig", "tags"}
    )
    local = frozenset({"allowStoppingForUpdate"})
    renames = {
        "guestAccelerators.count": "acceleratorCount",
        "guestAccelerators.type": "acceleratorType",
        "reservationAffinity.type": "consumeReservationType",
        "serviceAccount": "serviceAccounts",
    }
    computed = {
        "selfLink": "selfLink",
        "cpuPlatform": "cpuPlatform",
        "creationTimestamp": "creationTimestamp",
        "currentStatus": "status",
        "instanceId": "id",
        "labelFingerprint": "labelFingerprint",
    }
    volatile = frozenset({"currentStatus", "labelFingerprint", "metadataFingerprint"})
    enums = MACHINE_ENUMS
    rules = (NAME_RULE, fit_labels, _boot_disk_fits, _interfaces_fit, scheduling_fits, affinity_fits, one_script)

    def body(self, cloud: Cloud, inputs: Properties) -> Properties:
        zone = f"projects/{cloud.project}/zones/{self.zone(cloud, inputs)}"
        kind = inputs["machineType"]
        disk = dict(inputs["bootDisk"])
        initial = dict(disk.pop(_INITIAL, {}))
        if "type" in initial and "/" not in initial["type"]:
            initial["type"] = f"{zone}/diskTypes/{initial['type']}"
        boot = {"boot": True, "autoDelete": True, **disk, **({_INITIAL: _initial(initial)} if initial else {})}
        whole = {k: v for k, v in inputs.items() if k not in {"bootDisk", "attachedDisks", "zone", "project"}}
        return self.renamed(
            machine_to_wire(
                {
                    **{k: v for k, v in whole.items() if k not in self.local},
                    "machineType": kind if "/" in kind else f"{zone}/machineTypes/{kind}",
                    "labels": {**inner(inputs, "labels"), **ATTRIBUTION},
                    "disks": [boot, *inputs.get("attachedDisks", [])],
                }
            )
        )

    def filled_in(self, inputs: Properties) -> Properties:
        given = items(inputs, "networkInterfaces")
        return {"networkInterfaces": [{"networkIp": UNKNOWN, **i} if is_document(i) else i for i in given]}

    def from_wire(self, raw: Properties) -> Properties:
        shown = machine_from_wire(raw)
        shown.pop("disks", None)
        return shown

    def shown(self, cloud: Cloud, raw: Properties, state: Properties) -> Properties:
        # only the disks themselves state from what they were created, so these inputs cannot be compared
        kept = {k: state[k] for k in ("bootDisk", "attachedDisks", "networkInterfaces") if k in state}
        live = super().shown(cloud, raw, {k: v for k, v in state.items() if k not in kept})
        found = [_interface(i) for i in raw.get("networkInterfaces", [])]
        given: list[Properties] = items(state, "networkInterfaces")
        interfaces = [{**i, **(given[n] if n < len(given) else {})} for n, i in enumerate(found)]
        fingerprint = inner(raw, "metadata").get("fingerprint")
        return {**live, **kept, "networkInterfaces": interfaces, "metadataFingerprint": fingerprint}

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        if change.touches("labels"):
            set_labels(self, cloud, ident, change)
        if change.touches("metadata"):
            self._set_metadata(cloud, ident, change)
        if change.touches("tags"):
            self._post(cloud, ident, "setTags", {"items": items(change.new, "tags")})
        if change.touches("deletionProtection"):
            flag = str(bool(change.new.get("deletionProtection"))).lower()
            self._post(cloud, ident, "setDeletionProtection", None, deletionProtection=flag)
        if change.touches(*_NEEDS_STOP):
            self._change_while_stopped(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        if state.get("deletionProtection"):
            raise ValueError(
                f"{ident}: deletion protection is on; set deletionProtection to false and run `up` first"
            )
        super().delete(cloud, ident, state)

    def _set_metadata(self, cloud: Cloud, ident: str, change: Change) -> None:
        now = inner(self.client(cloud).call("GET", ident), "metadata")
        old, new = inner(change.old, "metadata"), inner(change.new, "metadata")
        others = [i for i in items(now, "items") if i["key"] not in old and i["key"] not in new]
        wanted = [*others, *({"key": k, "value": v} for k, v in sorted(new.items()))]
        self._post(cloud, ident, "setMetadata", {"items": wanted, "fingerprint": now.get("fingerprint")})

    def _change_while_stopped(self, cloud: Cloud, ident: str, change: Change) -> None:
        if not change.new.get("allowStoppingForUpdate"):
            names = ", ".join(sorted(change.keys & _NEEDS_STOP))
            raise ValueError(f"{names}: changing it stops the machine; set allowStoppingForUpdate to allow that")
        self._post(cloud, ident, "stop", None)
        if change.touches("machineType"):
            zone = ident.split("/instances/")[0]
            self._post(
                cloud, ident, "setMachineType", {"machineType": f"{zone}/machineTypes/{change.new['machineType']}"}
            )
        if change.touches("serviceAccount"):
            self._post(cloud, ident, "setServiceAccount", inner(change.new, "serviceAccount"))
        if change.touches("shieldedInstanceConfig"):
            self.patch_shield(cloud, ident, change)
        self._post(cloud, ident, "start", None)

    def patch_shield(self, cloud: Cloud, ident: str, change: Change) -> None:
        """Write the Shielded VM settings of a stopped machine."""
        body = inner(change.new, "shieldedInstanceConfig")
        path = f"{ident}/updateShieldedInstanceConfig"
        with error_context(f"Error updating Instance {ident!r}"):
            self.finish(cloud, self.client(cloud).call("PATCH", path, body))

    def _post(self, cloud: Cloud, ident: str, call: str, body: Mapping[str, Any] | None, **parameters: str) -> None:
        with error_context(f"Error updating Instance {ident!r}"):
            self.finish(cloud, self.client(cloud).call("POST", f"{ident}/{call}", body, parameters=parameters))


def _initial(given: Properties) -> Properties:
    names = {"image": "sourceImage", "size": "diskSizeGb", "type": "diskType", "snapshot": "sourceSnapshot"}
    return {names.get(k, k): v for k, v in given.items()}


def _interface(raw: Properties) -> Properties:
    shown = {"name": raw.get("name"), "network": raw.get("network"), "subnetwork": raw.get("subnetwork")}
    shown |= {"networkIp": raw.get("networkIP"), "stackType": raw.get("stackType")}
    return {k: v for k, v in shown.items() if v is not None}
