"""The calls of instances."""

from collections.abc import Callable
from typing import Any

from localcloud.gcp import instances
from localcloud.gcp.calls import Call, aggregated, page
from localcloud.gcp.catalogue import is_machine_type
from localcloud.gcp.errors import ApiError, invalid, not_found, required, stale
from localcloud.gcp.locations import PROJECT, ZONES
from localcloud.gcp.machine import Machine
from localcloud.gcp.operations import OperationFailure, Progress
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Key, Row, fingerprint, last
from localcloud.gcp.validation import check_labels, check_properties, relabel


def insert(state: GoogleState, call: Call) -> Row:
    """Create an instance. A lack of capacity is an error of the operation; an invalid request fails at once."""
    body = dict(call.body)
    zone = call.parameters["zone"]
    if not body.get("name"):
        raise required("resource.name")
    if not body.get("machineType"):
        raise required("resource.machineType")
    check_properties(state, body, "resource")
    check_labels(body.get("labels", {}))
    if not is_machine_type(state, zone, last(body["machineType"])):
        raise not_found(f"projects/{PROJECT}/zones/{zone}/machineTypes/{last(body['machineType'])}")
    key = Key(f"zones/{zone}", "instances", str(body["name"]))
    if state.store.find(key) is not None:
        raise ApiError(409, "alreadyExists", f"The resource '{key.path}' already exists")
    made = instances.launch(state, zone, key.name, body)
    if isinstance(made, OperationFailure):
        failed = made
        return state.operations.start(call.scope, "insert", key.path, state.store.number(), progress=lambda: failed)
    return _operation(state, call, made, "insert", lambda: _is_up(made))


def _is_up(found: Machine) -> bool | OperationFailure:
    if found.status in ("STOPPING", "TERMINATED"):
        return OperationFailure(
            code="INTERNAL_ERROR", message=str(found.row.get("statusMessage", "The instance ended."))
        )
    return found.status == "RUNNING"


def _machine(state: GoogleState, call: Call) -> Machine:
    key = Key(call.scope, "instances", call.parameters["instance"])
    state.store.get(key)
    return state.machines[key.name]


def get(state: GoogleState, call: Call) -> Row:
    return _machine(state, call).row


def list_all(state: GoogleState, call: Call) -> Row:
    return page(call, [row for _, row in state.store.all("instances", call.scope)], "instanceList")


def list_everywhere(state: GoogleState, call: Call) -> Row:
    rows = {f"zones/{zone}": [row for _, row in state.store.all("instances", f"zones/{zone}")] for zone in ZONES}
    return aggregated(call, rows, "instanceAggregatedList", "instances")


def delete(state: GoogleState, call: Call) -> Row:
    found = _machine(state, call)
    if found.row.get("deletionProtection"):
        raise ApiError(
            412,
            "conditionNotMet",
            "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion:"
            f" {found.key.path}'.",
        )
    instances.begin_stop(state, found, "deleted", delete=True)
    return _operation(state, call, found, "delete", lambda: state.store.find(found.key) is not found.row)


def stop(state: GoogleState, call: Call) -> Row:
    found = _machine(state, call)
    if "discardLocalSsd" not in call.query and any(disk.get("type") == "SCRATCH" for disk in found.row["disks"]):
        raise ApiError(
            400,
            "badRequest",
            "VM has a Local SSD attached but an undefined value for `discard-local-ssd`. If using gcloud, please add"
            " `--discard-local-ssd=false` or `--discard-local-ssd=true` to your command.",
        )
    instances.begin_stop(state, found, "stopped", delete=False)
    return _operation(state, call, found, "stop", lambda: found.status == "TERMINATED")


def start(state: GoogleState, call: Call) -> Row:
    found = _machine(state, call)
    if found.status == "RUNNING":
        return _operation(state, call, found, "start")
    if found.status != "TERMINATED":
        raise ApiError(400, "resourceNotReady", f"The resource '{found.key.path}' is not ready")
    failed = instances.start(state, found)
    if failed is not None:
        return _operation(state, call, found, "start", lambda: failed)
    return _operation(state, call, found, "start", lambda: _is_up(found))


def set_labels(state: GoogleState, call: Call) -> Row:
    found = _machine(state, call)
    relabel(found.row, call.body)
    state.hardware.changed(found.name)
    return _operation(state, call, found, "setLabels")


def set_metadata(state: GoogleState, call: Call) -> Row:
    """Replace all metadata, if the fingerprint is current; requests that wait for a change get their response."""
    found = _machine(state, call)
    if call.body.get("fingerprint") != found.row["metadata"]["fingerprint"]:
        raise stale()
    keys = [item.get("key") for item in call.body.get("items", ())]
    if len(keys) != len(set(keys)):
        raise invalid("resource", keys, "Metadata has duplicate keys.")
    changed = {"items": call.body.get("items", [])}
    old = found.row["metadata"]["fingerprint"]
    found.row["metadata"] = {"kind": "compute#metadata", "fingerprint": fingerprint([changed, old]), **changed}
    state.hardware.changed(found.name)
    return _operation(state, call, found, "setMetadata")


def simulate_maintenance(state: GoogleState, call: Call) -> Row:
    """Simulate maintenance: a spot instance is preempted, another one gets a notice and is stopped."""
    found = _machine(state, call)
    if found.status != "RUNNING":
        raise ApiError(400, "resourceNotReady", f"The resource '{found.key.path}' is not ready")
    instances.maintain(state, found)
    return _operation(state, call, found, "compute.instances.simulateMaintenanceEvent")


def set_field(field: str, body_field: str) -> Callable[[GoogleState, Call], Row]:
    """A call that sets one field of an instance; some fields need a stopped instance."""

    def handler(state: GoogleState, call: Call) -> Row:
        found = _machine(state, call)
        value: Any = call.body.get(body_field) if body_field else call.body
        if field == "machineType":
            if found.status != "TERMINATED":
                raise ApiError(400, "resourceInUse", "Machine type can only be changed on a TERMINATED instance.")
            zone = call.parameters["zone"]
            value = state.store.url(f"projects/{PROJECT}/zones/{zone}/machineTypes/{last(str(value))}")
        found.row[field] = value
        return _operation(state, call, found, call.verb)

    return handler


def _set_service_account(state: GoogleState, call: Call) -> Row:
    found = _machine(state, call)
    if found.status != "TERMINATED":
        raise ApiError(400, "resourceInUse", "The service account can only be changed on a TERMINATED instance.")
    found.row["serviceAccounts"] = [call.body] if call.body.get("email") else []
    return _operation(state, call, found, "setServiceAccount")


def _set_deletion_protection(state: GoogleState, call: Call) -> Row:
    found = _machine(state, call)
    found.row["deletionProtection"] = call.query.get("deletionProtection", "true") == "true"
    return _operation(state, call, found, "setDeletionProtection")


def _operation(state: GoogleState, call: Call, found: Machine, what: str, progress: Progress = lambda: True) -> Row:
    return state.operations.start(call.scope, what, found.key.path, found.uid, progress=progress)


def handlers() -> dict[str, Any]:
    """Handlers by method id."""
    return {
        "instances.insert": insert,
        "instances.get": get,
        "instances.list": list_all,
        "instances.aggregatedList": list_everywhere,
        "instances.delete": delete,
        "instances.stop": stop,
        "instances.start": start,
        "instances.setLabels": set_labels,
        "instances.setMetadata": set_metadata,
        "instances.simulateMaintenanceEvent": simulate_maintenance,
        "instances.setMachineType": set_field("machineType", "machineType"),
        "instances.setTags": set_field("tags", ""),
        "instances.setScheduling": set_field("scheduling", ""),
        "instances.setDeletionProtection": _set_deletion_protection,
        "instances.setServiceAccount": _set_service_account,
        "instances.updateShieldedInstanceConfig": set_field("shieldedInstanceConfig", ""),
    }
