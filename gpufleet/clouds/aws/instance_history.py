"""History of EC2 instances, and paid capacity reservations."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gpufleet.clouds.aws.calls import NOT_ALLOWED, AwsCalls
from gpufleet.clouds.aws.inventory import FILTERED, GROUP_TAG, AwsInventory, one_by_one
from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError
from gpufleet.domain.instance_history import InstanceEnd, InstanceHistory, InstanceRecord, PaidCapacity
from gpufleet.domain.model import Cloud
from gpufleet.domain.ownership import NO_GROUPS, OwnedGroup

_WHEN: Final = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
_PAID_STATES: Final = frozenset({"active", "expired"})
"""States of reservations that are paid, or were paid until their end date.

EC2 still lists a cancelled reservation, but not the time of the cancellation. It counts as paid until the last time
that it was seen active.
"""


class AwsInstanceHistory(AwsInventory):
    """The instances of an environment, including terminated ones while EC2 lists them (about an hour).

    Members of its groups count without its tag, too: instances of an adopted group cost money.
    """

    def __init__(
        self, calls: AwsCalls, region: str, environment: str, groups: Mapping[str, OwnedGroup] = NO_GROUPS
    ) -> None:
        super().__init__(calls, region, environment, groups)
        self._filters = [{"Name": f"tag:{tags.ENVIRONMENT}", "Values": [environment]}]

    def history(self) -> InstanceHistory:
        """Records of all instances, and an error for each unreadable one. Raises CloudError if a page fails."""
        found, errors = one_by_one((*self._listed(self._filters), *self._untagged_members()), self._record)
        return InstanceHistory(records=found, errors=errors)

    def _untagged_members(self) -> Iterator[Mapping[str, Any]]:
        """Members of the groups that have the tag of no environment."""
        names = sorted(self._groups)
        for start in range(0, len(names), FILTERED):
            of_groups = [{"Name": f"tag:{GROUP_TAG}", "Values": names[start : start + FILTERED]}]
            for raw in self._listed(of_groups):
                written = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())}
                if tags.ENVIRONMENT not in written and written.get(GROUP_TAG) in self._groups:
                    yield raw

    def _record(self, raw: Mapping[str, Any]) -> InstanceRecord:
        return InstanceRecord(instance=self._instance(raw), ended_at=ended_at(raw))

    def endings(self, zones: Collection[str]) -> Sequence[InstanceEnd]:
        """Always empty: EC2 reports a termination only with the instance itself, while it lists the instance."""
        del zones
        return ()

    def paid(self) -> Sequence[PaidCapacity]:
        """Paid capacity reservations of the region. Raises CloudError if a page fails."""
        rows = self._calls.pages("ec2", "describe_capacity_reservations", "CapacityReservations")
        return tuple(self._paid(raw) for raw in rows if raw["State"] in _PAID_STATES)

    def used_by(self, reservation: str) -> Mapping[str, int] | None:
        """Number of instances in a reservation, by account; None if this account lacks the permission.

        EC2 reports the owner and each account that shares the reservation (API reference:
        GetCapacityReservationUsage). Raises CloudError.
        """
        found: dict[str, int] = {}
        more: dict[str, str] = {}
        try:
            while True:
                answer = self._calls.one(
                    "ec2", "get_capacity_reservation_usage", CapacityReservationId=reservation, **more
                )
                found |= {one["AccountId"]: one["UsedInstanceCount"] for one in answer.get("InstanceUsages", ())}
                if not answer.get("NextToken"):
                    return found
                more = {"NextToken": answer["NextToken"]}
        except CloudError as error:
            if error.code in NOT_ALLOWED:
                return None
            raise

    def _paid(self, raw: Mapping[str, Any]) -> PaidCapacity:
        ends = raw.get("EndDate")
        return PaidCapacity(
            cloud=Cloud.AWS,
            reservation=raw["CapacityReservationId"],
            region=self._region,
            zone=raw["AvailabilityZone"],
            machine_type=raw["InstanceType"],
            instances=raw["TotalInstanceCount"],
            started_at=(raw.get("StartDate") or raw["CreateDate"]).astimezone(UTC),
            ends_at=None if ends is None else ends.astimezone(UTC),
            # an expired reservation has no available capacity and is no longer charged
            available=raw.get("AvailableInstanceCount") if raw["State"] == "active" else None,
            owner=raw.get("OwnerId"),
            is_block=raw.get("ReservationType") == "capacity-block",
        )


def ended_at(raw: Mapping[str, Any]) -> datetime | None:
    """When an instance began to stop or terminate, from its StateTransitionReason; None: it runs, or time unknown."""
    if raw["State"]["Name"] in ("pending", "running"):
        return None
    match = _WHEN.search(raw.get("StateTransitionReason") or "")
    if match is None:
        return None
    try:
        return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None  # not a valid date
