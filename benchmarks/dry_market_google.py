"""A simulated Google Cloud project without spot capacity, on which `bench_calls` counts the calls of a pass."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final
from zlib import crc32

from google.cloud import compute_v1

from gpufleet.clouds.gcp.calls import GoogleCalls
from gpufleet.clouds.gcp.group_lists import CREATED_BY
from gpufleet.clouds.gcp.groups import GoogleGroups
from gpufleet.clouds.gcp.inventory import GoogleInventory
from gpufleet.domain import tags
from gpufleet.domain.model import CapacityType
from gpufleet.settings.document import FleetDocument, GroupEntry
from tests.fixtures.watchdogs.fake_fleet import FakeFleet

CALL_TAKES: Final = timedelta(seconds=0.1)
OPERATIONS_AT_ONCE: Final = 500
REFUSED: Final = (
    "The zone does not have enough resources available to fulfill the request.  '(resource type:compute)'."
)
_STATUS: Final = compute_v1.Operation.Status
_AGENT: Final = "1@cloudservices.gserviceaccount.com"
_NO_ERROR: Final = SimpleNamespace(errors=())


class GoogleDryMarket:
    """Simulates Compute Engine. Zonal groups refuse after `answers_after`; regional on-demand groups launch all
    requested instances.
    """

    def __init__(self, document: FleetDocument, fleet: FakeFleet, answers_after: timedelta = timedelta(0)) -> None:
        self.calls = _Calls(self)
        self.groups = GoogleGroups(self.calls, document, clock=lambda: fleet.now.timestamp())
        self.inventory = GoogleInventory(
            self.calls,
            document.region,
            document.environment,
            document.owned_groups(),
            now=lambda: fleet.now,
            clock=lambda: fleet.now.timestamp(),
        )
        self.answers_after = answers_after
        self.fleet = fleet
        self._environment = document.environment
        self._region = document.region
        self._entries = {group.name: group for pool in document.pools for group in pool.groups}
        self._size = dict.fromkeys(self._entries, 0)
        self._members: dict[str, list[tuple[str, datetime]]] = {name: [] for name in self._entries}
        self._wanted: dict[str, str] = {}
        """The instance that a group tries to create, by group."""
        self._operations: dict[str, list[tuple[str, datetime]]] = defaultdict(list)
        """Instance creations by zone, oldest first: name of the instance and start time."""
        self._made = 0

    def refused_before(self, span: timedelta, every: timedelta) -> None:
        """Add refusals of every spot group over `span`, one per `every`."""
        for number in range(span // every, 0, -1):
            for name, entry in self._entries.items():
                if entry.type is CapacityType.SPOT:
                    self._begin(entry, self._name(name), self.fleet.now - number * every)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return desired and actual size by group."""
        return {name: (size, len(self._members[name])) for name, size in self._size.items()}

    def resize(self, name: str, size: int) -> Any:
        entry, grows = self._entries[name], size > self._size[name]
        self._size[name] = size
        if entry.type is CapacityType.ON_DEMAND:
            while len(self._members[name]) < size:
                self._members[name].append((self._name(name), self.fleet.now))
        elif grows:
            self._wanted[name] = self._name(name)
            self._begin(entry, self._wanted[name], self.fleet.now)
        at = self.fleet.now.isoformat()
        return SimpleNamespace(
            name=f"resize-{name}-{at}", insert_time=at, end_time="", status=_STATUS.RUNNING, error=_NO_ERROR
        )

    def _name(self, group: str) -> str:
        self._made += 1
        return f"base-{group}-{self._made:06d}"

    def _begin(self, entry: GroupEntry, instance: str, at: datetime) -> None:
        assert entry.zone is not None
        self._operations[entry.zone].append((instance, at))

    def operations(self, zone: str) -> Iterator[Any]:
        """Return operations in pages, newest first."""
        rows = self._operations[zone]
        for end in range(len(rows), 0, -OPERATIONS_AT_ONCE):
            start = max(0, end - OPERATIONS_AT_ONCE)
            items = [self._operation(zone, *row) for row in reversed(rows[start:end])]
            yield SimpleNamespace(items=items, next_page_token="more" if start else "")
        if not rows:
            yield SimpleNamespace(items=[], next_page_token="")

    def _operation(self, zone: str, instance: str, at: datetime) -> Any:
        is_over = at + self.answers_after <= self.fleet.now
        error = SimpleNamespace(code="ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", message=REFUSED, error_details=[])
        return SimpleNamespace(
            name=f"operation-{instance}",
            insert_time=at.isoformat(),
            end_time=(at + self.answers_after).isoformat() if is_over else "",
            operation_type="insert",
            status=_STATUS.DONE if is_over else _STATUS.RUNNING,
            status_message="",
            target_id=int(instance.rpartition("-")[2]),
            target_link=f"https://compute/zones/{zone}/instances/{instance}",
            user=_AGENT,
            error=SimpleNamespace(errors=[error]) if is_over else _NO_ERROR,
        )

    def _place(self, name: str) -> str:
        zone = self._entries[name].zone
        return f"zones/{zone}" if zone else f"regions/{self._region}"

    def manager(self, name: str) -> Any:
        made, size = len(self._members[name]), self._size[name]
        zones = [SimpleNamespace(zone=f"zones/{self._region}-{letter}") for letter in "abc"]
        return SimpleNamespace(
            name=name,
            base_instance_name=f"base-{name}",
            target_size=size,
            current_actions=compute_v1.InstanceGroupManagerActionsSummary(none=made, creating=max(0, size - made)),
            distribution_policy=SimpleNamespace(zones=zones),
        )

    def managers(self) -> Iterator[Any]:
        found: dict[str, list[Any]] = defaultdict(list)
        for name in self._entries:
            found[self._place(name)].append(self.manager(name))
        return _scoped("instance_group_managers", found)

    def instances(self) -> Iterator[Any]:
        found: dict[str, list[Any]] = defaultdict(list)
        for group, members in self._members.items():
            path = f"projects/1/{self._place(group)}/instanceGroupManagers/{group}"
            for name, at in members:
                found[f"zones/{self._entries[group].zone or f'{self._region}-a'}"].append(
                    compute_v1.Instance(
                        name=name,
                        id=crc32(name.encode()),
                        machine_type="zones/z/machineTypes/g2-standard-8",
                        status="RUNNING",
                        creation_timestamp=at.isoformat(),
                        labels={tags.label(tags.ENVIRONMENT): self._environment},
                        metadata={"items": [{"key": CREATED_BY, "value": path}]},
                    )
                )
        return _scoped("instances", found)

    def managed(self, group: str) -> Iterator[Any]:
        zone = self._entries[group].zone or f"{self._region}-a"
        made = [_managed(zone, name, "RUNNING", "NONE") for name, _ in self._members[group]]
        lacks = self._size[group] - len(made)
        wanted = [_managed(zone, self._wanted[group], "", "CREATING") for _ in range(lacks)]
        yield SimpleNamespace(managed_instances=made + wanted, next_page_token="")


def _managed(zone: str, name: str, status: str, action: str) -> Any:
    link, number = f"zones/{zone}/instances/{name}", crc32(name.encode()) if status else 0
    return SimpleNamespace(instance=link, id=number, instance_status=status, current_action=action)


def _scoped(field: str, rows: dict[str, list[Any]]) -> Iterator[Any]:
    warning = SimpleNamespace(code="", message="")
    items = {place: SimpleNamespace(warning=warning, **{field: found}) for place, found in rows.items()}
    yield SimpleNamespace(items=items, next_page_token="")


class _Calls(GoogleCalls):
    """Counts calls like the real class, and sends them to the market."""

    def __init__(self, market: GoogleDryMarket) -> None:
        super().__init__("p")
        self._market = market

    def _client(self, service: str) -> Any:
        return _Client(self._market, service)

    def _count(self, name: str) -> None:
        super()._count(name)
        self._market.fleet.now += CALL_TAKES


class _Client:
    """The part of the clients that is used."""

    def __init__(self, market: GoogleDryMarket, service: str) -> None:
        self._market = market
        self._service = service

    def aggregated_list(self, **_: Any) -> Any:
        market = self._market
        return _Paged(market.managers if self._service == "instance_group_managers" else market.instances)

    def list(self, request: dict[str, Any], **_: Any) -> Any:
        return _Paged(lambda: self._market.operations(request["zone"]))

    def list_managed_instances(self, request: dict[str, Any], **_: Any) -> Any:
        return _Paged(lambda: self._market.managed(request["instance_group_manager"]))

    def list_errors(self, **_: Any) -> Any:
        return _Paged(lambda: iter([SimpleNamespace(items=[], next_page_token="")]))

    def get(self, request: dict[str, Any], **_: Any) -> Any:
        return self._market.manager(request["instance_group_manager"])

    def resize_unary(self, request: dict[str, Any], **_: Any) -> Any:
        return self._market.resize(request["instance_group_manager"], request["size"])


class _Paged:
    def __init__(self, pages: Callable[[], Iterator[Any]]) -> None:
        self.pages: Sequence[Any] | Iterator[Any] = pages()
