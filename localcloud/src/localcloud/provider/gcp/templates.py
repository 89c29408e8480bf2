"""Instance templates: immutable, so each change creates a new one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from localcloud.documents import inner, is_document, items
from localcloud.provider.checks import conflicts, matches, values_at
from localcloud.provider.errors import Failure
from localcloud.provider.gcp.rest_resource import ATTRIBUTION, NAME_RULE, RestResource, fit_labels
from localcloud.provider.naming import Naming
from localcloud.provider.session import Cloud
from localcloud.provider.wire import UNKNOWN, Properties

INITIAL = frozenset(
    {"diskName", "diskSizeGb", "diskType", "labels", "provisionedIops", "provisionedThroughput", "sourceImage",
     "sourceSnapshot"}
)  # fmt: skip
"""Fields of a disk that the API keeps under initializeParams."""
_MODELS = frozenset({"STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"})
STARTUP_SCRIPT = "startup-script"
_ENDS_ITSELF = frozenset({"SPOT", "FLEX_START", "RESERVATION_BOUND"})
SCRATCH_SIZES = (375, 3000)


def scheduling_fits(given: Properties) -> list[Failure]:
    """What Compute Engine refuses of a machine's scheduling."""
    scheduling = given.get("scheduling")
    if not is_document(scheduling):
        return []
    model = scheduling.get("provisioningModel", "STANDARD")
    failures: list[Failure] = []
    if "instanceTerminationAction" in scheduling and model == "STANDARD" and "maxRunDuration" not in scheduling:
        reason = "an instance of the provisioning model STANDARD knows no instanceTerminationAction; leave it out"
        failures.append(Failure(path="scheduling.instanceTerminationAction", reason=reason))
    if model in _ENDS_ITSELF and scheduling.get("automaticRestart") is True:
        reason = f"automaticRestart must be false for the provisioning model {model}"
        failures.append(Failure(path="scheduling.automaticRestart", reason=reason))
    if model == "SPOT" and scheduling.get("preemptible") is False:
        reason = "preemptible must be true for the provisioning model SPOT"
        failures.append(Failure(path="scheduling.preemptible", reason=reason))
    if "preemptionNoticeDuration" in scheduling and model not in ("SPOT", UNKNOWN):
        reason = f"an instance of the provisioning model {model} has no preemption notice; leave it out"
        failures.append(Failure(path="scheduling.preemptionNoticeDuration", reason=reason))
    return [*failures, *(_flex_start_fits(given, scheduling) if model == "FLEX_START" else ())]


def _flex_start_fits(given: Properties, scheduling: Properties) -> Iterator[Failure]:
    model = "the provisioning model FLEX_START"
    if "maxRunDuration" not in scheduling:
        yield Failure(path="scheduling.maxRunDuration", reason=f"'maxRunDuration' is required for {model}")
    action = scheduling.get("instanceTerminationAction")
    if action not in ("DELETE", UNKNOWN):
        reason = f"instanceTerminationAction must be DELETE for {model}"
        yield Failure(path="scheduling.instanceTerminationAction", reason=reason)
    if scheduling.get("preemptible") is True:
        yield Failure(path="scheduling.preemptible", reason=f"preemptible must be false for {model}")
    affinity = given.get("reservationAffinity")
    if is_document(affinity) and affinity.get("type") not in ("NO_RESERVATION", UNKNOWN):
        yield Failure(path="reservationAffinity.type", reason=f"the type must be NO_RESERVATION for {model}")


def affinity_fits(given: Properties) -> list[Failure]:
    """A specific reservation is named, and only then."""
    affinity = given.get("reservationAffinity")
    if not is_document(affinity):
        return []
    path = "reservationAffinity.specificReservation"
    specific = affinity.get("type") == "SPECIFIC_RESERVATION"
    if specific and "specificReservation" not in affinity:
        return [Failure(path=path, reason="'specificReservation' is required for the type SPECIFIC_RESERVATION")]
    if not specific and "specificReservation" in affinity and affinity.get("type") != UNKNOWN:
        return [Failure(path=path, reason="'specificReservation' needs the type SPECIFIC_RESERVATION")]
    return []


def _disks_fit(given: Properties) -> list[Failure]:
    disks = given.get("disks")
    failures: list[Failure] = []
    if disks == []:
        failures.append(Failure(path="disks", reason="at least one disk is required, the boot disk"))
    for path, disk in values_at(given, "disks[*]"):
        if not is_document(disk):
            continue
        size = disk.get("diskSizeGb", SCRATCH_SIZES[0])
        if disk.get("type") == "SCRATCH":
            if isinstance(size, int) and size not in SCRATCH_SIZES:
                reason = f"SCRATCH disks must be one of [375, 3000] GB, got {size}"
                failures.append(Failure(path=f"{path}.diskSizeGb", reason=reason))
            if disk.get("diskType", "local-ssd") != "local-ssd":
                reason = "SCRATCH disks must have the disk type local-ssd"
                failures.append(Failure(path=f"{path}.diskType", reason=reason))
        elif not {"source", "sourceImage", "sourceSnapshot"} & disk.keys():
            reason = "one of 'source', 'sourceImage', 'sourceSnapshot' is required unless type is SCRATCH"
            failures.append(Failure(path=f"{path}.sourceImage", reason=reason))
    return failures


def one_script(given: Properties) -> list[Failure]:
    """The startup script is given in one way."""
    metadata = given.get("metadata")
    if "metadataStartupScript" in given and isinstance(metadata, dict) and STARTUP_SCRIPT in metadata:
        reason = "cannot provide both metadataStartupScript and metadata.startup-script"
        return [Failure(path="metadataStartupScript", reason=reason)]
    return []


MACHINE_ENUMS = {
    "scheduling.provisioningModel": _MODELS,
    "scheduling.instanceTerminationAction": frozenset({"DELETE", "STOP"}),
    "scheduling.onHostMaintenance": frozenset({"MIGRATE", "TERMINATE"}),
    "reservationAffinity.type": frozenset({"ANY_RESERVATION", "NO_RESERVATION", "SPECIFIC_RESERVATION"}),
    "networkInterfaces[*].nicType": frozenset({"GVNIC", "IDPF", "IRDMA", "MRDMA", "VIRTIO_NET"}),
    "networkInterfaces[*].accessConfigs[*].networkTier": frozenset({"PREMIUM", "STANDARD"}),
}


class InstanceTemplate(RestResource):
    token = "gcp:compute/instanceTemplate:InstanceTemplate"
    api = ("compute.v1", "InstanceTemplate")
    place = "global/instanceTemplates"
    labelled = True
    naming = Naming(prefix_property="namePrefix", limit=63, lower=True)
    force_new = frozenset(
        {
            "canIpForward", "description", "disks", "guestAccelerators", "instanceDescription", "labels",
            "machineType", "metadata", "metadataStartupScript", "minCpuPlatform", "name", "namePrefix",
            "networkInterfaces", "reservationAffinity", "scheduling", "serviceAccount",
            "shieldedInstanceConfig", "tags",
        }
    )  # fmt: skip
    local = frozenset({"region"})
    renames = {
        "properties.guestAccelerators.count": "acceleratorCount",
        "properties.guestAccelerators.type": "acceleratorType",
        "properties.networkInterfaces.networkIp": "networkIP",
        "properties.networkInterfaces.accessConfigs.natIp": "natIP",
        "properties.reservationAffinity.type": "consumeReservationType",
        "properties.serviceAccount": "serviceAccounts",
    }
    computed = {"selfLink": "selfLink", "creationTimestamp": "creationTimestamp", "numericId": "id"}
    enums = {
        **MACHINE_ENUMS,
        "disks[*].type": frozenset({"PERSISTENT", "SCRATCH"}),
        "disks[*].interface": frozenset({"NVME", "SCSI"}),
        "disks[*].mode": frozenset({"READ_ONLY", "READ_WRITE"}),
    }
    rules = (
        NAME_RULE,
        fit_labels,
        conflicts("name", "namePrefix"),
        matches("namePrefix", r"[a-z][-a-z0-9]{0,53}", "a prefix of a name (at most 54 of a-z 0-9 -)"),
        _disks_fit,
        scheduling_fits,
        affinity_fits,
        one_script,
    )

    def ident(self, parent: str, inputs: Properties) -> str:
        return f"{parent}/{inputs['name']}"

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        naming = self.naming
        assert naming is not None
        return super().create(cloud, {**inputs, "name": naming.from_prefix(inputs)[: naming.limit]})

    def to_wire(self, cloud: Cloud, inputs: Properties) -> Properties:
        own = {"description", "name"}
        machine = {k: v for k, v in inputs.items() if k not in own | {"namePrefix", "instanceDescription"}}
        if "instanceDescription" in inputs:
            machine["description"] = inputs["instanceDescription"]
        machine["disks"] = [_disk(d) for d in inputs.get("disks", [])]
        machine["labels"] = {**inner(inputs, "labels"), **ATTRIBUTION}
        machine = machine_to_wire(machine)
        return {**{k: v for k, v in inputs.items() if k in own}, "properties": machine}

    def from_wire(self, raw: Properties) -> Properties:
        properties: Properties = raw.get("properties") or {}
        shown = machine_from_wire(properties)
        shown["disks"] = [
            {**{k: v for k, v in d.items() if k != "initializeParams"}, **(d.get("initializeParams") or {})}
            for d in properties.get("disks", [])
        ]
        if "description" in properties:
            shown["instanceDescription"] = properties["description"]
        return {**shown, "name": raw["name"], **({"description": raw["description"]} if "description" in raw else {})}

    def shown(self, cloud: Cloud, raw: Properties, state: Properties) -> Properties:
        link = str(raw["selfLink"])
        metadata = raw.get("properties", {}).get("metadata", {})
        return {
            **super().shown(cloud, raw, {k: v for k, v in state.items() if k != "namePrefix"}),
            "metadataFingerprint": metadata.get("fingerprint"),
            "name": raw["name"],
            # distinguishes it from a later template of the same name
            "selfLinkUnique": f"{link}?uniqueId={raw.get('id', '')}",
        }


def _disk(disk: Properties) -> Properties:
    initial = {k: v for k, v in disk.items() if k in INITIAL}
    others = {k: v for k, v in disk.items() if k not in INITIAL}
    return {"autoDelete": True, **others, **({"initializeParams": initial} if initial else {})}


def machine_to_wire(machine: Properties) -> Properties:
    """Metadata as items, tags under `items`, a reservation's name in addition to its key."""
    machine = dict(machine)
    metadata: dict[str, Any] = dict(machine.pop("metadata", {}))
    if script := machine.pop("metadataStartupScript", None):
        metadata[STARTUP_SCRIPT] = script
    if metadata:
        machine["metadata"] = {"items": [{"key": k, "value": v} for k, v in sorted(metadata.items())]}
    if "tags" in machine:
        machine["tags"] = {"items": machine["tags"]}
    if affinity := machine.get("reservationAffinity"):
        named = inner(affinity, "specificReservation")
        machine["reservationAffinity"] = {"type": affinity["type"], **named}
    return machine


def machine_from_wire(raw: Properties) -> Properties:
    """The reverse of `machine_to_wire`, with Pulumi's names where renames know no way back."""
    shown = dict(raw)
    metadata = {i["key"]: i.get("value", "") for i in items(inner(raw, "metadata"), "items")}
    script = metadata.pop(STARTUP_SCRIPT, None)
    shown["metadata"] = metadata
    if script is not None:
        shown["metadataStartupScript"] = script
    shown["tags"] = items(inner(raw, "tags"), "items")
    if affinity := raw.get("reservationAffinity"):
        shown["reservationAffinity"] = {"type": affinity.get("consumeReservationType")}
        if "values" in affinity:
            named = {"key": affinity.get("key"), "values": affinity["values"]}
            shown["reservationAffinity"]["specificReservation"] = named
    if accounts := raw.get("serviceAccounts"):
        shown["serviceAccount"] = accounts[0]
    if accelerators := raw.get("guestAccelerators"):
        shown["guestAccelerators"] = [
            {"count": a.get("acceleratorCount"), "type": a.get("acceleratorType")} for a in accelerators
        ]
    return shown
