"""Reads what `gpufleet status`, `top` and the web page show. What cannot be read is said, the rest is shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from cli.money import ledger_name, overrides_of
from cli.output import UserError
from cli.wiring import Wired, wire
from console import book
from console.view import AlertView, CostView, FleetView, MarketView, Read, Signals, build
from costs.report import Scope
from costs.report import load as load_report
from fleet.activity import CloudError
from fleet.document import FleetDocument
from fleet.model import CapacityType, Instance
from monitoring import queries
from prices.packaged import PackagedPrices

T = TypeVar("T")

LEAST_WINDOW = timedelta(seconds=15)
MOST_ACTS = 5
COSTS_EVERY = timedelta(seconds=30)
"""Costs of a day are added up this often, however often the screen is drawn."""


@dataclass(slots=True)
class Watched:
    """One fleet, read again and again; its clients and the last costs live as long as it does."""

    document: FleetDocument
    costs: bool = True
    _wired: Wired | None = None
    _hour: CostView | None = None
    _today: CostView | None = None
    _costs_at: datetime | None = None
    _problems: list[str] = field(default_factory=list[str])

    def look(self) -> FleetView:
        """The fleet as it is now. Raises UserError when its ledger cannot be opened."""
        now = datetime.now(UTC)
        wired = self._wired or wire(self.document, "status")
        self._wired = wired
        self._problems = []
        fleet = ledger_name(self.document)
        instances = self._try("inventory", lambda: tuple(wired.ports.inventory.instances()), None)
        if self.costs and (self._costs_at is None or now - self._costs_at >= COSTS_EVERY):
            self._costs_at = now
            midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
            self._hour = self._try(
                "costs of the hour", lambda: self._cost(wired, now - timedelta(hours=1), now), None
            )
            self._today = self._try("costs of today", lambda: self._cost(wired, midnight, now), None)
        signals = self._try("metrics", lambda: self._signals(wired, now), dict[str, Signals]())
        marked = [one.id for one in instances or () if one.idle_since is not None]
        read = Read(
            document=self.document,
            at=now,
            instances=instances,
            signals=signals,
            held=self._try("held requests", lambda: _by(wired, queries.HELD, "pool", now), dict[str, float]()),
            alerts=self._try("alerts", lambda: _alerts(wired, now), None),
            targets=book.targets(wired.engine, fleet),
            brakes=book.brakes(wired.engine, fleet, now),
            acts=book.acts(wired.engine, fleet, MOST_ACTS, since=now - timedelta(hours=1)),
            reasons={
                **book.reasons(wired.engine, fleet, marked),
                **self._try("reasons of drains", lambda: _drains(wired, now), dict[str, str]()),
            },
            last_seen=book.last_seen(wired.engine, fleet),
            hour=self._hour,
            today=self._today,
            market=_market(self.document, wired, instances or ()),
            problems=tuple(dict.fromkeys(self._problems)),
        )
        return build(read, wired.ports.prices.usd_per_hour)

    def _try(self, what: str, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except (CloudError, UserError) as error:
            self._problems.append(f"{what} not known: {error}")
            return otherwise

    def _cost(self, wired: Wired, since: datetime, until: datetime) -> CostView:
        scope = Scope(
            fleet=ledger_name(self.document),
            environment=self.document.environment,
            cloud=self.document.cloud,
            region=self.document.region,
            since=since,
            until=until,
            now=until,
            allow_unpriced=True,
        )
        return book.cost(load_report(wired.engine, scope, overrides_of(self.document), PackagedPrices()))

    def _signals(self, wired: Wired, now: datetime) -> dict[str, Signals]:
        interval = wired.prometheus.interval("engine") or timedelta(seconds=15)
        window = max(4 * interval, LEAST_WINDOW)
        found: dict[str, dict[str, Any]] = {}
        for name, query in queries.per_instance(self.document.environment, window).items():
            for instance, value in _by(wired, query, "instance_id", now).items():
                found.setdefault(instance, {})[name] = value
        for labels, _ in wired.prometheus.query(queries.PHASE, now):
            found.setdefault(labels.get("instance_id", ""), {})["phase"] = labels.get("phase")
        return {instance: Signals(**values) for instance, values in found.items()}


def _by(wired: Wired, query: str, label: str, now: datetime) -> dict[str, float]:
    return {labels.get(label, ""): value for labels, value in wired.prometheus.query(query, now)}


def _drains(wired: Wired, now: datetime) -> dict[str, str]:
    """What each draining instance's agent says it was asked for."""
    found = wired.prometheus.query(queries.DRAINING, now)
    return {labels.get("instance_id", ""): labels["reason"] for labels, _ in found if labels.get("reason")}


def _alerts(wired: Wired, now: datetime) -> Sequence[AlertView]:
    return [
        AlertView(
            name=labels.get("alertname", ""),
            severity=labels.get("severity", ""),
            pool=labels.get("pool"),
            instance_id=labels.get("instance_id"),
            count=int(value),
        )
        for labels, value in wired.prometheus.query(queries.FIRING, now)
    ]


def _market(document: FleetDocument, wired: Wired, instances: Sequence[Instance]) -> list[MarketView]:
    """Spot prices of what runs as spot now, each machine type and zone once."""
    pools = {pool.name for pool in document.pools}
    running = {
        (i.zone, i.machine_type) for i in instances if i.capacity_type is CapacityType.SPOT and i.pool in pools
    }
    return [
        MarketView(
            zone=zone,
            machine_type=machine_type,
            spot=wired.ports.prices.spot_usd_per_hour(machine_type, zone),
            on_demand=wired.ports.prices.on_demand_usd_per_hour(machine_type),
        )
        for zone, machine_type in sorted(running)
    ]
