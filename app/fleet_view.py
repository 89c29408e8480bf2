"""Reads what `gpufleet status`, `top` and the web page show. If a source cannot be read, the view names it as a
problem and shows the others.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from app.errors import AppError
from app.ledgers import ledger_name, not_here
from app.wiring import AllInstances, Wired, prices_of, wire
from gpufleet.console import ledger_data
from gpufleet.console.view import AlertView, CostView, FleetData, FleetView, InstanceSignals, SpotPriceView, build
from gpufleet.domain.activity import CloudError
from gpufleet.domain.clocks import is_over
from gpufleet.domain.model import CapacityType, Instance
from gpufleet.ledger import operations
from gpufleet.ledger.decisions import last_outcomes
from gpufleet.ledger.sums import Span
from gpufleet.settings.document import FleetDocument
from hosts.monitoring import queries
from watchdogs.ports import Agents, Prices

T = TypeVar("T")

MIN_WINDOW = timedelta(seconds=15)
MAX_ACTS = 5
MAX_NAMED = 5
"""Maximum number of instances that one line names."""
FIRST_ASKED = 32
"""Without metrics, this many agents are asked first, to find out whether this machine reaches any of them."""
PRICES_EVERY = timedelta(minutes=1)
"""Prices are read again at this interval: a console runs for weeks, and spot prices change every hour."""
COSTS_EVERY = timedelta(seconds=30)
"""Costs of a day are computed here at most this often, however often the screen is drawn."""


class Costs(StrEnum):
    """Where the sums of the last hour and of today come from."""

    LEFT = "left"
    """From the cost watchdog's last pass. They are computed here if it stored none."""
    REFRESHED = "refreshed"
    """Computed here."""
    NONE = "none"


@dataclass(slots=True)
class Watched:
    """One fleet that is read repeatedly. Its clients and last costs are kept between reads."""

    document: FleetDocument
    costs: Costs = Costs.LEFT
    _wired: Wired | None = None
    _not_read: str | None = None
    """Why the ledger was not read. A console may have started before its ledger exists."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    fed: AllInstances | None = None
    """The inventory of a process without cloud credentials."""
    _prices: Prices | None = None
    _prices_at: datetime | None = None
    _hour: CostView | None = None
    _today: CostView | None = None
    _costs_at: datetime | None = None
    _problems: list[str] = field(default_factory=list[str])

    def look(self) -> FleetView:
        """The current state of the fleet. Raises AppError when its ledger cannot be opened."""
        now = self.clock()
        not_read = not_here(self.document)
        if self._wired is None or not_read != self._not_read:
            self._wired, self._not_read = self._wire(), not_read
            self._prices, self._prices_at = self._wired.ports.prices, now
        wired, prices = self._wired, self._prices_now(self._wired, now)
        self._problems = [] if not_read is None else [f"{not_read}: its targets, brakes and costs are unknown"]
        fleet = ledger_name(self.document)
        listed = self._try("inventory", wired.ports.inventory.listed, None)
        self._problems += () if listed is None else (f"inventory: {error}" for error in listed.errors.values())
        instances = None if listed is None else tuple(listed.instances)
        self._cost(wired, now)
        signals = self._try("metrics", lambda: self._signals(wired, now), dict[str, InstanceSignals]())
        if not any(signal.phase for signal in signals.values()):
            signals = with_phases(signals, wired.ports.agents, instances or ())
        self._problems += self._try("order keys", lambda: self._unknown_keys(wired, signals, now), list[str]())
        marked = [one.id for one in instances or () if one.idle_since is not None]
        read = FleetData(
            document=self.document,
            at=now,
            instances=instances,
            signals=signals,
            held=self._try("held requests", lambda: _by(wired, queries.HELD, "pool", now), dict[str, float]()),
            alerts=self._try("alerts", lambda: _alerts(wired, now), None),
            ledger_read=not_read is None,
            targets=ledger_data.targets(wired.engine, fleet),
            brakes=operations.brakes(wired.engine, fleet, now),
            acts=last_outcomes(wired.engine, fleet, MAX_ACTS, since=now - timedelta(hours=1)),
            reasons={
                **ledger_data.reasons(wired.engine, fleet, marked),
                **self._try("reasons of drains", lambda: _drains(wired, now), dict[str, str]()),
            },
            last_seen=ledger_data.last_seen(wired.engine, fleet),
            hour=self._hour,
            today=self._today,
            market=_market(self.document, prices, instances or ()),
            problems=tuple(dict.fromkeys(self._problems)),
        )
        return build(read, prices.usd_per_hour)

    def _wire(self) -> Wired:
        wired = wire(self.document, "status", reading=True)
        return wired if self.fed is None else replace(wired, ports=replace(wired.ports, inventory=self.fed))

    def _try(self, what: str, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except (CloudError, AppError) as error:
            self._problems.append(f"{what} not known: {error}")
            return otherwise

    def _prices_now(self, wired: Wired, now: datetime) -> Prices:
        if self._prices is None or is_over(self._prices_at, PRICES_EVERY, now):
            self._prices, self._prices_at = prices_of(wired.engine, self.document, now), now
        return self._prices

    def _cost(self, wired: Wired, now: datetime) -> None:
        """Read the sums of the last hour and of today, and report if they are old."""
        if self.costs is Costs.NONE:
            return
        left = None
        if self.costs is Costs.LEFT:
            left = ledger_data.stored_costs(wired.engine, ledger_name(self.document), now)
        if left is not None:
            self._hour, self._today = left
        elif is_over(self._costs_at, COSTS_EVERY, now):
            self._costs_at = now
            self._hour = self._try("costs of the hour", lambda: self._added_up(wired, Span.HOUR, now), None)
            self._today = self._try("costs of today", lambda: self._added_up(wired, Span.TODAY, now), None)
        known_until = None if self._hour is None else self._hour.known_until
        if known_until is not None and now - known_until > self.document.alerts.ledger_gap:
            self._problems.append(
                f"costs are known until {known_until:%Y-%m-%d %H:%M} UTC:"
                " `gpufleet watch cost` has written nothing since"
            )

    def _added_up(self, wired: Wired, span: Span, now: datetime) -> CostView | None:
        # imports the cost reports, which a status with stored sums does not need
        from app.cost_sums import compute_sums

        return ledger_data.cost(compute_sums(self.document, wired.engine, [span], now), span)

    def _unknown_keys(self, wired: Wired, signals: Mapping[str, InstanceSignals], now: datetime) -> list[str]:
        if self.document.orders is None:
            return []
        taken: dict[str, set[str]] = {}
        for labels, _ in wired.prometheus.query(queries.ORDER_KEYS, now):
            taken.setdefault(labels.get("key", ""), set()).add(labels.get("instance_id", ""))
        answering = [instance for instance, signal in signals.items() if signal.phase is not None]
        return refused_orders(self.document.orders.fingerprints, answering, taken)

    def _signals(self, wired: Wired, now: datetime) -> dict[str, InstanceSignals]:
        interval = wired.prometheus.interval("engine") or timedelta(seconds=15)
        window = max(4 * interval, MIN_WINDOW)
        found: dict[str, dict[str, Any]] = {}
        for name, query in queries.per_instance(self.document.environment, window).items():
            for instance, value in _by(wired, query, "instance_id", now).items():
                found.setdefault(instance, {})[name] = value
        for labels, _ in wired.prometheus.query(queries.PHASE, now):
            found.setdefault(labels.get("instance_id", ""), {})["phase"] = labels.get("phase")
        return {instance: InstanceSignals(**values) for instance, values in found.items()}


def with_phases(
    signals: Mapping[str, InstanceSignals], agents: Agents, instances: Sequence[Instance]
) -> dict[str, InstanceSignals]:
    """Signals with the phases that agents report. A fleet without metrics still has instances to show.

    If none of the first agents answers, this machine reaches none of them, and the others are not asked.
    """
    asked = [one for one in instances if one.alive and not one.is_infrastructure]
    statuses = agents.statuses(asked[:FIRST_ASKED])
    if statuses:
        statuses = {**statuses, **agents.statuses(asked[FIRST_ASKED:])}
    found = {
        key: replace(signals.get(key, InstanceSignals()), phase=status.phase) for key, status in statuses.items()
    }
    return {**signals, **found}


def refused_orders(
    fingerprints: Sequence[str], instances: Collection[str], taken: Mapping[str, Collection[str]]
) -> list[str]:
    """A line for each key of the settings whose orders would be refused by some of these instances.

    `taken`: the instances that accept orders signed with each key. During a key change, the line names the instances
    that must still be replaced.
    """
    lines: list[str] = []
    for key in fingerprints:
        if refusing := sorted(set(instances) - set(taken.get(key, ()))):
            more = f" and {len(refusing) - MAX_NAMED} more" if len(refusing) > MAX_NAMED else ""
            names = ", ".join(refusing[:MAX_NAMED])
            lines.append(f"orders signed with key {key[:12]} would be refused by {names}{more}")
    return lines


def _by(wired: Wired, query: str, label: str, now: datetime) -> dict[str, float]:
    return {labels.get(label, ""): value for labels, value in wired.prometheus.query(query, now)}


def _drains(wired: Wired, now: datetime) -> dict[str, str]:
    """For each draining instance, the reason that its agent reports."""
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


def _market(document: FleetDocument, prices: Prices, instances: Sequence[Instance]) -> list[SpotPriceView]:
    """Spot prices of the running spot instances, one entry per machine type and zone."""
    pools = {pool.name for pool in document.pools}
    running = {
        (i.zone, i.machine_type) for i in instances if i.capacity_type is CapacityType.SPOT and i.pool in pools
    }
    return [
        SpotPriceView(
            zone=zone,
            machine_type=machine_type,
            spot=prices.spot_usd_per_hour(machine_type, zone),
            on_demand=prices.on_demand_usd_per_hour(machine_type),
        )
        for zone, machine_type in sorted(running)
    ]
