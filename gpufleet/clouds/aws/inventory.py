"""EC2 instances of an environment, and their tags."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any, Final, TypeVar

from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.reasons import end_reason
from gpufleet.domain import tags
from gpufleet.domain.activity import CloudError, UnreadableError
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceList, InstanceState
from gpufleet.domain.ownership import NO_GROUPS, OwnedGroup

PAGE: Final = 1000
MALFORMED: Final = (KeyError, AttributeError, TypeError, ValueError)
"""Exceptions from reading a response with missing fields or wrong types."""
_T = TypeVar("_T")
FILTERED: Final = 200
"""Maximum values of one filter."""
_STATES: Final = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "stopping": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPED,
    "terminated": InstanceState.TERMINATED,
}
_ACCELERATED: Final = re.compile(r"(g|gr|p|inf|trn|dl)\d")
"""Instance families with accelerators."""
OF_ONE_ITEM: Final = frozenset(
    {
        *("InvalidInstanceID", "InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed", "InvalidID"),
        *("IncorrectInstanceState", "IncorrectState", "TagLimitExceeded", "UnauthorizedOperation"),
    }
)
"""Error codes with which EC2 rejects a whole call because of one item.

UnauthorizedOperation is one of them: permissions require the environment's tag, which an instance may have lost.
"""
GROUP_TAG: Final = "aws:autoscaling:groupName"
"""Tag that only EC2 Auto Scaling can write: AWS reserves tags that begin with `aws:`."""


def malformed(error: Exception) -> str:
    """Return what is wrong with a response that lacks a field or has a value of another form."""
    if isinstance(error, KeyError):
        return f"the field {error.args[0]!r} is missing or has an unknown value"
    return str(error) if isinstance(error, ValueError) else "a field has the wrong type"


def is_accelerated(machine_type: str) -> bool:
    """Whether a machine type belongs to a family with accelerators, also one that the catalogue does not list."""
    return _ACCELERATED.match(machine_type) is not None


class AwsInventory:
    """The instances with the tag of an environment.

    `groups`: the groups of its pools. An instance in none of them belongs to no pool.
    """

    def __init__(
        self, calls: AwsCalls, region: str, environment: str, groups: Mapping[str, OwnedGroup] = NO_GROUPS
    ) -> None:
        self._calls = calls
        self._region = region
        self._environment = environment
        self._groups = groups

    def instances(self) -> Sequence[Instance]:
        """All instances that are not terminated. Raises CloudError if a page fails or an instance is unreadable."""
        return self.listed().whole()

    def listed(self) -> InstanceList:
        """All instances that are not terminated, and an error for each unreadable one.

        Raises CloudError if a page fails.
        """
        filters = [
            {"Name": f"tag:{tags.ENVIRONMENT}", "Values": [self._environment]},
            {"Name": "instance-state-name", "Values": [name for name in _STATES if name != "terminated"]},
        ]
        found, errors = one_by_one(self._listed(filters), self._instance)
        return InstanceList(instances=found, errors=errors)

    def gpus(self) -> InstanceList:
        """All instances with accelerators in the region, whoever created them, and an error for each unreadable one.

        Raises CloudError if a page fails.
        """
        # by family and not by catalogue, because forgotten instances often have old types that it does not list
        filters = [{"Name": "instance-state-name", "Values": [name for name in _STATES if name != "terminated"]}]
        wanted = (
            raw
            for raw in self._listed(filters)
            # an instance without a type is read too: its error names the missing field
            if is_accelerated(raw.get("InstanceType", "")) or "InstanceType" not in raw
        )
        found, errors = one_by_one(wanted, self._instance)
        return InstanceList(instances=found, errors=errors)

    def claiming(self) -> InstanceList:
        """All instances with a pool tag but no environment tag, and an error for each unreadable one.

        Raises CloudError if a page fails.
        """
        filters = [
            {"Name": "tag-key", "Values": [tags.POOL]},
            {"Name": "instance-state-name", "Values": [name for name in _STATES if name != "terminated"]},
        ]
        wanted = (
            raw
            for raw in self._listed(filters)
            if all(tag.get("Key") != tags.ENVIRONMENT for tag in raw.get("Tags", ()))
        )
        found, errors = one_by_one(wanted, self._instance)
        return InstanceList(instances=found, errors=errors)

    def _listed(self, filters: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        pages = self._calls.pages(
            "ec2", "describe_instances", "Reservations", Filters=filters, PaginationConfig={"PageSize": PAGE}
        )
        for held in pages:
            if "Instances" not in held:
                raise CloudError(
                    f"ec2:describe_instances in {self._region}: {held.get('ReservationId', 'a reservation')} contains"
                    " no instances, so the list is incomplete"
                )
            yield from held["Instances"]

    def stop(self, instance_id: str) -> None:
        """Stop an instance outside of groups. Raises CloudError, also if EC2 refuses (stop protection, spot)."""
        self._calls.once("ec2", "stop_instances", InstanceIds=[instance_id])

    def instance(self, instance_id: str) -> Instance | None:
        """Read one instance; None if it no longer exists. Raises CloudError, also for a response about others."""
        try:
            answer = self._calls.one("ec2", "describe_instances", InstanceIds=[instance_id])
        except CloudError as error:
            if error.code in ("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"):
                return None
            raise
        listed = [raw for held in answer.get("Reservations", ()) for raw in held.get("Instances", ())]
        # EC2 returns an error for an unknown id, so an empty list does not prove that the instance is terminated
        if (received := [raw.get("InstanceId") for raw in listed]) != [instance_id]:
            names = ", ".join(map(str, received)) or "no instance"
            raise CloudError(f"ec2:describe_instances in {self._region}: requested {instance_id}, received {names}")
        return self._instance(listed[0])

    def ended(self, instance_ids: Sequence[str]) -> Sequence[Instance]:
        """The readable instances with these ids that have ended; EC2 lists a terminated one for about an hour.

        Raises CloudError if a page fails.

        The filter does not use tags, because a terminated instance may have lost them. It is a filter by id, because
        EC2 rejects a list of ids if one id is no longer known.
        """
        found: list[Instance] = []
        for start in range(0, len(instance_ids), FILTERED):
            named = [{"Name": "instance-id", "Values": list(instance_ids[start : start + FILTERED])}]
            found += (one for one in one_by_one(self._listed(named), self._instance)[0] if not one.alive)
        return found

    def tag(self, instance_ids: Sequence[str], values: Mapping[str, str]) -> Mapping[str, str]:
        """Write tags on several instances. Returns errors by instance id."""
        pairs = [{"Key": key, "Value": value} for key, value in values.items()]
        return by_bisection(
            instance_ids, lambda chunk: self._calls.one("ec2", "create_tags", Resources=chunk, Tags=pairs)
        )

    def untag(self, instance_ids: Sequence[str], keys: Sequence[str]) -> Mapping[str, str]:
        """Remove tags from several instances. Returns errors by instance id."""
        pairs = [{"Key": key} for key in keys]
        return by_bisection(
            instance_ids, lambda chunk: self._calls.one("ec2", "delete_tags", Resources=chunk, Tags=pairs)
        )

    def _instance(self, raw: Mapping[str, Any]) -> Instance:
        try:
            return self._read(raw)
        except MALFORMED as error:
            name = raw.get("InstanceId")
            why = f"{name or 'an instance without a name'} cannot be read: {malformed(error)}"
            message = f"ec2:describe_instances in {self._region}: {why}"
            raise (UnreadableError(name, message) if name else CloudError(message)) from error

    def _read(self, raw: Mapping[str, Any]) -> Instance:
        written = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", [])}
        zone = raw["Placement"]["AvailabilityZone"]
        if not zone.startswith(self._region):
            raise ValueError(f"it is in {zone}, but the request was for {self._region}")
        group = written.get(GROUP_TAG)
        owned = self._groups.get(group or "")
        return Instance(
            id=raw["InstanceId"],
            cloud=Cloud.AWS,
            region=self._region,
            zone=zone,
            machine_type=raw["InstanceType"],
            capacity_type=_capacity_type(raw, written),
            state=_STATES[raw["State"]["Name"]],
            launched_at=raw["LaunchTime"].astimezone(UTC),
            environment=written.get(tags.ENVIRONMENT),
            pool=None if owned is None else owned.pool,
            group=group,
            private_address=raw.get("PrivateIpAddress"),
            reservation=raw.get("CapacityReservationId"),
            tags=written,
            end_reason=end_reason(raw),
        )


def one_by_one(
    listed: Iterable[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], _T]
) -> tuple[tuple[_T, ...], dict[str, str]]:
    """Read each item of a list separately. Returns the results, and errors by instance id for unreadable items.

    Raises CloudError for an item without an instance id.
    """
    found: list[_T] = []
    errors: dict[str, str] = {}
    for raw in listed:
        try:
            found.append(read(raw))
        except UnreadableError as error:
            errors[error.item] = str(error)
    return tuple(found), errors


def by_bisection(items: Sequence[str], call: Callable[[list[str]], object]) -> dict[str, str]:
    """Call with all items; if one item causes the error, call with each half, until the bad items are isolated.

    Returns errors by item. One bad item costs about 2·log2(n) more calls and does not affect the others. An error
    that affects all items (expired credentials, a rate limit) is returned for each of them.
    """
    if not items:
        return {}
    try:
        call(list(items))
    except CloudError as error:
        if len(items) == 1 or error.code not in OF_ONE_ITEM:
            return dict.fromkeys(items, str(error))
        middle = len(items) // 2
        return by_bisection(items[:middle], call) | by_bisection(items[middle:], call)
    return {}


def _capacity_type(raw: Mapping[str, Any], written: Mapping[str, str]) -> CapacityType:
    """Capacity type as EC2 reports it; the tag counts only if EC2 reports none."""
    if raw.get("InstanceLifecycle") == "spot":
        return CapacityType.SPOT
    if raw.get("CapacityReservationId") or raw.get("InstanceLifecycle") == "capacity-block":
        return CapacityType.RESERVED
    try:
        return CapacityType(written.get(tags.CAPACITY_TYPE, CapacityType.ON_DEMAND))
    except ValueError:
        return CapacityType.ON_DEMAND
