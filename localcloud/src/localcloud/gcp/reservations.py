"""Reservations: which one an instance uses, and their resources."""

from typing import Any

from localcloud.gcp.machine import OCCUPIES, is_spot
from localcloud.gcp.operations import OperationFailure
from localcloud.gcp.state import GoogleState
from localcloud.gcp.store import Key, Row, last


def claim(state: GoogleState, zone: str, properties: Row, machine_type: str) -> str | OperationFailure | None:
    """The reservation that the instance uses, None, or the error of the one that it names."""
    affinity = properties.get("reservationAffinity", {})
    kind = affinity.get("consumeReservationType", "ANY_RESERVATION")
    if kind == "NO_RESERVATION" or is_spot(properties):
        return None
    if kind == "SPECIFIC_RESERVATION":
        name = last((affinity.get("values") or [""])[0])
        row = state.store.find(Key(f"zones/{zone}", "reservations", name))
        if row is None:
            return _refused(f"Specified reservation '{name}' does not exist.")
        full = in_use(state, name, zone) >= int(row["specificReservation"]["count"])
        if full or not _fits(row, machine_type):
            return _refused(f"Specified reservation '{name}' does not have available resources for the request.")
        return name
    for key, row in state.store.all("reservations", f"zones/{zone}"):
        free = int(row["specificReservation"]["count"]) - in_use(state, key.name, zone)
        if free > 0 and not row.get("specificReservationRequired") and _fits(row, machine_type):
            return key.name
    return None


def _refused(message: str) -> OperationFailure:
    return OperationFailure(
        code="CONDITION_NOT_MET", message=message, status=412, status_message="PRECONDITION FAILED"
    )


def _fits(reservation: Row, machine_type: str) -> bool:
    wanted = reservation.get("specificReservation", {}).get("instanceProperties", {}).get("machineType", "")
    return last(wanted) == machine_type


def in_use(state: GoogleState, reservation: str, zone: str) -> int:
    """The number of instances that run in a reservation."""
    return sum(
        m.reservation == reservation and m.zone == zone and m.status in OCCUPIES for m in state.machines.values()
    )


def reserved_row(state: GoogleState, key: Key, row: Row) -> Row:
    """A reservation with the number of its instances in use."""
    used = in_use(state, key.name, key.scope.rpartition("/")[2])
    specific: dict[str, Any] = {**row["specificReservation"], "inUseCount": str(used)}
    specific.setdefault("assuredCount", specific["count"])
    return {**row, "specificReservation": specific, "status": "READY"}
