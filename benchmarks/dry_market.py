"""A simulated AWS region without spot capacity, on which `bench_calls` counts the calls of a pass."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.groups import AwsGroups
from gpufleet.clouds.aws.inventory import AwsInventory
from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType, Phase
from gpufleet.settings.document import FleetDocument
from tests.fixtures.watchdogs.fake_fleet import FakeFleet
from tests.fixtures.watchdogs.plain import READY

REGION: Final = "us-east-1"
ACTIVITIES_AT_ONCE: Final = 100
REFUSED: Final = (
    "Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot capacity available that matches"
    " your request. Launching EC2 instance failed."
)


class DryMarket:
    """Simulates Auto Scaling and EC2. Each spot group refuses immediately; on-demand groups launch all requested
    instances.
    """

    def __init__(self, document: FleetDocument, fleet: FakeFleet, *, hooks: bool = False) -> None:
        """`hooks`: groups have a lifecycle hook on launches."""
        self.calls = AwsCalls(REGION, lambda service: _Client(self, service))
        self.groups = AwsGroups(self.calls)
        self.inventory = AwsInventory(self.calls, REGION, document.environment, document.owned_groups())
        self._environment = document.environment
        self._fleet = fleet
        self._types = {group.name: group.type for pool in document.pools for group in pool.groups}
        self._zones = {group.name: group.zone for pool in document.pools for group in pool.groups}
        self._state = "Pending:Wait" if hooks else "InService"
        self.desired = dict.fromkeys(self._types, 0)
        self._members: dict[str, list[dict[str, Any]]] = {name: [] for name in self._types}
        self._activities: dict[str, list[dict[str, Any]]] = {name: [] for name in self._types}

    def refused_before(self, span: timedelta, every: timedelta) -> None:
        """Add refusals of every spot group over `span`, one per `every`."""
        for name, kind in self._types.items():
            if kind is CapacityType.SPOT:
                for number in range(span // every, 0, -1):
                    self._note(name, self._fleet.now - number * every)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return desired and actual size by group."""
        return {name: (self.desired[name], len(self._members[name])) for name in self.desired}

    def complete(self, name: str, instance_id: str) -> None:
        (found,) = [one for one in self._members[name] if one["InstanceId"] == instance_id]
        found["LifecycleState"] = "InService"

    def resize(self, name: str, size: int) -> None:
        self.desired[name] = size
        if self._types[name] is CapacityType.ON_DEMAND:
            while len(self._members[name]) < size:
                self._launch(name)
        elif size > len(self._members[name]):
            self._note(name, self._fleet.now)

    def _launch(self, name: str) -> None:
        key = f"i-{sum(map(len, self._members.values())):017x}"
        if self._state != "InService":
            self._fleet.agents[key] = replace(READY, phase=Phase.CACHE, ready=False)
        self._members[name].append(
            {
                "InstanceId": key,
                "InstanceType": "g6.xlarge",
                "LifecycleState": self._state,
                "State": {"Name": "running"},
                "Placement": {"AvailabilityZone": f"{REGION}a"},
                "LaunchTime": self._fleet.now,
                "PrivateIpAddress": "127.0.0.1",
                "Tags": [
                    {"Key": tags.ENVIRONMENT, "Value": self._environment},
                    {"Key": "aws:autoscaling:groupName", "Value": name},
                ],
            }
        )

    def _note(self, name: str, at: datetime) -> None:
        at = at.replace(microsecond=0)
        self._activities[name].insert(
            0,
            {
                "ActivityId": f"{name}-{len(self._activities[name])}",
                "AutoScalingGroupName": name,
                "Description": "Launching a new EC2 instance.",
                "Cause": "an instance was launched in response to a difference between desired and actual capacity",
                "StatusCode": "Failed",
                "StatusMessage": REFUSED,
                "StartTime": at,
                "EndTime": at,
            },
        )

    def described(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {
                "AutoScalingGroupName": name,
                "AvailabilityZones": [self._zones[name] or f"{REGION}a"],
                "DesiredCapacity": self.desired[name],
                "MinSize": 0,
                "MaxSize": 9,
                "Tags": [{"Key": tags.CAPACITY_TYPE, "Value": self._types[name].value}],
                "Instances": [
                    {key: one[key] for key in ("InstanceId", "LifecycleState")} for one in self._members[name]
                ],
            }
            for name in names
        ]

    def pages(self, operation: str, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if operation == "describe_auto_scaling_groups":
            yield {"AutoScalingGroups": self.described(asked["AutoScalingGroupNames"])}
        elif operation == "describe_scaling_activities":
            rows = self._activities[asked["AutoScalingGroupName"]]
            for first in range(0, max(1, len(rows)), ACTIVITIES_AT_ONCE):
                yield {"Activities": rows[first : first + ACTIVITIES_AT_ONCE]}
        else:
            yield {"Reservations": [{"Instances": [one for held in self._members.values() for one in held]}]}


class _Client:
    """The part of a boto3 client that is used."""

    def __init__(self, market: DryMarket, service: str) -> None:
        self._market = market
        self._operation = service

    def get_paginator(self, operation: str) -> "_Client":
        return _Client(self._market, operation)

    def paginate(self, **asked: Any) -> Iterator[dict[str, Any]]:
        return self._market.pages(self._operation, asked)

    def set_desired_capacity(self, **asked: Any) -> dict[str, Any]:
        self._market.resize(asked["AutoScalingGroupName"], asked["DesiredCapacity"])
        return {}

    def complete_lifecycle_action(self, **asked: Any) -> dict[str, Any]:
        self._market.complete(asked["AutoScalingGroupName"], asked["InstanceId"])
        return {}
