"""Compute Engine instances of an environment, and their labels."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gpufleet.clouds.gcp.calls import GoogleCalls
from gpufleet.clouds.gcp.group_lists import check
from gpufleet.clouds.gcp.instance_parser import has_accelerator, parse
from gpufleet.clouds.gcp.members import Members
from gpufleet.clouds.gcp.operations import END_OPERATIONS_SPAN, ENDS, PAGE, POWERED_OFF, cause, recent
from gpufleet.domain import tags
from gpufleet.domain.activity import ActivityKind, CloudError, UnreadableError
from gpufleet.domain.model import CapacityType, Instance, InstanceList, InstanceState
from gpufleet.domain.ownership import NO_GROUPS, OwnedGroup

_EXPLAINED: Final = timedelta(hours=1)
"""How long after its end an instance's cause is looked up in the operations of its zone."""


class GoogleInventory:
    """The instances with the label of an environment, in one region.

    `groups`: the groups of its pools. An instance that none of them lists belongs to no pool.
    """

    def __init__(  # noqa: PLR0913 - scope and clocks
        self,
        calls: GoogleCalls,
        region: str,
        environment: str,
        groups: Mapping[str, OwnedGroup] = NO_GROUPS,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        explains: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`explains`: whether to look up why instances ended, in the operations of their zones. `clock`: a monotonic
        clock in seconds that determines when group members are listed again.
        """
        self._explains = explains
        self._calls = calls
        self._region = region
        self._environment = environment
        self._members = Members(calls, region, groups, clock)
        self._now = now
        self._zones: dict[str, str] = {}
        self._stopped_at: dict[str, datetime] = {}
        """When each instance last began to stop, as Compute Engine reports it."""

    def instances(self) -> Sequence[Instance]:
        """All instances, with the causes of ended ones.

        Raises CloudError if a page or a zone fails, or if an instance is unreadable.
        """
        return self.listed().whole()

    def listed(self) -> InstanceList:
        """All instances, with the causes of ended ones, and an error for each unreadable one.

        Raises CloudError if a page or a zone fails.
        """
        errors: dict[str, str] = {}
        found = self._listed(f"labels.{tags.label(tags.ENVIRONMENT)}={self._environment}", errors=errors)
        causes = self._causes(found)
        whole = tuple(replace(one, end_reason=causes[one.id]) if one.id in causes else one for one in found)
        return InstanceList(instances=whole, errors=errors)

    def gpus(self) -> InstanceList:
        """All instances with accelerators in the region, whoever created them, and an error for each unreadable one.

        Raises CloudError if a page or a zone fails.
        """
        # by family and not by catalogue, because forgotten ones often have old types, or are N1 machines with a GPU
        errors: dict[str, str] = {}
        found = self._listed("", lambda raw: has_accelerator(raw), errors)
        return InstanceList(instances=tuple(found), errors=errors)

    def claiming(self) -> InstanceList:
        """All instances with a pool label but no environment label, and an error for each unreadable one.

        Raises CloudError if a page or a zone fails.
        """
        errors: dict[str, str] = {}
        environment = tags.label(tags.ENVIRONMENT)
        found = self._listed(f"labels.{tags.label(tags.POOL)}:*", lambda raw: environment not in raw.labels, errors)
        return InstanceList(instances=tuple(found), errors=errors)

    def stop(self, instance_id: str) -> None:
        """Stop an instance outside of groups, and wait for it. Data on local disks is lost. Raises CloudError."""
        zone = self._zone(instance_id)
        # without discard_local_ssd, Google refuses to stop a machine with local disks
        self._calls.finish("instances", "stop", zone=zone, instance=instance_id, discard_local_ssd=True)

    def instance(self, instance_id: str) -> Instance | None:
        """Read one instance; None if it no longer exists.

        Raises CloudError if two zones have an instance with this name, or if the response is about another one.
        """
        found = self._listed(f"name={instance_id}")
        for other in (one.id for one in found if one.id != instance_id):
            raise CloudError(f"compute:instances.aggregated_list: requested {instance_id}, received {other}")
        if len(found) > 1:
            zones = ", ".join(sorted(instance.zone for instance in found))
            raise CloudError(f"machines in {zones} have the name {instance_id}, so the instance is ambiguous")
        return found[0] if found else None

    def ended(self, instance_ids: Sequence[str]) -> Sequence[Instance]:
        """The readable instances with these ids that are stopped or stopping.

        Compute Engine does not list deleted instances; their operations report how they ended (`activities`). Raises
        CloudError if a page or a zone fails.
        """
        return tuple(one for one in self.listed().instances if one.id in instance_ids and not one.alive)

    def tag(self, instance_ids: Sequence[str], values: Mapping[str, str]) -> Mapping[str, str]:
        """Write labels on instances. Returns errors by instance id."""
        labels = {tags.label(key): value for key, value in values.items()}

        def change(old: Mapping[str, str]) -> dict[str, str]:
            return {**old, **labels}

        return self._relabel(instance_ids, change)

    def untag(self, instance_ids: Sequence[str], keys: Sequence[str]) -> Mapping[str, str]:
        """Remove labels from instances. Returns errors by instance id."""
        removed = {tags.label(key) for key in keys}

        def change(old: Mapping[str, str]) -> dict[str, str]:
            return {key: value for key, value in old.items() if key not in removed}

        return self._relabel(instance_ids, change)

    def _causes(self, found: Iterable[Instance]) -> Mapping[str, ActivityKind]:
        """Why members of groups ended, from the operations of their zones if these can be read.

        Lists of preemptions were seen incomplete. A stopped spot instance of a group therefore counts as preempted if
        no operation explains its end.
        """
        ended = [one for one in found if not one.alive and one.group is not None]
        stopped = {one.id: self._stopped_at.get(one.id, one.launched_at) for one in ended}
        causes = {
            one.id: ActivityKind.PREEMPTED
            for one in ended
            if one.capacity_type is CapacityType.SPOT and one.state is InstanceState.STOPPED
        }
        lately = [one for one in ended if self._explains and self._now() - stopped[one.id] < _EXPLAINED]
        for zone in sorted({one.zone for one in lately}):
            since = min(stopped[one.id] for one in lately if one.zone == zone) - END_OPERATIONS_SPAN
            causes |= self._stated(zone, since, stopped.keys() & {one.id for one in lately})
        return causes

    def _stated(self, zone: str, since: datetime, wanted: Collection[str]) -> dict[str, ActivityKind]:
        try:
            history = recent(self._calls, zone, since)
        except CloudError:
            return {}  # the instances are readable; only the causes remain unknown
        found: dict[str, ActivityKind] = {}
        for (instance, _), operations in history.items():
            ends = [operation for operation in operations if operation.operation_type in ENDS]
            if instance not in wanted or not ends:
                continue
            kind, _ = cause(ends)
            # without a power-off operation, the group only found the instance stopped and does not know the cause
            if kind is not ActivityKind.ENDED_UNSTATED or any(o.operation_type == POWERED_OFF for o in ends):
                found[instance] = kind
        return found

    def _relabel(
        self, instance_ids: Sequence[str], change: Callable[[Mapping[str, str]], dict[str, str]]
    ) -> dict[str, str]:
        failed: dict[str, str] = {}
        for name in instance_ids:
            try:
                zone = self._zone(name)
                now = self._calls.one("instances", "get", zone=zone, instance=name)
                # the fingerprint makes this a compare-and-set, so that concurrent label changes are not lost
                self._calls.finish(
                    "instances",
                    "set_labels",
                    zone=zone,
                    instance=name,
                    instances_set_labels_request_resource={
                        "labels": change(dict(now.labels)),
                        "label_fingerprint": now.label_fingerprint,
                    },
                )
            except CloudError as error:
                failed[name] = str(error)
        return failed

    def _zone(self, name: str) -> str:
        if name not in self._zones and self.instance(name) is None:
            raise CloudError(f"the cloud has no instance {name}", "404")
        return self._zones[name]

    def _listed(
        self, wanted: str, only: Callable[[Any], bool] = lambda _: True, errors: dict[str, str] | None = None
    ) -> list[Instance]:
        """Instances of the region. `errors` collects unreadable ones by id; None: raise UnreadableError instead."""
        found: list[Instance] = []
        pages = self._calls.pages("instances", "aggregated_list", filter=wanted, max_results=PAGE)
        for place, scoped in pages:
            check(place, scoped, self._region)
            zone = str(place).rsplit("/", 1)[-1]
            # no prefix match: europe-west1 is also a prefix of europe-west10
            if zone.rpartition("-")[0] == self._region:
                for raw in filter(only, scoped.instances):
                    try:
                        found.append(self._instance(raw, zone))
                    except UnreadableError as error:
                        if errors is None:
                            raise
                        errors[error.item] = str(error)
        return found

    def _instance(self, raw: Any, zone: str) -> Instance:
        try:
            return self._read(raw, zone)
        except (ValueError, CloudError) as error:
            message = f"compute:instances.aggregated_list: {raw.name} cannot be read: {error}"
            raise UnreadableError(raw.name, message) from error

    def _note_stop(self, raw: Any) -> None:
        self._stopped_at.pop(raw.name, None)
        if raw.last_stop_timestamp:
            self._stopped_at[raw.name] = datetime.fromisoformat(raw.last_stop_timestamp).astimezone(UTC)

    def _read(self, raw: Any, zone: str) -> Instance:
        self._zones[raw.name] = zone
        self._note_stop(raw)
        group, pool = self._members.group_and_pool(raw, zone)
        return parse(raw, zone, group, pool)
