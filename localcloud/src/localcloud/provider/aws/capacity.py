"""EC2 capacity reservations and placement groups."""

from __future__ import annotations

from typing import Any

from localcloud.provider.aws.calls import first, or_none, present
from localcloud.provider.aws.tags import ec2_specification, tag_map, update_ec2_tags
from localcloud.provider.checks import between, matches
from localcloud.provider.errors import Failure
from localcloud.provider.naming import Naming
from localcloud.provider.resource import Change, Resource
from localcloud.provider.session import Cloud
from localcloud.provider.translate import input_shape, to_request
from localcloud.provider.wire import Properties

_ABSENT = frozenset({"cancelled", "expired", "failed"})


def _end_fits_type(given: Properties) -> list[Failure]:
    limited = given.get("endDateType") == "limited"
    if limited and "endDate" not in given:
        return [Failure(path="endDate", reason="'endDate' is required when endDateType is limited")]
    if not limited and "endDate" in given and "endDateType" in given:
        return [Failure(path="endDate", reason="'endDate' needs endDateType limited")]
    return []


class CapacityReservation(Resource):
    token = "aws:ec2/capacityReservation:CapacityReservation"
    tagged = True
    force_new = frozenset(
        {
            "availabilityZone", "ebsOptimized", "ephemeralStorage", "instanceMatchCriteria", "instancePlatform",
            "instanceType", "placementGroupArn", "tenancy",
        }
    )  # fmt: skip
    mutable = frozenset({"endDate", "endDateType", "instanceCount"})
    enums = {
        "endDateType": frozenset({"limited", "unlimited"}),
        "instanceMatchCriteria": frozenset({"open", "targeted"}),
        "tenancy": frozenset({"default", "dedicated"}),
        "instancePlatform": frozenset(
            {
                "Linux/UNIX", "Red Hat Enterprise Linux", "SUSE Linux", "Windows", "Windows with SQL Server",
                "Windows with SQL Server Enterprise", "Windows with SQL Server Standard",
                "Windows with SQL Server Web", "Linux with SQL Server Standard", "Linux with SQL Server Web",
                "Linux with SQL Server Enterprise", "RHEL with SQL Server Standard",
                "RHEL with SQL Server Enterprise", "RHEL with SQL Server Web", "RHEL with HA",
                "RHEL with HA and SQL Server Standard", "RHEL with HA and SQL Server Enterprise", "Ubuntu Pro Linux",
            }
        ),
    }  # fmt: skip
    rules = (
        between("instanceCount", 1, 1000),
        matches(
            "endDate",
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)",
            "a time such as 2026-11-21T09:00:00Z",
        ),
        _end_fits_type,
    )

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        given = {k: v for k, v in inputs.items() if k in (self.force_new | self.mutable)}
        answer = cloud.client("ec2").create_capacity_reservation(
            TagSpecifications=ec2_specification("capacity-reservation", inputs.get("tags")),
            **to_request(given, input_shape(cloud, "ec2", "CreateCapacityReservation")),
        )
        return str(answer["CapacityReservation"]["CapacityReservationId"])

    def after_create(self, cloud: Cloud, ident: str, inputs: Properties) -> None:
        cloud.wait(f"{ident} to be active", lambda: (self._find(cloud, ident) or {}).get("State") == "active")

    def _find(self, cloud: Cloud, ident: str) -> dict[str, Any] | None:
        call = cloud.client("ec2").describe_capacity_reservations
        found = first(call, "CapacityReservations", CapacityReservationIds=[ident])
        return found if found and found["State"] not in _ABSENT else None

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        found = self._find(cloud, ident)
        return found and {
            "arn": found.get("CapacityReservationArn"),
            "availabilityZone": found["AvailabilityZone"],
            "ebsOptimized": found.get("EbsOptimized"),
            "endDateType": found.get("EndDateType"),
            "instanceCount": found["TotalInstanceCount"],
            "instanceMatchCriteria": found.get("InstanceMatchCriteria"),
            "instancePlatform": found["InstancePlatform"],
            "instanceType": found["InstanceType"],
            "ownerId": found.get("OwnerId"),
            "placementGroupArn": found.get("PlacementGroupArn"),
            "tenancy": found.get("Tenancy"),
            "tags": tag_map(cloud, found.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        wanted = {k: change.new[k] for k in change.keys & self.mutable if k in change.new}
        if wanted:
            request = to_request(wanted, input_shape(cloud, "ec2", "ModifyCapacityReservation"))
            cloud.client("ec2").modify_capacity_reservation(CapacityReservationId=ident, **request)
        update_ec2_tags(cloud, ident, change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("ec2").cancel_capacity_reservation, CapacityReservationId=ident)
        cloud.wait(f"{ident} to be cancelled", lambda: self._find(cloud, ident) is None)


def _partitions_fit_strategy(given: Properties) -> list[Failure]:
    if "partitionCount" in given and given.get("strategy") != "partition":
        return [Failure(path="partitionCount", reason="'partitionCount' needs strategy partition")]
    if "spreadLevel" in given and given.get("strategy") != "spread":
        return [Failure(path="spreadLevel", reason="'spreadLevel' needs strategy spread")]
    return []


class PlacementGroup(Resource):
    token = "aws:ec2/placementGroup:PlacementGroup"
    naming = Naming(limit=255)
    tagged = True
    force_new = frozenset({"name", "partitionCount", "spreadLevel", "strategy"})
    enums = {
        "strategy": frozenset({"cluster", "partition", "spread"}),
        "spreadLevel": frozenset({"host", "rack"}),
    }
    rules = (between("partitionCount", 1, 7), _partitions_fit_strategy)

    def create(self, cloud: Cloud, inputs: Properties) -> str:
        cloud.client("ec2").create_placement_group(
            GroupName=inputs["name"],
            Strategy=inputs["strategy"],
            TagSpecifications=ec2_specification("placement-group", inputs.get("tags")),
            **present(PartitionCount=inputs.get("partitionCount"), SpreadLevel=inputs.get("spreadLevel")),
        )
        return str(inputs["name"])

    def read(self, cloud: Cloud, ident: str, state: Properties) -> Properties | None:
        found = first(cloud.client("ec2").describe_placement_groups, "PlacementGroups", GroupNames=[ident])
        return found and {
            "arn": found.get("GroupArn"),
            "name": found["GroupName"],
            "placementGroupId": found.get("GroupId"),
            "partitionCount": found.get("PartitionCount"),
            "spreadLevel": found.get("SpreadLevel"),
            "strategy": found["Strategy"],
            "tags": tag_map(cloud, found.get("Tags")),
        }

    def update(self, cloud: Cloud, ident: str, change: Change) -> None:
        update_ec2_tags(cloud, str(change.state.get("placementGroupId", ident)), change)

    def delete(self, cloud: Cloud, ident: str, state: Properties) -> None:
        or_none(cloud.client("ec2").delete_placement_group, GroupName=ident)
