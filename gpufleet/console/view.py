"""The state of a fleet for its screens, as values. Pure: built from data that was read, with a list of problems.

Missing is not zero: an unknown number has the value None, shown as `–`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from gpufleet.domain.brakes import Brake
from gpufleet.domain.decisions import LedgerEntry
from gpufleet.domain.model import CapacityType, Instance, Phase, fleet_name
from gpufleet.domain.ownership import owning_pool
from gpufleet.settings.document import FleetDocument, Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSignals:
    """Current metrics of one instance. None: unknown."""

    phase: str | None = None
    gpu_active: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_cache: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """One line of `top`."""

    id: str
    pool: str | None
    capacity_type: CapacityType
    zone: str
    machine_type: str
    state: str
    launched_at: datetime
    signals: InstanceSignals
    usd_per_hour: Decimal | None
    idle_since: datetime | None
    keep_until: datetime | None
    why: str | None = None
    """For a marked or draining instance: who requested that, and why; None: not known."""

    @property
    def ready(self) -> bool:
        return self.signals.phase == Phase.READY

    @property
    def draining(self) -> bool:
        return self.signals.phase in (Phase.DRAINING, Phase.DRAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityCount:
    """Instances of one capacity type in a pool. None: the inventory is not known."""

    ready: int | None
    there: int | None
    most: int | None
    """The sum of its groups' maxima; None: the pool has no such group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """USD per million tokens. None: no tokens."""

    input: Decimal | None
    output: Decimal | None
    blended: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostView:
    """A window of the ledger."""

    since: datetime
    known_until: datetime | None
    usd: Decimal
    idle_usd: Decimal
    unit: UnitCost
    by_pool: Mapping[str, tuple[Decimal, UnitCost]]
    unpriced: int = 0
    """Charges without a price. If there are any, the amounts are lower bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """One pool."""

    name: str
    model: str
    engine: str
    """Name of the engine, as in the settings."""
    target: int | None
    """None: the ledger has no target yet."""
    least: int
    most: int
    types: Mapping[CapacityType, CapacityCount]
    """Every capacity type. A pool has either on-demand or flex-start, or neither."""
    draining: int | None
    """None: the inventory is not known; so also for `marked` and `usd_per_hour`."""
    marked: int | None
    held: float | None
    waiting: float | None
    tokens_per_second: float | None
    usd_per_hour: Decimal | None
    unpriced: int
    """Instances without a price. If there are any, `usd_per_hour` is a lower bound."""
    unit: UnitCost | None
    """Of the last hour."""
    adapters: tuple[str, ...] = ()
    """Names of its LoRA adapters in requests."""

    @property
    def ready(self) -> int | None:
        """Ready instances; None: the inventory is not known."""
        known = [counted.ready for counted in self.types.values() if counted.ready is not None]
        return sum(known) if known else None

    @property
    def below_target(self) -> bool:
        """It is known that fewer instances are ready than the target."""
        return self.target is not None and self.ready is not None and self.ready < self.target

    @property
    def queued(self) -> float | None:
        """Requests that wait in an engine or in the router; None: both are unknown."""
        return sum_of_known((self.waiting, self.held))

    @property
    def usd_per_million_tokens(self) -> Decimal | None:
        """Blended, of the last hour; None: not known, or no tokens."""
        return None if self.unit is None else self.unit.blended

    @property
    def fallback_type(self) -> CapacityType:
        """The capacity type that the pool falls back to when spot is missing."""
        flex_start = self.types[CapacityType.FLEX_START].most is not None
        return CapacityType.FLEX_START if flex_start else CapacityType.ON_DEMAND


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertView:
    name: str
    severity: str
    pool: str | None
    instance_id: str | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotPriceView:
    """A spot price next to its on-demand price."""

    zone: str
    machine_type: str
    spot: Decimal | None
    on_demand: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetData:
    """Everything that was read; `problems` names what failed."""

    document: FleetDocument
    at: datetime
    instances: Sequence[Instance] | None
    """None: the inventory could not be read completely."""
    signals: Mapping[str, InstanceSignals] = field(default_factory=dict[str, InstanceSignals])
    held: Mapping[str, float] = field(default_factory=dict[str, float])
    alerts: Sequence[AlertView] | None = None
    ledger_read: bool = True
    """False: the targets, brakes, decisions and costs are unknown, not none."""
    targets: Mapping[str, int] = field(default_factory=dict[str, int])
    brakes: Sequence[Brake] = ()
    acts: Sequence[LedgerEntry] = ()
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps instances to the watchdog that marked or drains it, and the reason."""
    last_seen: Mapping[str, datetime] = field(default_factory=dict[str, datetime])
    """Maps watchdogs to the time of their last record."""
    hour: CostView | None = None
    today: CostView | None = None
    market: Sequence[SpotPriceView] = ()
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """The view of one environment."""

    name: str
    at: datetime
    pools: Sequence[PoolStatus]
    instances: Sequence[InstanceView]
    orphans: Sequence[InstanceView]
    """Instances with the environment's tag that are in no pool of its document, or in a group that their pool does
    not have.
    """
    usd_per_hour: Decimal | None
    """None: the inventory is not known."""
    unpriced: int
    read: FleetData


Price = Callable[[Instance], Decimal | None]


def build(read: FleetData, price: Price) -> FleetView:
    """The view of one fleet."""
    alive = [one for one in read.instances or () if one.alive and not one.is_infrastructure]
    shown = [
        _instance(
            instance,
            read.signals.get(instance.id, InstanceSignals()),
            price(instance),
            why=read.reasons.get(instance.id),
        )
        for instance in alive
    ]
    groups = read.document.group_names()
    of_pool: defaultdict[str | None, list[InstanceView]] = defaultdict(list)
    for instance, seen in zip(alive, shown, strict=True):
        of_pool[owning_pool(groups, instance)].append(seen)
    priced = [instance.usd_per_hour for instance in shown if instance.usd_per_hour is not None]
    name = fleet_name(read.document.cloud, read.document.environment, read.document.region)
    return FleetView(
        name=name,
        at=read.at,
        pools=[
            _pool(pool, None if read.instances is None else of_pool[pool.name], read) for pool in read.document.pools
        ],
        instances=shown,
        orphans=of_pool[None],
        usd_per_hour=None if read.instances is None else sum(priced, Decimal(0)),
        unpriced=len(shown) - len(priced),
        read=read,
    )


def _instance(
    instance: Instance, signals: InstanceSignals, usd_per_hour: Decimal | None, *, why: str | None
) -> InstanceView:
    return InstanceView(
        id=instance.id,
        pool=instance.pool,
        capacity_type=instance.capacity_type,
        zone=instance.zone,
        machine_type=instance.machine_type,
        state=instance.state,
        launched_at=instance.launched_at,
        signals=signals,
        usd_per_hour=usd_per_hour,
        idle_since=instance.idle_since,
        keep_until=instance.keep_until,
        why=why,
    )


def _pool(pool: Pool, found: Sequence[InstanceView] | None, read: FleetData) -> PoolStatus:
    known, instances = found is not None, found or ()
    priced = [instance.usd_per_hour for instance in instances if instance.usd_per_hour is not None]
    return PoolStatus(
        name=pool.name,
        model=pool.model.rpartition("/")[2],
        adapters=tuple(pool.adapters),
        engine=pool.engine,
        target=read.targets.get(pool.name),
        least=pool.min,
        most=pool.max,
        types={kind: _counted(pool, kind, found) for kind in CapacityType},
        draining=sum(instance.draining for instance in instances) if known else None,
        marked=sum(instance.idle_since is not None for instance in instances) if known else None,
        held=read.held.get(pool.name),
        waiting=sum_of_known(instance.signals.waiting for instance in instances),
        tokens_per_second=sum_of_known(instance.signals.tokens_per_second for instance in instances),
        usd_per_hour=sum(priced, Decimal(0)) if known else None,
        unpriced=len(instances) - len(priced),
        unit=read.hour.by_pool[pool.name][1] if read.hour and pool.name in read.hour.by_pool else None,
    )


def _counted(pool: Pool, kind: CapacityType, instances: Iterable[InstanceView] | None) -> CapacityCount:
    groups = pool.groups_of(kind)
    most = sum(group.max for group in groups) if groups else None
    if instances is None:
        return CapacityCount(ready=None, there=None, most=most)
    of_kind = [instance for instance in instances if instance.capacity_type is kind]
    return CapacityCount(ready=sum(instance.ready for instance in of_kind), there=len(of_kind), most=most)


def sum_of_known(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None when all are unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
