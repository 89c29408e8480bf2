"""An AWS account as a scan reads it."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

from app.scan import RegionFacts, reserved
from gpufleet.clouds.aws.account import AwsAccount
from gpufleet.clouds.aws.calls import AwsCalls
from gpufleet.clouds.aws.cloudwatch import CloudWatch
from gpufleet.clouds.aws.instance_history import AwsInstanceHistory
from gpufleet.clouds.aws.inventory import AwsInventory, is_accelerated
from gpufleet.clouds.aws.prices import AwsPrices
from gpufleet.clouds.progress import Touch
from gpufleet.domain.activity import CloudError
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.prices.book import machine_sku
from gpufleet.prices.packaged import PackagedPrices
from gpufleet.scan.judge import ScanWindows
from gpufleet.scan.model import CapacityKind, ScannedCapacity, ScanScope, key_of

ACTIONS: Final = (
    "cloudwatch:GetMetricData",
    "cloudwatch:ListMetrics",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeInstances",
    "ec2:DescribeRegions",
    "ec2:DescribeReservedInstances",
    "ec2:DescribeSpotPriceHistory",
    "pricing:GetProducts",
)
"""Everything that a scan needs. `sts:GetCallerIdentity` needs no permission."""
PRICE_LIST: Final = "us-east-1"
"""A region with the Price List service."""
_SPOT_PRICES_OF: Final = timedelta(hours=1)
_OLD: Final = timedelta(days=365)
"""Packaged prices that were confirmed longer ago are requested from AWS, and count if that fails."""


class AwsScanAccount:
    """An account, whose regions are read in several threads."""

    def __init__(self, account: AwsAccount, regions: Sequence[str] = ()) -> None:
        """`regions`: not empty: the account's own list is not read."""
        self._account = account
        self._regions = regions
        self.id = ""
        """Account id, once `scopes` has read it."""

    @property
    def cloud(self) -> Cloud:
        return Cloud.AWS

    @property
    def name(self) -> str:
        return self._account.name

    @property
    def profile(self) -> str | None:
        """The profile that its credentials come from."""
        return self._account.profile

    def scopes(self, touch: Touch) -> Sequence[ScanScope]:
        """Its enabled regions. Raises CloudError."""
        self.id = self._account.identity(touch)
        return [ScanScope(Cloud.AWS, self.id, name) for name in self._regions or self._account.regions(touch)]

    def read(self, scope: ScanScope, windows: ScanWindows, touch: Touch, facts: RegionFacts) -> None:
        """Read one region. Raises CloudError if its instances cannot be listed."""
        calls = self._account.calls(scope.region, touch)
        facts.api_calls = calls.counts
        listed = AwsInventory(calls, scope.region, "").gpus()
        facts.instances = listed.instances
        for item, why in listed.errors.items():
            facts.failures[item] = CloudError(why)
        blocks: set[str] = set()
        parts: dict[str, Callable[[], None]] = {
            "capacity reservations": lambda: _capacity_reservations(facts, calls, scope, blocks),
            "reserved instances": lambda: _reserved_instances(facts, calls, scope, blocks),
        }
        alive = [one for one in listed.instances if one.alive]
        if alive:
            home = self._account.calls(PRICE_LIST, touch)
            home.counts = calls.counts
            prices = AwsPrices(calls, scope.region, home)
            # metrics first: without them nothing is idle
            parts = {
                "metrics": lambda: _metrics(facts, calls, alive, windows),
                **parts,
                "spot prices": lambda: _spot_prices(facts, prices, alive, windows),
                "list prices": lambda: _list_prices(facts, prices, windows.now),
            }
        else:
            facts.hours = {}
        facts.read_parts(parts)


def _capacity_reservations(facts: RegionFacts, calls: AwsCalls, scope: ScanScope, blocks: set[str]) -> None:
    """The account's own reservations: EC2 also lists those that another account shares with it, and pays for.

    Adds the ids of all Capacity Blocks to `blocks`.
    """
    found = AwsInstanceHistory(calls, scope.region, "").paid()
    blocks |= {one.reservation for one in found if one.is_block}
    facts.add_capacity(
        reserved(CapacityKind.CAPACITY_BLOCK if one.is_block else CapacityKind.CAPACITY_RESERVATION, scope, one)
        for one in found
        if is_accelerated(one.machine_type) and one.available is not None and one.owner in (None, scope.account)
    )


def _reserved_instances(facts: RegionFacts, calls: AwsCalls, scope: ScanScope, blocks: Collection[str]) -> None:
    """Reserved instances of a region, and how many of them no running instance of the type uses.

    They also pay for instances in capacity reservations, but not for spot and not in Capacity Blocks. AWS applies
    them to any matching instance of the organisation: one that this account does not use may be used by another one.
    """
    active = [{"Name": "state", "Values": ["active"]}]
    found = calls.one("ec2", "describe_reserved_instances", Filters=active).get("ReservedInstances", ())
    running = Counter(
        one.machine_type
        for one in facts.instances
        if one.state is InstanceState.RUNNING
        and one.capacity_type in (CapacityType.ON_DEMAND, CapacityType.RESERVED)
        and one.reservation not in blocks
    )
    rows: list[ScannedCapacity] = []
    for raw in sorted(found, key=lambda raw: str(raw["ReservedInstancesId"])):
        machine_type, total = str(raw["InstanceType"]), int(raw["InstanceCount"])
        if not is_accelerated(machine_type):
            continue
        used = min(total, running[machine_type])
        running[machine_type] -= used
        rows.append(
            ScannedCapacity(
                kind=CapacityKind.RESERVED_INSTANCES,
                scope=scope,
                id=str(raw["ReservedInstancesId"]),
                place=str(raw.get("AvailabilityZone") or scope.region),
                machine_type=machine_type,
                total=total,
                unused=total - used,
                usd_per_hour=None,
            )
        )
    facts.add_capacity(rows)


def _spot_prices(facts: RegionFacts, prices: AwsPrices, alive: Sequence[Instance], windows: ScanWindows) -> None:
    types = sorted({one.machine_type for one in alive})
    facts.prices = [*facts.prices, *prices.prices(types, windows.now - _SPOT_PRICES_OF, windows.now)]


def _list_prices(facts: RegionFacts, prices: AwsPrices, now: datetime) -> None:
    """List prices of types that the package has no price of in this region, or an old one."""
    packaged = PackagedPrices()
    wanted = {(one.machine_type, one.region) for one in facts.instances} | {
        (one.machine_type, one.region) for one in facts.capacity
    }
    types: list[str] = []
    for name, region in sorted(wanted):
        known = packaged.prices(machine_sku(Cloud.AWS, name, CapacityType.ON_DEMAND), region)
        if not known or now - known[-1].as_of > _OLD:
            types.append(name)
    facts.prices = [*facts.prices, *prices.list_prices(types, now)]


def _metrics(facts: RegionFacts, calls: AwsCalls, alive: Sequence[Instance], windows: ScanWindows) -> None:
    store = CloudWatch(calls)
    keys = {one.id: key_of(one) for one in alive}
    try:
        found = store.gpu_hours(keys, windows.start, windows.end)
        facts.hours = {keys[one]: hours for one, hours in found.items()}
    finally:
        facts.metered_series = store.requested
