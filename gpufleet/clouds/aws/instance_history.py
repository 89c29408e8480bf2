"""How EC2 instances lived and ended, and what capacity is paid for."""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.inventory import AwsInventory, each_alone
from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError
from gpufleet.domain.instance_history import InstanceEnd, InstanceHistory, InstanceRecord, PaidCapacity
from gpufleet.domain.model import Cloud
from gpufleet.domain.ownership import NO_GROUPS, OwnedGroup

_WHEN: Final = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
_NOT_ALLOWED: Final = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
_PAID_STATES: Final = frozenset({"active", "expired"})
"""Of reservations that are paid for, or were until their end date. EC2 goes on listing a cancelled one and does not
say since when it is: it is paid until the last look that saw it active."""


class AwsInstanceHistory(AwsInventory):
    """The instances of an environment, terminated ones included as long as EC2 shows them (about an hour)."""

    def __init__(
        self, calls: AwsCalls, region: str, environment: str, groups: Mapping[str, OwnedGroup] = NO_GROUPS
    ) -> None:
        super().__init__(calls, region, environment, groups)
        self._filters = [{"Name": f"tag:{tags.ENVIRONMENT}", "Values": [environment]}]

    def history(self) -> InstanceHistory:
        """All of them; what cannot be read fails alone. Raises CloudError when a page fails."""
        found, errors = each_alone(self._listed(self._filters), self._life)
        return InstanceHistory(records=found, errors=errors)

    def _life(self, raw: Mapping[str, Any]) -> InstanceRecord:
        return InstanceRecord(instance=self._instance(raw), ended_at=ended_at(raw))

    def endings(self, zones: Collection[str]) -> Sequence[InstanceEnd]:
        """None: EC2 tells of an end with the instance itself, and knows nothing of one that it lists no more."""
        del zones
        return ()

    def paid(self) -> Sequence[PaidCapacity]:
        """Capacity reservations of the region. Raises CloudError when a page fails."""
        rows = self._calls.pages("ec2", "describe_capacity_reservations", "CapacityReservations")
        return tuple(self._paid(raw) for raw in rows if raw["State"] in _PAID_STATES)

    def used_by(self, reservation: str) -> Mapping[str, int] | None:
        """Account to how many instances it runs in a reservation; None: this account may not ask.

        EC2 tells of the owner and of each account that it is shared with (its API reference:
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
            if error.code in _NOT_ALLOWED:
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
            # one that expired is not available, and not charged any more
            available=raw.get("AvailableInstanceCount") if raw["State"] == "active" else None,
        )


def ended_at(raw: Mapping[str, Any]) -> datetime | None:
    """When EC2 says that an instance began to end: the time in its StateTransitionReason."""
    if raw["State"]["Name"] in ("pending", "running"):
        return None
    match = _WHEN.search(raw.get("StateTransitionReason") or "")
    if match is None:
        return None
    try:
        return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None  # no such day: it says nothing
