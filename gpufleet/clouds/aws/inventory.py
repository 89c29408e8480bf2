"""Instances of an environment on EC2, and their marks."""

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
"""What reading an answer raises that lacks a field, or has something else there."""
_T = TypeVar("_T")
_FILTERED: Final = 200
"""Most values of one filter."""
_STATES: Final = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "stopping": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPED,
    "terminated": InstanceState.TERMINATED,
}
_GPU_FAMILY: Final = re.compile(r"(g|gr|p)\d")
"""Accelerated computing with GPUs: G and P families (trn and inf have other chips)."""
OF_ONE_ITEM: Final = frozenset(
    {
        *("InvalidInstanceID", "InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed", "InvalidID"),
        *("IncorrectInstanceState", "IncorrectState", "TagLimitExceeded", "UnauthorizedOperation"),
    }
)
"""What EC2 refuses a whole call with for the sake of one item in it.

UnauthorizedOperation too: our rights are on instances that carry the environment's tag, which one may have lost.
"""
GROUP_TAG: Final = "aws:autoscaling:groupName"
"""Written by EC2 Auto Scaling alone: AWS lets no user write a tag that begins with `aws:`."""


class AwsInventory:
    """The instances tagged with an environment.

    `groups`: those of its pools; who is in none of them is of no pool.
    """

    def __init__(
        self, calls: AwsCalls, region: str, environment: str, groups: Mapping[str, OwnedGroup] = NO_GROUPS
    ) -> None:
        self._calls = calls
        self._region = region
        self._environment = environment
        self._groups = groups

    def instances(self) -> Sequence[Instance]:
        """All that are not terminated. Raises CloudError when a page fails, or one of them cannot be read."""
        return self.listed().whole()

    def listed(self) -> InstanceList:
        """All that are not terminated; what cannot be read fails alone. Raises CloudError when a page fails."""
        filters = [
            {"Name": f"tag:{tags.ENVIRONMENT}", "Values": [self._environment]},
            {"Name": "instance-state-name", "Values": [name for name in _STATES if name != "terminated"]},
        ]
        found, errors = each_alone(self._listed(filters), self._instance)
        return InstanceList(instances=found, errors=errors)

    def gpus(self) -> InstanceList:
        """All of a GPU machine type in the region, whoever made them; what cannot be read fails alone. Raises
        CloudError when a page fails.
        """
        # by family, not by catalogue: the forgotten ones are old types that nobody would add to it
        filters = [{"Name": "instance-state-name", "Values": [name for name in _STATES if name != "terminated"]}]
        wanted = (
            raw
            for raw in self._listed(filters)
            # one without a type is read all the same: that says what it lacks
            if _GPU_FAMILY.match(raw.get("InstanceType", "")) or "InstanceType" not in raw
        )
        found, errors = each_alone(wanted, self._instance)
        return InstanceList(instances=found, errors=errors)

    def claiming(self) -> InstanceList:
        """All that carry a pool's tag and no environment's, whoever made them; what cannot be read fails alone.
        Raises CloudError when a page fails.
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
        found, errors = each_alone(wanted, self._instance)
        return InstanceList(instances=found, errors=errors)

    def _listed(self, filters: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        pages = self._calls.pages(
            "ec2", "describe_instances", "Reservations", Filters=filters, PaginationConfig={"PageSize": PAGE}
        )
        for held in pages:
            if "Instances" not in held:
                raise CloudError(
                    f"ec2:describe_instances in {self._region}: {held.get('ReservationId', 'a reservation')} came"
                    " without its instances, so the list is not whole"
                )
            yield from held["Instances"]

    def stop(self, instance_id: str) -> None:
        """Stop a stand-alone machine. Raises CloudError, also of what cannot be stopped (stop protection, spot)."""
        self._calls.once("ec2", "stop_instances", InstanceIds=[instance_id])

    def instance(self, instance_id: str) -> Instance | None:
        """One, read anew; None when the cloud no longer knows it. Raises CloudError of an answer about any other."""
        try:
            answer = self._calls.one("ec2", "describe_instances", InstanceIds=[instance_id])
        except CloudError as error:
            if error.code in ("InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"):
                return None
            raise
        listed = [raw for held in answer.get("Reservations", ()) for raw in held.get("Instances", ())]
        # EC2 refuses an id that it does not know: an empty list says nothing of this one, and not that it has gone
        if (came := [raw.get("InstanceId") for raw in listed]) != [instance_id]:
            names = ", ".join(map(str, came)) or "nobody"
            raise CloudError(f"ec2:describe_instances in {self._region}: {instance_id} was asked for, {names} came")
        return self._instance(listed[0])

    def ended(self, instance_ids: Sequence[str]) -> Sequence[Instance]:
        """Those that EC2 describes, for about an hour after they ended, and that can be read.

        Raises CloudError when a page fails.

        Their tags are not asked for: a terminated instance may have lost them. A filter, since EC2 refuses a list of
        ids for one that it has forgotten.
        """
        found: list[Instance] = []
        for start in range(0, len(instance_ids), _FILTERED):
            named = [{"Name": "instance-id", "Values": list(instance_ids[start : start + _FILTERED])}]
            found += each_alone(self._listed(named), self._instance)[0]
        return found

    def tag(self, instance_ids: Sequence[str], values: Mapping[str, str]) -> Mapping[str, str]:
        """Write tags on many at once. Returns the error by instance where it failed."""
        pairs = [{"Key": key, "Value": value} for key, value in values.items()]
        return halving(instance_ids, lambda chunk: self._calls.one("ec2", "create_tags", Resources=chunk, Tags=pairs))

    def untag(self, instance_ids: Sequence[str], keys: Sequence[str]) -> Mapping[str, str]:
        """Remove tags from many at once. Returns the error by instance where it failed."""
        pairs = [{"Key": key} for key in keys]
        return halving(instance_ids, lambda chunk: self._calls.one("ec2", "delete_tags", Resources=chunk, Tags=pairs))

    def _instance(self, raw: Mapping[str, Any]) -> Instance:
        try:
            return self._read(raw)
        except MALFORMED as error:
            name = raw.get("InstanceId")
            why = f"{name or 'an instance without a name'} cannot be read: {error!r}"
            said = f"ec2:describe_instances in {self._region}: {why}"
            raise (UnreadableError(name, said) if name else CloudError(said)) from error

    def _read(self, raw: Mapping[str, Any]) -> Instance:
        written = {tag["Key"]: tag["Value"] for tag in raw.get("Tags", [])}
        zone = raw["Placement"]["AvailabilityZone"]
        if not zone.startswith(self._region):
            raise ValueError(f"it is said to be in {zone}, and {self._region} was asked")
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


def each_alone(
    listed: Iterable[Mapping[str, Any]], read: Callable[[Mapping[str, Any]], _T]
) -> tuple[tuple[_T, ...], dict[str, str]]:
    """What was read of a list, and by instance why others could not be. Raises CloudError of one without a name."""
    found: list[_T] = []
    errors: dict[str, str] = {}
    for raw in listed:
        try:
            found.append(read(raw))
        except UnreadableError as error:
            errors[error.item] = str(error)
    return tuple(found), errors


def halving(items: Sequence[str], call: Callable[[list[str]], object]) -> dict[str, str]:
    """Call with all items at once; where one item is to blame, with each half, until the bad ones stand alone.

    Returns the error by item. One poisoned item costs about 2·log2(n) calls more and stops no other. What would fail
    for each of them (expired credentials, a limit of calls) is the error of all.
    """
    if not items:
        return {}
    try:
        call(list(items))
    except CloudError as error:
        if len(items) == 1 or error.code not in OF_ONE_ITEM:
            return dict.fromkeys(items, str(error))
        middle = len(items) // 2
        return halving(items[:middle], call) | halving(items[middle:], call)
    return {}


def _capacity_type(raw: Mapping[str, Any], written: Mapping[str, str]) -> CapacityType:
    """What the cloud says; the tag only where the cloud says nothing."""
    if raw.get("InstanceLifecycle") == "spot":
        return CapacityType.SPOT
    if raw.get("CapacityReservationId") or raw.get("InstanceLifecycle") == "capacity-block":
        return CapacityType.RESERVED
    try:
        return CapacityType(written.get(tags.CAPACITY_TYPE, CapacityType.ON_DEMAND))
    except ValueError:
        return CapacityType.ON_DEMAND
