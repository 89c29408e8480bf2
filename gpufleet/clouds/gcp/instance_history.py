"""How Compute Engine's instances live, and what capacity is paid for."""

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
    """The instances of an environment. Compute Engine lists none that was deleted: its operations tell of them."""

    def history(self) -> InstanceHistory:
        """All of them; what cannot be read fails alone. Raises CloudError when a page or a zone fails."""
        found = self.listed()
        return InstanceHistory(records=tuple(map(self._life, found.instances)), errors=found.errors)

    def _life(self, instance: Instance) -> InstanceRecord:
        # groups start none again: another machine may begin anew under the same time of creation
        over = not instance.alive and instance.group is not None
        return InstanceRecord(instance=instance, ended_at=self._stopped_at.get(instance.id) if over else None)

    def endings(self, zones: Collection[str]) -> Sequence[InstanceEnd]:
        """Ends that the operations of these zones tell of (Google keeps them for two weeks). Raises CloudError."""
        wanted = " OR ".join(f"(operationType={kind})" for kind in sorted(ENDS))
        lives: dict[tuple[str, int], list[Any]] = {}
        for zone in sorted(zones):
            for operation in self._calls.pages("zone_operations", "list", zone=zone, filter=wanted, max_results=PAGE):
                # a group makes an instance anew under the same name: the number tells its lives apart
                if instance := instance_of(operation):
                    lives.setdefault((instance, int(operation.target_id)), []).append(operation)
        return tuple(ending(instance, told) for (instance, _), told in lives.items())

    def paid(self) -> Sequence[PaidCapacity]:
        """Reservations of the region. Raises CloudError when a page or a zone of it fails."""
        found: list[PaidCapacity] = []
        for place, scoped in self._calls.pages("reservations", "aggregated_list"):
            check(place, scoped, self._region)
            zone = str(place).rsplit("/", 1)[-1]
            if zone.rpartition("-")[0] == self._region:
                found += [self._paid(raw, zone) for raw in scoped.reservations if raw.status in _PAID]
        return tuple(found)

    def used_by(self, reservation: str) -> None:
        """Compute Engine tells how many instances run in a reservation, and not of which projects."""
        del reservation

    def _paid(self, raw: Any, zone: str) -> PaidCapacity:
        ends, count = raw.delete_at_time, int(raw.specific_reservation.count)
        return PaidCapacity(
            cloud=Cloud.GCP,
            reservation=raw.name,
            region=self._region,
            zone=zone,
            machine_type=raw.specific_reservation.instance_properties.machine_type.rsplit("/", 1)[-1],
            instances=count,
            available=max(0, count - int(raw.specific_reservation.in_use_count)),
            started_at=datetime.fromisoformat(raw.creation_timestamp).astimezone(UTC),
            ends_at=datetime.fromisoformat(ends).astimezone(UTC) if ends else None,
        )


class NoPriceSource:
    """Google's prices move at most once a day, and are read by `gpufleet prices refresh`: a pass asks for none."""

    def prices(self, machine_types: Sequence[str], since: datetime, until: datetime) -> Sequence[Price]:
        """Nothing."""
        del machine_types, since, until
        return ()
