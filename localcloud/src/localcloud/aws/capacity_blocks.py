"""Capacity Blocks: capacity bought ahead for a time, begun and ended by the cloud. moto has none.

As AWS documents them (User Guide, "Capacity Blocks for ML"): 1 to 64 instances, for 1 to 14 days by the day or up to
182 days by the week, up to eight weeks ahead, six offerings at most; a block ends at 11:30 UTC and its instances
begin to be terminated 30 minutes before; one event announces its start, another one its end ten minutes ahead.
It cannot be cancelled or changed. Assumptions: the fee (60 % of the list price), and immediate payment.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from moto.core.responses import ActionResult
from moto.ec2.models import EC2Backend
from moto.ec2.responses._base_response import EC2BaseResponse
from moto.ec2.utils import convert_tag_spec

from localcloud.addresses import ZONES
from localcloud.aws.events import Event, put
from localcloud.aws.instances import shown_instances
from localcloud.aws.reservations import CapacityReservation, ReservationError, of
from localcloud.aws.spot_prices import ON_DEMAND
from localcloud.aws.termination import BLOCK_OVER
from localcloud.documents import items

SOLD: Final = ("p4d.", "p4de.", "p5.", "p5e.", "p5en.", "p6-b200.", "p6-b300.")
"""Beginnings of the GPU types with the usage class `capacity-block` (EC2's DescribeInstanceTypes)."""
ENDS_AT: Final = time(11, 30, tzinfo=UTC)
ENDS_EARLY: Final = timedelta(minutes=30)
WARNED_BEFORE: Final = timedelta(minutes=40)
_AHEAD: Final = timedelta(weeks=8)
_MAX_INSTANCES: Final = 64
_MAX_OFFERINGS: Final = 6
_SHARE: Final = Decimal("0.6")
_LIST_USD: Final = Decimal(60)
"""Of a type whose list price the embedded cloud does not know."""


class BlockCalls(EC2BaseResponse):
    """The EC2 operations on Capacity Blocks."""

    def describe_capacity_block_offerings(self) -> ActionResult:
        params = self._get_params()
        kind, count = str(params.get("InstanceType") or ""), int(params.get("InstanceCount") or 1)
        hours = _hours(params.get("CapacityDurationHours"))
        if not kind.startswith(SOLD):
            raise ReservationError("InvalidParameterValue", f"Value ({kind}) for parameter instanceType is invalid.")
        if not 1 <= count <= _MAX_INSTANCES:
            raise ReservationError(
                "InvalidParameterValue", f"Value ({count}) for parameter instanceCount is invalid."
            )
        now = datetime.now(UTC)
        earliest = max(_moment(params.get("StartDateRange")) or now, now)
        latest = min(_moment(params.get("EndDateRange")) or now + _AHEAD + hours, now + _AHEAD + hours)
        found = [offering for offering in _offerings(kind, count, hours, earliest) if offering["EndDate"] <= latest]
        return ActionResult({"CapacityBlockOfferings": found[:_MAX_OFFERINGS]})

    def purchase_capacity_block(self) -> ActionResult:
        params = self._get_params()
        offering = _offered(str(params.get("CapacityBlockOfferingId") or ""))
        if not params.get("InstancePlatform"):
            raise ReservationError("MissingParameter", "The request must contain the parameter instancePlatform")
        self.error_on_dryrun()
        wanted = {
            "InstanceType": offering["InstanceType"],
            "InstancePlatform": params["InstancePlatform"],
            "InstanceMatchCriteria": "targeted",
            "EndDateType": "limited",
            "EndDate": offering["EndDate"],
            "CapacityBlock": True,
        }
        count = offering["InstanceCount"]
        made: Any = CapacityReservation(self.ec2_backend, wanted, offering["AvailabilityZone"], count)
        made.start_date, made.state = offering["StartDate"], "scheduled"
        of(self.ec2_backend).by_id[made.id] = made
        made.add_tags(convert_tag_spec(params.get("TagSpecifications") or []).get("capacity-reservation", {}))
        return ActionResult({"CapacityReservation": made.as_result(), "CapacityBlocks": [_block(made)]})

    def describe_capacity_blocks(self) -> ActionResult:
        wanted = items(self._get_params(), "CapacityBlockIds")
        blocks = [_block(one) for one in of(self.ec2_backend).by_id.values() if one.is_block]
        return ActionResult({"CapacityBlocks": [b for b in blocks if not wanted or b["CapacityBlockId"] in wanted]})


def advance_blocks(ec2: EC2Backend, now: datetime) -> None:
    """Start and end blocks. The termination of a block's instances starts half an hour before its end."""
    for block in of(ec2).by_id.values():
        if not block.is_block or block.end_date is None or block.state == "expired":
            continue
        if block.state == "scheduled" and now >= block.start_date:
            block.state = "active"
            _announce(Event.BLOCK_DELIVERED, block, now)
        if now >= block.end_date - WARNED_BEFORE and not block.warned:
            block.warned = True
            _announce(Event.BLOCK_EXPIRES, block, now)
        block.is_open = now < block.end_date - ENDS_EARLY
        if not block.is_open:
            for instance in shown_instances(ec2):
                if instance.capacity_reservation_id == block.id and instance.state in ("pending", "running"):
                    instance.begin_end(BLOCK_OVER)
        if now >= block.end_date:
            block.state = "expired"


def move(ec2: EC2Backend, reservation: str, starts: Any, ends: Any) -> dict[str, Any]:
    """Change the term of a block. Raises ValueError for an unknown block or an invalid term."""
    found = of(ec2).by_id.get(reservation)
    if found is None or not found.is_block:
        raise ValueError(f"{reservation} is not a purchased Capacity Block")
    begin = datetime.fromisoformat(str(starts)) if starts else found.start_date
    end = datetime.fromisoformat(str(ends)) if ends else found.end_date
    if end is None or begin.tzinfo is None or end.tzinfo is None or begin >= end:
        raise ValueError(
            f"starts, ends: expected two times such as 2026-12-01T11:30:00+00:00 in order, got {starts} and {ends}"
        )
    found.start_date, found.end_date, found.state, found.warned = begin, end, "scheduled", False
    return {"reservation": found.id, "starts": begin.isoformat(), "ends": end.isoformat()}


def _announce(event: Event, block: CapacityReservation, now: datetime) -> None:
    ends = block.end_date.isoformat() if block.end_date else None
    put(event, f"capacity-reservation/{block.id}", {"capacity-reservation-id": block.id, "end-date": ends}, now)


def _hours(value: Any) -> timedelta:
    hours = int(value or 0)
    days, rest = divmod(hours, 24)
    if rest or not (1 <= days <= 14 or (days % 7 == 0 and days <= 182)) or days < 1:
        raise ReservationError(
            "InvalidParameterValue",
            f"Value ({hours}) for parameter capacityDurationHours is invalid. Durations are 1 to 14 days, or up"
            " to 182 days in weeks.",
        )
    return timedelta(hours=hours)


def _offerings(kind: str, count: int, length: timedelta, earliest: datetime) -> Iterator[dict[str, Any]]:
    """One offering per day, in alternating zones; each starts and ends at 11:30 UTC."""
    first = datetime.combine(earliest.date(), ENDS_AT)
    for day in range(int(_AHEAD / timedelta(days=1))):
        starts = first + timedelta(days=day)
        if starts >= earliest:
            yield _offering(kind, count, length, starts)


def _offering(kind: str, count: int, length: timedelta, starts: datetime) -> dict[str, Any]:
    hours = int(length / timedelta(hours=1))
    fee = ON_DEMAND.get(kind, _LIST_USD) * _SHARE * count * hours
    return {
        # the id holds all fields of the offering, so that the purchase needs no stored offerings
        "CapacityBlockOfferingId": f"cb-{kind.replace('.', '_')}-{count}-{hours}-{int(starts.timestamp())}",
        "InstanceType": kind,
        "AvailabilityZone": ZONES[starts.toordinal() % len(ZONES)],
        "InstanceCount": count,
        "StartDate": starts,
        "EndDate": starts + length,
        "CapacityBlockDurationHours": hours,
        "UpfrontFee": f"{fee:.4f}",
        "CurrencyCode": "USD",
        "Tenancy": "default",
    }


def _offered(offering_id: str) -> dict[str, Any]:
    try:
        kind, count, hours, starts = offering_id.removeprefix("cb-").rsplit("-", 3)
        return _offering(
            kind.replace("_", "."),
            int(count),
            timedelta(hours=int(hours)),
            datetime.fromtimestamp(int(starts), UTC),
        )
    except ValueError as error:
        raise ReservationError(
            "InvalidCapacityBlockOfferingId.NotFound", f"The Capacity Block offering '{offering_id}' does not exist"
        ) from error


def _block(reservation: CapacityReservation) -> Mapping[str, Any]:
    shown = reservation.as_result()
    return {
        **{key: shown[key] for key in ("CapacityBlockId", "AvailabilityZone", "StartDate", "EndDate", "CreateDate")},
        "CapacityReservationIds": [reservation.id],
        "State": shown["State"],
        "Tags": shown["Tags"],
    }


def _moment(value: datetime | str | None) -> datetime | None:
    if value is None:
        return None
    moment = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
