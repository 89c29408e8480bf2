"""On-demand capacity reservations, which moto does not have."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.responses._base_response import EC2BaseResponse
from moto.ec2.utils import convert_tag_spec
from moto.moto_api._internal import mock_random

from localcloud.aws.capacity import Use
from localcloud.aws.instances import shown_instances
from localcloud.aws.refusals import RESERVATION_FULL, Refusal, Shortage
from localcloud.aws.state import AwsState
from localcloud.capacity_kind import Kind
from localcloud.documents import inner, items


class ReservationError(EC2ClientError):
    """An error of the reservations API, by EC2's code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)


class CapacityReservation(TaggedEC2Resource):
    """Capacity that is paid for whether used or not."""

    def __init__(self, backend: EC2Backend, wanted: Mapping[str, Any], zone: str, count: int) -> None:
        self.ec2_backend = backend
        self.id = f"cr-{mock_random.get_random_hex(17)}"
        self.wanted = wanted
        self.instance_type: str = wanted["InstanceType"]
        self.availability_zone = zone
        self.total_instance_count = count
        self.state = "active"
        self.create_date = utcnow()
        self.start_date: datetime = self.create_date
        self.end_date: datetime | None = _end(wanted)
        self.tags = dict[str, str]()
        self.used_by_others = dict[str, int]()
        """Account that shares it -> number of instances that this account runs in it."""
        # of a Capacity Block alone
        self.is_open = True
        self.warned = False

    @property
    def used(self) -> int:
        return self.used_by_owner + sum(self.used_by_others.values())

    @property
    def used_by_owner(self) -> int:
        return sum(
            1
            for instance in shown_instances(self.ec2_backend)
            if instance.capacity_reservation_id == self.id and instance.state in ("pending", "running")
        )

    @property
    def is_block(self) -> bool:
        """Whether it is a Capacity Block: bought in advance for a period, started and ended by the cloud."""
        return bool(self.wanted.get("CapacityBlock"))

    @property
    def is_targeted(self) -> bool:
        return self.wanted.get("InstanceMatchCriteria", "open") == "targeted"

    def as_result(self) -> dict[str, Any]:
        account, region = self.ec2_backend.account_id, self.ec2_backend.region_name
        return {
            "CapacityReservationId": self.id,
            "OwnerId": account,
            "CapacityReservationArn": f"arn:aws:ec2:{region}:{account}:capacity-reservation/{self.id}",
            "InstanceType": self.instance_type,
            "InstancePlatform": self.wanted.get("InstancePlatform", "Linux/UNIX"),
            "AvailabilityZone": self.availability_zone,
            "Tenancy": self.wanted.get("Tenancy", "default"),
            "TotalInstanceCount": self.total_instance_count,
            "AvailableInstanceCount": max(0, self.total_instance_count - self.used) if self.state == "active" else 0,
            "EbsOptimized": bool(self.wanted.get("EbsOptimized", False)),
            "EphemeralStorage": bool(self.wanted.get("EphemeralStorage", False)),
            "State": self.state,
            "StartDate": self.start_date,
            "EndDate": self.end_date,
            "EndDateType": self.wanted.get("EndDateType", "unlimited"),
            "InstanceMatchCriteria": self.wanted.get("InstanceMatchCriteria", "open"),
            "CreateDate": self.create_date,
            "Tags": self.get_tags(),
            "ReservationType": "capacity-block" if self.is_block else "default",
            "CapacityBlockId": f"cb-{self.id.removeprefix('cr-')}" if self.is_block else None,
            "PlacementGroupArn": self.wanted.get("PlacementGroupArn"),
        }


@dataclass(slots=True)
class Reservations:
    """All reservations of one region."""

    by_id: dict[str, CapacityReservation] = field(default_factory=dict[str, CapacityReservation])

    def get(self, reservation_id: str) -> CapacityReservation:
        """Raises ReservationError if no reservation has that id."""
        found = self.by_id.get(reservation_id)
        if found is None:
            raise ReservationError(
                "InvalidCapacityReservationId.NotFound",
                f"The capacity reservation '{reservation_id}' does not exist",
            )
        return found


def of(ec2: EC2Backend) -> Reservations:
    """The reservations of an EC2 backend."""
    found: Reservations = vars(ec2).setdefault("embedded_reservations", Reservations())
    return found


def _end(params: Mapping[str, Any]) -> datetime | None:
    """Parse an end time. A time without a zone is UTC; moto stores it as it was sent."""
    value = params.get("EndDate")
    if value is None:
        return None
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def expire(ec2: EC2Backend, now: datetime) -> None:
    """Close reservations at their end time. Their instances continue as on-demand. Blocks have separate rules."""
    for reservation in of(ec2).by_id.values():
        over = reservation.end_date is not None and now >= reservation.end_date
        if over and reservation.state == "active" and not reservation.is_block:
            reservation.state = "expired"


def claim(cloud_state: AwsState, ec2: EC2Backend, data: Mapping[str, Any], use: Use) -> str | Refusal | None:
    """The reservation that a launch of this template uses.

    None: none is meant. A refusal when the template targets one that is full, over, or of another zone or type.
    """
    wanted = inner(data, "CapacityReservationSpecification")
    target: str | None = inner(wanted, "CapacityReservationTarget").get("CapacityReservationId")
    known = of(ec2).by_id
    if target is not None:
        found = known.get(target)
        if found is None:
            return Refusal(
                code=Shortage.INVALID_RESERVATION, message=f"The capacity reservation '{target}' does not exist"
            )
        if found.is_block != wants_block(data):
            return _market(found)
        return target if _fits(found, use) else RESERVATION_FULL
    if wants_block(data):
        return _market(None)
    if use.kind is Kind.SPOT or wanted.get("CapacityReservationPreference") == "none":
        return None
    fitting = (found.id for found in known.values() if not found.is_targeted and _fits(found, use))
    return next(fitting, None)


def _fits(reservation: CapacityReservation, use: Use) -> bool:
    return (
        reservation.state == "active"
        and reservation.is_open
        and use.kind is Kind.ON_DEMAND
        and reservation.instance_type == use.machine_type
        and reservation.availability_zone == use.zone
        and reservation.used < reservation.total_instance_count
    )


def wants_block(data: Mapping[str, Any]) -> bool:
    """Whether a launch template requests capacity of a Capacity Block."""
    return bool(inner(data, "InstanceMarketOptions").get("MarketType") == "capacity-block")


def _market(reservation: CapacityReservation | None) -> Refusal:
    needs = (
        "A Capacity Block needs"
        if reservation is not None and reservation.is_block
        else "Only a Capacity Block takes"
    )
    return Refusal(code=Shortage.PARAMETERS, message=f"{needs} the market type 'capacity-block'")


class ReservationCalls(EC2BaseResponse):
    """The EC2 operations on capacity reservations."""

    def create_capacity_reservation(self) -> ActionResult:
        params = self._get_params()
        zone = params.get("AvailabilityZone")
        if not zone:
            raise ReservationError("MissingParameter", "The request must contain the parameter availabilityZone")
        count = int(params.get("InstanceCount") or 0)
        if count < 1:
            raise ReservationError(
                "InvalidParameterValue", f"Value ({count}) for parameter instanceCount is invalid."
            )
        self.error_on_dryrun()
        made: Any = CapacityReservation(self.ec2_backend, params, zone, count)
        of(self.ec2_backend).by_id[made.id] = made
        made.add_tags(convert_tag_spec(params.get("TagSpecifications") or []).get("capacity-reservation", {}))
        return ActionResult({"CapacityReservation": made.as_result()})

    def describe_capacity_reservations(self) -> ActionResult:
        params = self._get_params()
        known = of(self.ec2_backend)
        wanted = items(params, "CapacityReservationIds")
        found = [known.get(one) for one in wanted] if wanted else list(known.by_id.values())
        for given in items(params, "Filters"):
            found = [one for one in found if _matches(one, given["Name"], items(given, "Values"))]
        return ActionResult({"CapacityReservations": [one.as_result() for one in found]})

    def get_capacity_reservation_usage(self) -> ActionResult:
        """The owner and each account that uses it, in pages of the requested size."""
        params = self._get_params()
        found = of(self.ec2_backend).get(params["CapacityReservationId"])
        used = {found.ec2_backend.account_id: found.used_by_owner} | found.used_by_others
        usages = [{"AccountId": account, "UsedInstanceCount": count} for account, count in used.items()]
        begin, most = int(params.get("NextToken") or 0), int(params.get("MaxResults") or len(usages))
        shown = found.as_result()
        same = ("CapacityReservationId", "InstanceType", "TotalInstanceCount", "AvailableInstanceCount", "State")
        end = begin + most
        return ActionResult(
            {name: shown[name] for name in same}
            | {"InstanceUsages": usages[begin:end], "NextToken": str(end) if end < len(usages) else None}
        )

    def modify_capacity_reservation(self) -> ActionResult:
        params = self._get_params()
        found = of(self.ec2_backend).get(params["CapacityReservationId"])
        _not_of_a_block(found)
        if found.state != "active":
            raise ReservationError(
                "InvalidCapacityReservationState", f"The capacity reservation '{found.id}' is {found.state}"
            )
        if params.get("InstanceCount") is not None:
            found.total_instance_count = int(params["InstanceCount"])
        found.wanted = {
            **found.wanted,
            **{key: params[key] for key in ("EndDateType", "InstanceMatchCriteria") if params.get(key)},
        }
        found.end_date = _end(params) or found.end_date
        return ActionResult({"Return": True})

    def cancel_capacity_reservation(self) -> ActionResult:
        found = of(self.ec2_backend).get(self._get_params()["CapacityReservationId"])
        _not_of_a_block(found)
        if found.state != "active":
            raise ReservationError(
                "InvalidCapacityReservationState", f"The capacity reservation '{found.id}' is {found.state}"
            )
        found.state = "cancelled"
        return ActionResult({"Return": True})


def _not_of_a_block(reservation: CapacityReservation) -> None:
    if reservation.is_block:
        raise ReservationError(
            "OperationNotPermitted", f"The capacity reservation '{reservation.id}' is a Capacity Block"
        )


def _matches(reservation: CapacityReservation, name: str, values: list[str]) -> bool:
    shown = reservation.as_result()
    if name.startswith("tag:"):
        tags = {tag["key"]: tag["value"] for tag in reservation.get_tags()}
        return tags.get(name.removeprefix("tag:")) in values
    keys = {"state": "State", "instance-type": "InstanceType", "availability-zone": "AvailabilityZone"}
    if name not in keys:
        raise ReservationError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return str(shown[keys[name]]) in values
