"""Reservations: which one an instance takes a place in, and how they are shown."""

from typing import Any

from localcloud.gcp.capacity import no_room
from localcloud.gcp.machine import OCCUPIES, is_spot
from localcloud.gcp.operations import Failure
from localcloud.gcp.store import Key, Row, last
from localcloud.gcp.world import World


def claim(world: World, zone: str, properties: Row, machine_type: str) -> str | Failure | None:
    """The reservation that the instance consumes; None: none; or why the one it names cannot be used."""
    affinity = properties.get("reservationAffinity", {})
    kind = affinity.get("consumeReservationType", "ANY_RESERVATION")
    if kind == "NO_RESERVATION" or is_spot(properties):
        return None
    if kind == "SPECIFIC_RESERVATION":
        name = last((affinity.get("values") or [""])[0])
        row = world.store.find(Key(f"zones/{zone}", "reservations", name))
        if row is None or not _fits(row, machine_type):
            message = f"Specified reservation '{name}' does not exist or does not fit the instance in zone {zone}."
            return Failure(code="INVALID_RESERVATION", message=message)
        if in_use(world, name, zone) >= int(row["specificReservation"]["count"]):
            found = no_room(zone)
            message = (
                f"Specified reservation '{name}' does not have available resources for the request. {found.message}"
            )
            return Failure(code=found.code, message=message, status=503, status_message=found.status_message)
        return name
    for key, row in world.store.all("reservations", f"zones/{zone}"):
        free = int(row["specificReservation"]["count"]) - in_use(world, key.name, zone)
        if free > 0 and not row.get("specificReservationRequired") and _fits(row, machine_type):
            return key.name
    return None


def _fits(reservation: Row, machine_type: str) -> bool:
    wanted = reservation.get("specificReservation", {}).get("instanceProperties", {}).get("machineType", "")
    return last(wanted) == machine_type


def in_use(world: World, reservation: str, zone: str) -> int:
    """Instances that run in a reservation."""
    return sum(
        m.reservation == reservation and m.zone == zone and m.status in OCCUPIES for m in world.machines.values()
    )


def reserved_row(world: World, key: Key, row: Row) -> Row:
    """A reservation with the number of its instances in use."""
    used = in_use(world, key.name, key.scope.rpartition("/")[2])
    specific: dict[str, Any] = {**row["specificReservation"], "inUseCount": str(used)}
    specific.setdefault("assuredCount", specific["count"])
    return {**row, "specificReservation": specific, "status": "READY"}
