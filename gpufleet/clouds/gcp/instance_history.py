"""History of Compute Engine instances, and paid reservations."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gpufleet.clouds.gcp.group_lists import check
from gpufleet.clouds.gcp.inventory import GoogleInventory
from gpufleet.clouds.gcp.operations import ENDS, PAGE, ending, instance_of
from gpufleet.domain.instance_history import InstanceEnd, InstanceHistory, InstanceRecord, PaidCapacity
from gpufleet.domain.model import Cloud, Instance
from gpufleet.domain.prices import Price

_PAID: Final = frozenset({"READY", "UPDATING"})


class GoogleInstanceHistory(GoogleInventory):
    """The instances of an environment. Compute Engine does not list deleted ones; operations report their ends."""

    def history(self) -> InstanceHistory:
        """Records of all instances, and an error for each unreadable one.

        Raises CloudError if a page or a zone fails.
        """
        found = self.listed()
        return InstanceHistory(records=tuple(map(self._record, found.instances)), errors=found.errors)

    def _record(self, instance: Instance) -> InstanceRecord:
        # only group members have a final end: any other machine may start again with the same creation time
        over = not instance.alive and instance.group is not None
        return InstanceRecord(instance=instance, ended_at=self._stopped_at.get(instance.id) if over else None)

    def endings(self, zones: Collection[str]) -> Sequence[InstanceEnd]:
        """Ends of instances, from the operations of these zones. Google keeps operations for two weeks.

        Raises CloudError.
        """
        wanted = " OR ".join(f"(operationType={kind})" for kind in sorted(ENDS))
        by_instance: dict[tuple[str, int], list[Any]] = {}
        for zone in sorted(zones):
            for operation in self._calls.pages("zone_operations", "list", zone=zone, filter=wanted, max_results=PAGE):
                # a group may recreate an instance with the same name; the numeric id distinguishes both
                if instance := instance_of(operation):
                    by_instance.setdefault((instance, int(operation.target_id)), []).append(operation)
        return tuple(ending(instance, operations) for (instance, _), operations in by_instance.items())

    def paid(self) -> Sequence[PaidCapacity]:
        """Reservations of the region. Raises CloudError if a page or a zone of the region fails."""
        found: list[PaidCapacity] = []
        for place, scoped in self._calls.pages("reservations", "aggregated_list"):
            check(place, scoped, self._region)
            zone = str(place).rsplit("/", 1)[-1]
            if zone.rpartition("-")[0] == self._region:
                found += [paid_capacity(raw, zone) for raw in scoped.reservations if is_paid(raw)]
        return tuple(found)

    def used_by(self, reservation: str) -> None:
        """Always None: Compute Engine reports the number of instances in a reservation, but not their projects."""
        del reservation


def is_paid(raw: Any) -> bool:
    """Whether Google charges a reservation."""
    return raw.status in _PAID


def paid_capacity(raw: Any, zone: str) -> PaidCapacity:
    """Read a reservation. Raises ValueError for invalid times."""
    ends, count = raw.delete_at_time, int(raw.specific_reservation.count)
    return PaidCapacity(
        cloud=Cloud.GCP,
        reservation=raw.name,
        region=zone.rpartition("-")[0],
        zone=zone,
        machine_type=raw.specific_reservation.instance_properties.machine_type.rsplit("/", 1)[-1],
        instances=count,
        available=max(0, count - int(raw.specific_reservation.in_use_count)),
        started_at=datetime.fromisoformat(raw.creation_timestamp).astimezone(UTC),
        ends_at=datetime.fromisoformat(ends).astimezone(UTC) if ends else None,
    )


class NoPriceSource:
    """Price source without prices. Google's prices change at most once a day, so `gpufleet prices refresh` reads them
    and watchdog runs do not.
    """

    def prices(self, machine_types: Sequence[str], since: datetime, until: datetime) -> Sequence[Price]:
        """Return no prices."""
        del machine_types, since, until
        return ()
