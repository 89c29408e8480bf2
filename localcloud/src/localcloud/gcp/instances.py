"""The lifecycle of instances: PROVISIONING, STAGING, RUNNING, STOPPING, TERMINATED. Each has a loopback machine."""

from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain import tags
from localcloud.billing_log import BilledRun
from localcloud.gcp import disks
from localcloud.gcp.catalogue import is_machine_type
from localcloud.gcp.errors import invalid, not_found
from localcloud.gcp.locations import PROJECT, PROJECT_NUMBER, REGION
from localcloud.gcp.machine import OCCUPIES, Machine, use_of
from localcloud.gcp.operations import OperationFailure
from localcloud.gcp.reservations import claim
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Key, Row, fingerprint, key_of, last, stamp

RUN_IS_OVER: Final = "maximum run duration"
SHUTDOWN_TAKES: Final = timedelta(seconds=30)
MAINTENANCE_TAKES: Final = timedelta(seconds=60)


def launch(
    state: GoogleState, zone: str, name: str, properties: Row, group: tuple[str, str] | None = None
) -> Machine | OperationFailure:
    """Create an instance, which starts to boot, or return the error. Raises ApiError for an invalid request."""
    now = state.now()
    if name in state.machines:
        key = state.machines[name].key
        if key.scope == f"zones/{zone}":
            return OperationFailure(
                code="RESOURCE_ALREADY_EXISTS", message=f"The resource '{key.path}' already exists", status=409
            )
        raise invalid("resource.name", name, "The embedded cloud takes a name in one zone only; choose another.")
    machine_type = last(properties["machineType"])
    if not is_machine_type(state, zone, machine_type):
        path = f"projects/{PROJECT}/zones/{zone}/machineTypes/{machine_type}"
        return OperationFailure(code="RESOURCE_NOT_FOUND", message=f"The resource '{path}' was not found", status=404)
    use = use_of(zone, machine_type, properties)
    reservation = claim(state, zone, properties, machine_type)
    if isinstance(reservation, OperationFailure):
        return reservation
    if reservation is None:
        refusal = state.capacity.refusal(use, [m.use for m in state.machines.values() if m.status in OCCUPIES])
        if refusal is not None:
            return refusal
    taken = disks.refusal(state, properties)
    if taken is not None:
        return taken
    subnetwork = _subnetwork(state, properties)
    address = state.give_address(subnetwork)
    row = state.store.add(Key(f"zones/{zone}", "instances", name), _row(state, zone, properties), now)
    row["networkInterfaces"] = [_interface(subnetwork, address, properties)]
    row["disks"] = disks.described(state, row, zone)
    row["status"] = "PROVISIONING"
    found = Machine(row=row, zone=zone, address=address, group=group, reservation=reservation)
    state.machines[name] = found
    state.billing_log.open(_stay(found, now))
    return found


def _row(state: GoogleState, zone: str, properties: Row) -> Row:
    link = state.store.url(f"projects/{PROJECT}/zones/{zone}/machineTypes/{last(properties['machineType'])}")
    labels = dict(properties.get("labels", {}))
    metadata = dict(properties.get("metadata", {}))
    scheduling = {
        "onHostMaintenance": "MIGRATE",
        "automaticRestart": True,
        "preemptible": False,
        "provisioningModel": "STANDARD",
        **properties.get("scheduling", {}),
    }
    accounts: list[Row] = [{"scopes": [], **account} for account in properties.get("serviceAccounts", ())]
    return {
        **properties,
        "machineType": link,
        "labels": labels,
        "labelFingerprint": fingerprint(labels),
        "metadata": {"kind": "compute#metadata", "fingerprint": fingerprint(metadata), **metadata},
        "scheduling": scheduling,
        "serviceAccounts": accounts,
        "cpuPlatform": "Intel Cascade Lake",
        "tags": {"fingerprint": fingerprint(properties.get("tags", {})), **properties.get("tags", {})},
        "deletionProtection": bool(properties.get("deletionProtection", False)),
        "startRestricted": False,
        "fingerprint": fingerprint(properties),
    }


def _subnetwork(state: GoogleState, properties: Row) -> Row:
    wanted = properties["networkInterfaces"][0]
    link = wanted.get("subnetwork")
    if link:
        key = key_of(link)
        found = state.store.find(key) if key else None
        if found is None:
            raise not_found(link)
        return found
    network = last(wanted.get("network", "default"))
    for _, row in state.store.all("subnetworks", f"regions/{REGION}"):
        if last(row["network"]) == network:
            return row
    raise invalid(
        "resource.networkInterfaces[0]", network, "Subnetwork should be specified for custom subnetmode network"
    )


def _interface(subnetwork: Row, address: str, properties: Row) -> Row:
    asked = properties["networkInterfaces"][0]
    return {
        "kind": "compute#networkInterface",
        "name": "nic0",
        "stackType": "IPV4_ONLY",
        **asked,
        "network": subnetwork["network"],
        "subnetwork": subnetwork["selfLink"],
        "networkIP": address,
        "fingerprint": fingerprint(address),
    }


def _stay(found: Machine, now: datetime) -> BilledRun:
    return BilledRun(
        instance=found.name,
        machine_type=found.machine_type,
        zone=found.zone,
        capacity_type=found.bought_as,
        group=found.group[1] if found.group else None,
        pool=found.labels.get(tags.label(tags.POOL)),
        reservation=found.reservation,
        launched=now,
    )


def created_by(group: tuple[str, str]) -> str:
    """The metadata that a group adds to its instances."""
    return f"projects/{PROJECT_NUMBER}/{group[0]}/instanceGroupManagers/{group[1]}"


# Lifecycle.


def begin_stop(state: GoogleState, found: Machine, why: str, *, delete: bool) -> None:
    """Start to shut down; `advance` completes it when the machine has ended."""
    found.deleting = found.deleting or delete
    if found.status in ("STOPPING", "TERMINATED"):
        return
    found.row["status"] = "STOPPING"
    found.row["lastStopTimestamp"] = stamp(state.now())
    found.why = why
    state.billing_log.close(found.name, state.now(), why)
    state.hardware.end(found.name)


def start(state: GoogleState, found: Machine) -> OperationFailure | None:
    """Start a stopped instance again, or return the capacity error."""
    refusal = state.capacity.refusal(found.use, [m.use for m in state.machines.values() if m.status in OCCUPIES])
    if refusal is not None:
        return refusal
    now = state.now()
    found.row["status"] = "PROVISIONING"
    found.preempted_at, found.is_preempted = None, False
    state.billing_log.open(_stay(found, now))
    return None


def preempt(state: GoogleState, found: Machine, notice: timedelta) -> None:
    """Announce the preemption of a spot instance, in its metadata and the list of operations."""
    found.preempted_at, found.is_preempted = state.now() + notice, True
    state.operations.happened(
        found.key.scope,
        "compute.instances.preempted",
        found.key.path,
        found.uid,
        "Instance was preempted.",
    )
    state.hardware.changed(found.name)


def notice_of(found: Machine) -> timedelta:
    """Time from the preemption notice to the end: the notice of its template, and the shutdown period."""
    asked_for: Row = found.row["scheduling"].get("preemptionNoticeDuration", {})
    return timedelta(seconds=int(asked_for.get("seconds", 0))) + SHUTDOWN_TAKES


def maintain(state: GoogleState, found: Machine) -> None:
    """A maintenance event: announced in the metadata; then an instance without live migration is restarted."""
    found.maintenance_until = state.now() + MAINTENANCE_TAKES
    state.hardware.changed(found.name)


def advance(state: GoogleState, found: Machine, now: datetime) -> None:
    """Advance the instance by the present state of its machine."""
    match found.status:
        case "PROVISIONING" | "STAGING" if _is_taken(found, now):
            _end_preempted(state, found)
        case "PROVISIONING" | "STAGING":
            _boot(state, found, now)
        case "RUNNING":
            _look(state, found, now)
        case "STOPPING" if not state.hardware.is_alive(found.name):
            _finish(state, found)
        case "TERMINATED" if found.deleting:
            _finish(state, found)
        case _:
            pass


def _boot(state: GoogleState, found: Machine, now: datetime) -> None:
    if found.status == "STAGING" and state.hardware.is_alive(found.name):
        found.row["status"] = "RUNNING"
        found.row["lastStartTimestamp"] = stamp(now)
        _limit_run(found, now)
        return
    if found.status == "STAGING":
        begin_stop(state, found, "the machine did not start", delete=False)
        return
    found.row["status"] = "STAGING"
    try:
        state.hardware.start(found)
    except OSError as error:
        found.row["statusMessage"] = f"Internal error on launch: {error}"
        begin_stop(state, found, f"internal error: {error}", delete=False)


def _limit_run(found: Machine, now: datetime) -> None:
    """Set the end of a limited run; Compute Engine counts it from RUNNING."""
    if limit := found.row["scheduling"].get("maxRunDuration"):
        ends = now + timedelta(seconds=int(limit["seconds"]))
        found.row["resourceStatus"] = {"scheduling": {"terminationTimestamp": stamp(ends)}}


def _look(state: GoogleState, found: Machine, now: datetime) -> None:
    if found.ends_at is not None and now >= found.ends_at:
        _run_is_over(state, found)
    elif _is_taken(found, now):
        _end_preempted(state, found)
    elif found.maintenance_until is not None and now >= found.maintenance_until:
        found.maintenance_until = None
        state.hardware.changed(found.name)
        if found.row["scheduling"].get("onHostMaintenance") == "TERMINATE":
            state.operations.happened(
                found.key.scope,
                "compute.instances.hostError",
                found.key.path,
                found.uid,
                "Instance terminated by host",
            )
            begin_stop(state, found, "maintenance", delete=False)
    elif not state.hardware.is_alive(found.name):
        # the guest has powered off
        state.operations.happened(
            found.key.scope,
            "compute.instances.guestTerminate",
            found.key.path,
            found.uid,
            "Instance terminated by guest OS shutdown.",
        )
        begin_stop(state, found, "guest shutdown", delete=False)


def _is_taken(found: Machine, now: datetime) -> bool:
    return found.preempted_at is not None and now >= found.preempted_at


def _end_preempted(state: GoogleState, found: Machine) -> None:
    action = found.row["scheduling"].get("instanceTerminationAction", "STOP")
    begin_stop(state, found, "preempted", delete=action == "DELETE")


def _run_is_over(state: GoogleState, found: Machine) -> None:
    """End a limited run: stop or delete the instance, as it specifies."""
    action = found.row["scheduling"].get("instanceTerminationAction", "STOP")
    target = (found.key.scope, action.lower(), found.key.path, found.uid)
    state.operations.happened(*target, "The instance's maximum run duration is over.")
    begin_stop(state, found, RUN_IS_OVER, delete=action == "DELETE")


def _finish(state: GoogleState, found: Machine) -> None:
    if not found.deleting:
        found.row["status"] = "TERMINATED"
        return
    state.store.remove(found.key)
    del state.machines[found.name]
    state.hardware.forget(found.name, found.uid)
