"""Errors of refused launches with EC2's messages. docs/cloud-answers.md states which of them were recorded."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Shortage(StrEnum):
    """EC2's error codes of refused launches."""

    UNFULFILLABLE = "UnfulfillableCapacity"
    INSUFFICIENT = "InsufficientInstanceCapacity"
    VCPU_LIMIT = "VcpuLimitExceeded"
    SPOT_LIMIT = "MaxSpotInstanceCountExceeded"
    INSTANCE_LIMIT = "InstanceLimitExceeded"
    FLEET_LIMIT = "MaxFleetCountExceeded"
    PRICE = "SpotMaxPriceTooLow"
    THROTTLED = "RequestLimitExceeded"
    RESERVATION = "ReservationCapacityExceeded"
    ADDRESSES = "InsufficientFreeAddressesInSubnet"
    INVALID_RESERVATION = "InvalidCapacityReservationId.NotFound"
    FLEET_CONFIGURATION = "InvalidFleetConfiguration"
    UNSUPPORTED = "Unsupported"
    NO_EFA = "UnsupportedOperation"
    INTERFACES = "AttachmentLimitExceeded"
    PARAMETERS = "InvalidParameterCombination"
    BLOCK_DEVICES = "InvalidBlockDeviceMapping"
    NO_PLACEMENT = "InvalidPlacementGroup.Unknown"
    PERMISSION = "UnauthorizedOperation"
    SPOT_ROLE = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The error of a refused launch: EC2's code and message."""

    code: Shortage
    message: str
    plain: "Refusal | None" = None
    """The error for a group without a mixed instances policy and for a single instance; None: the same."""

    @property
    def without_mix(self) -> "Refusal":
        return self.plain or self

    def for_launch(self, **names: str) -> "Refusal":
        """The error with `{type}`, `{zone}` and `{others}` (other zones) filled in."""
        return Refusal(
            code=self.code,
            message=self.message.format(**names),
            plain=self.plain.for_launch(**names) if self.plain else None,
        )


_NO_SPOT: Final = Refusal(
    code=Shortage.INSUFFICIENT, message="There is no Spot capacity available that matches your request."
)
_WHERE: Final = "Your requested instance type ({type}) is not supported in your requested Availability Zone ({zone})."
_VISIT: Final = " Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit."

UNFULFILLABLE: Final = Refusal(
    code=Shortage.UNFULFILLABLE,
    message="Unable to fulfill capacity due to your request configuration. Please adjust your request and try again.",
    plain=_NO_SPOT,
)
INSUFFICIENT: Final = Refusal(
    code=Shortage.INSUFFICIENT,
    message="We currently do not have sufficient {type} capacity in the Availability Zone you requested ({zone}). Our"
    " system will be working on provisioning additional capacity.",
)
INSUFFICIENT_HERE: Final = Refusal(
    code=Shortage.INSUFFICIENT,
    message=f"{INSUFFICIENT.message} You can currently get {{type}} capacity by not specifying an Availability Zone"
    " in"
    " your request or choosing {others}.",
)
SPOT_COUNT: Final = Refusal(code=Shortage.SPOT_LIMIT, message="Max spot instance count exceeded.")
RESERVATION_FULL: Final = Refusal(
    code=Shortage.RESERVATION,
    message="The requested reservation does not have sufficient compatible and available capacity for this request.",
)

CHOSEN: Final[Mapping[str, Refusal]] = MappingProxyType(
    {
        "no-spot": UNFULFILLABLE,
        "no-spot-match": _NO_SPOT,
        "insufficient": INSUFFICIENT,
        "insufficient-old": Refusal(code=Shortage.INSUFFICIENT, message="Insufficient capacity."),
        "spot-count": SPOT_COUNT,
        "instance-limit": Refusal(
            code=Shortage.INSTANCE_LIMIT,
            message="You have requested more instances (7) than your current instance limit of 6 allows for the"
            " specified"
            f" instance type.{_VISIT}",
        ),
        "fleet-limit": Refusal(code=Shortage.FLEET_LIMIT, message="Max fleet count exceeded."),
        "price": Refusal(
            code=Shortage.PRICE,
            message="Your Spot request price of 0.001 is lower than the minimum required Spot request fulfillment"
            " price"
            " of 0.0031.",
        ),
        "throttled": Refusal(code=Shortage.THROTTLED, message="Request limit exceeded."),
        "reservation-full": RESERVATION_FULL,
        "unsupported-zone": Refusal(
            code=Shortage.FLEET_CONFIGURATION,
            message=_WHERE,
            plain=Refusal(
                code=Shortage.UNSUPPORTED,
                message=f"{_WHERE} Please retry your request by not specifying an Availability Zone or choosing"
                f" {{others}}.",
            ),
        ),
        "unsupported": Refusal(
            code=Shortage.UNSUPPORTED,
            message="The requested configuration is currently not supported. Please check the documentation for"
            " supported"
            " configurations.",
        ),
        "free-tier": Refusal(
            code=Shortage.PARAMETERS,
            message="The specified instance type is not eligible for Free Tier. For a list of Free Tier instance"
            " types, run"
            " 'describe-instance-types' with the filter 'free-tier-eligible=true'.",
        ),
        "spread-placement": Refusal(
            code=Shortage.INSUFFICIENT,
            message="You've reached the limit of instances in this spread placement group. A spread placement group"
            " can have"
            " up to seven instances per Availability Zone.",
        ),
        "block-devices": Refusal(
            code=Shortage.BLOCK_DEVICES, message="snapshotId can only be modified on EBS devices."
        ),
        "spot-role": Refusal(
            code=Shortage.SPOT_ROLE,
            message="The provided credentials do not have permission to create the service-linked role for EC2 Spot"
            " Instances.",
        ),
        "permission": Refusal(code=Shortage.PERMISSION, message="You are not authorized to perform this operation."),
    }
)
"""Errors that the admin API can set for launches, independent of capacity."""


def over_vcpus(limit: int) -> Refusal:
    """The vCPU quota of on-demand instances is used up."""
    message = (
        f"You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the instance"
        " bucket"
        f" that the specified instance type belongs to.{_VISIT}"
    )
    return Refusal(code=Shortage.VCPU_LIMIT, message=message)


def no_on_demand(others: Iterable[str]) -> Refusal:
    """No on-demand capacity in the zone. `others`: zones that have some."""
    return INSUFFICIENT_HERE if list(others) else INSUFFICIENT
