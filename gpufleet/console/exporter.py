"""Exports data of the ledger and the settings as metrics: spend, budget, targets, preemptions, brakes, messages.
Pure.

Missing is not zero: an unknown value has no series.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from gpufleet.costs.allocation import Charge
from gpufleet.costs.report import NONE, Report
from gpufleet.domain import money
from gpufleet.metrics_page import Labels, counter, gauge, page


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpend:
    """The charges in one window of the ledger, and the part of the window that the ledger covers."""

    window: str
    """`1h` or `24h`."""
    covered: timedelta
    charges: Sequence[Charge]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """The use of one account quota by the environment's running instances, and its limit."""

    quota: str
    """The cloud's name of the quota."""
    unit: str
    used: int
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMetrics:
    """The metrics of one fleet."""

    environment: str
    targets: Mapping[str, int] = field(default_factory=dict[str, int])
    known_until: datetime | None = None
    budget_usd_per_month: Decimal | None = None
    spends: Sequence[WindowSpend] = ()
    preemptions: Mapping[str, int] = field(default_factory=dict[str, int])
    """Pool to the number of spot instances that the cloud has preempted so far."""
    brakes: int = 0
    messages: Mapping[str, int] = field(default_factory=dict[str, int])
    """State to the number of messages in the outbox."""
    quotas: Sequence[QuotaUse] = ()
    """Quotas with a known limit."""


MIN_COVERED = timedelta(minutes=5)
"""A rate over a shorter time is not meaningful."""


def spend(report: Report, window: str, begun: datetime | None) -> WindowSpend:
    """A report's charges, and the part of its window that the ledger covers."""
    since = max(report.scope.since, begun or report.scope.until)
    until = min(report.known_until or since, report.scope.until)
    return WindowSpend(window=window, covered=max(until - since, timedelta(0)), charges=report.charges)


def render(facts: Iterable[FleetMetrics]) -> str:
    """The whole metrics page."""
    found = list(facts)
    return page(
        (
            gauge("gpufleet_target", "The target of ready replicas.", _targets(found)),
            gauge(
                "gpufleet_ledger_known_until_seconds",
                "The time until which costs are known.",
                (({"environment": f.environment}, f.known_until.timestamp()) for f in found if f.known_until),
            ),
            gauge(
                "gpufleet_budget_usd_per_month",
                "The month's budget.",
                (
                    ({"environment": f.environment}, float(f.budget_usd_per_month))
                    for f in found
                    if f.budget_usd_per_month is not None
                ),
            ),
            gauge("gpufleet_spend_rate_usd_per_hour", "Cost of a window over its known time.", _rates(found)),
            gauge("gpufleet_spend_usd_per_hour", "Cost of the last hour over its known time.", _parts(found)),
            counter("gpufleet_preemptions_total", "Spot instances that the cloud preempted.", _preemptions(found)),
            gauge(
                "gpufleet_brakes",
                "Hand brakes in effect.",
                (({"environment": f.environment}, f.brakes) for f in found),
            ),
            gauge("gpufleet_messages", "Messages of the outbox.", _messages(found)),
            gauge(
                "gpufleet_quota_used",
                "The use of an account's quota by the instances of the environment.",
                ((labels, use.used) for labels, use in _quotas(found)),
            ),
            gauge(
                "gpufleet_quota_limit",
                "The limit of the quota.",
                ((labels, use.limit) for labels, use in _quotas(found)),
            ),
        )
    )


def _targets(found: Iterable[FleetMetrics]) -> Iterator[tuple[Labels, float]]:
    for facts in found:
        for pool, value in facts.targets.items():
            yield {"environment": facts.environment, "pool": pool}, value


def _preemptions(found: Iterable[FleetMetrics]) -> Iterator[tuple[Labels, float]]:
    for facts in found:
        for pool, value in facts.preemptions.items():
            yield {"environment": facts.environment, "pool": pool}, value


def _messages(found: Iterable[FleetMetrics]) -> Iterator[tuple[Labels, float]]:
    for facts in found:
        for state, value in facts.messages.items():
            yield {"environment": facts.environment, "state": state}, value


def _quotas(found: Iterable[FleetMetrics]) -> Iterator[tuple[Labels, QuotaUse]]:
    for facts in found:
        for use in facts.quotas:
            yield {"environment": facts.environment, "quota": use.quota, "unit": use.unit}, use


def _rates(found: Iterable[FleetMetrics]) -> Iterator[tuple[Labels, float]]:
    for facts in found:
        for one in facts.spends:
            if one.covered >= MIN_COVERED:
                whole = money.total(c.amount for c in one.charges if c.amount is not None)
                yield {"environment": facts.environment, "window": one.window}, _per_hour(whole, one.covered)


def _parts(found: Iterable[FleetMetrics]) -> Iterator[tuple[Labels, float]]:
    for facts in found:
        for one in facts.spends:
            if one.window != "1h" or one.covered < MIN_COVERED:
                continue
            parts: dict[tuple[str, str, str], Decimal] = {}
            for charge in one.charges:
                if charge.amount is not None:
                    key = (charge.pool or NONE, charge.capacity_type.value, charge.state.value)
                    parts[key] = money.total((parts.get(key, money.ZERO), charge.amount))
            for (pool, kind, state), amount in sorted(parts.items()):
                labels = {"environment": facts.environment, "pool": pool, "capacity_type": kind, "state": state}
                yield labels, _per_hour(amount, one.covered)


def _per_hour(amount: Decimal, covered: timedelta) -> float:
    return float(money.usd(amount)) / (covered.total_seconds() / 3600)
