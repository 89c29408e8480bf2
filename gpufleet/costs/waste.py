"""Waste: cost of capacity that served no requests, by cause and pool, with advice. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

from gpufleet.costs.allocation import Charge, ChargeKind, UseState
from gpufleet.costs.report import NONE, Report
from gpufleet.domain import money
from gpufleet.domain.decisions import KeptUnobserved


class WasteCause(StrEnum):
    """Why capacity served no requests."""

    IDLE = "idle"
    UNUSED = "unused reservation"
    STARTING = "starting"
    MINIMUM = "minimum charge"
    UNOBSERVED = "kept without metrics"


UNOBSERVED_LEAST: Final = timedelta(days=1)
"""Shorter times without metrics do not count as waste."""
_MICROSECOND: Final = timedelta(microseconds=1)
_UNKNOWN_WORK: Final = frozenset({UseState.UNMEASURED, UseState.IDLE, UseState.STARTING})
"""States that may be waste if the metrics are missing. Time that is known to be used is not waste."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """One cause in one pool."""

    cause: WasteCause
    pool: str
    amount: Decimal
    """In dollar-seconds."""
    time: timedelta
    """Instance time together."""
    resources: tuple[str, ...]
    advice: str
    unpriced: tuple[str, ...] = ()
    """Its charges without a price. If there are any, `amount` is a lower bound."""


def waste(report: Report, unobserved: Iterable[KeptUnobserved] = ()) -> list[Waste]:
    """Every cause in every pool, the most expensive first. Credits for preempted instances are subtracted.

    `unobserved`: the times for which instances were kept without metrics; those longer than a day count.
    """
    spans = _long(unobserved, report.scope.until)
    sums: dict[tuple[WasteCause, str], Decimal] = {}
    times: dict[tuple[WasteCause, str], timedelta] = {}
    resources: dict[tuple[WasteCause, str], dict[str, None]] = {}
    unpriced: dict[tuple[WasteCause, str], set[str]] = {}
    for cause, charge in (part for one in report.charges for part in _parts(one, spans.get(one.resource, ()))):
        if cause is None or (charge.amount is not None and not charge.amount):
            continue
        key = (cause, charge.pool or NONE)
        sums[key] = money.EXACT.add(sums.get(key, money.ZERO), charge.amount or money.ZERO)
        if charge.amount is None:
            unpriced.setdefault(key, set()).add(charge.priced_as)
        if charge.kind in (ChargeKind.TIME, ChargeKind.RESERVATION, ChargeKind.COMMITTED):
            times[key] = times.get(key, timedelta(0)) + charge.duration
        resources.setdefault(key, {})[charge.resource] = None
    found = [
        Waste(
            cause=cause,
            pool=pool,
            amount=amount,
            time=times.get((cause, pool), timedelta(0)),
            resources=tuple(resources[cause, pool]),
            advice=_advice(cause, len(resources[cause, pool]), times.get((cause, pool), timedelta(0))),
            unpriced=tuple(sorted(unpriced.get((cause, pool), ()))),
        )
        for (cause, pool), amount in sums.items()
        if amount > 0 or (cause, pool) in unpriced
    ]
    return sorted(found, key=lambda w: (-w.amount, w.cause, w.pool))


def total(found: Iterable[Waste]) -> Decimal:
    """All of it, in dollar-seconds."""
    return money.total(one.amount for one in found)


def _long(unobserved: Iterable[KeptUnobserved], now: datetime) -> dict[str, list[tuple[datetime, datetime]]]:
    """By instance: intervals longer than a day in which it was kept without metrics."""
    found: dict[str, list[tuple[datetime, datetime]]] = {}
    for one in unobserved:
        end = one.until or now
        if end - one.since > UNOBSERVED_LEAST:
            found.setdefault(one.instance_id, []).append((one.since, end))
    return found


def _parts(charge: Charge, spans: Iterable[tuple[datetime, datetime]]) -> Iterator[tuple[WasteCause | None, Charge]]:
    """The parts of a charge by cause: the parts in one of the spans, oldest first, and the remainder."""
    begin, cause = charge.start, _cause(charge)
    if charge.state in _UNKNOWN_WORK and charge.kind is ChargeKind.TIME:
        for since, until in spans:
            start, end = max(begin, since), min(charge.end, until)
            if start < end:
                yield cause, _within(charge, begin, start)
                yield WasteCause.UNOBSERVED, _within(charge, start, end)
                begin = end
    if begin < charge.end or begin == charge.start:
        yield cause, _within(charge, begin, charge.end)


def _within(charge: Charge, start: datetime, end: datetime) -> Charge:
    """The part of a charge that falls into a part of its span, if its time is spread evenly."""
    if (start, end) == (charge.start, charge.end):
        return charge
    whole, part = ((charge.end - charge.start) // _MICROSECOND, (end - start) // _MICROSECOND)
    duration = _MICROSECOND * (charge.duration // _MICROSECOND * part // whole)
    amount = None if charge.price is None else money.dollar_seconds(charge.price.usd_per_hour, duration)
    return replace(charge, start=start, end=end, duration=duration, amount=amount)


def _cause(charge: Charge) -> WasteCause | None:
    if charge.kind is ChargeKind.MINIMUM:
        return WasteCause.MINIMUM
    return {
        UseState.IDLE: WasteCause.IDLE,
        UseState.UNUSED: WasteCause.UNUSED,
        UseState.STARTING: WasteCause.STARTING,
    }.get(charge.state)


def _advice(cause: WasteCause, resources: int, time: timedelta) -> str:
    hours = time.total_seconds() / 3600
    count = f"{resources} instance{'' if resources == 1 else 's'}"
    match cause:
        case WasteCause.IDLE:
            return (
                f"{count} idled {hours:.1f} h in total: run `gpufleet watch idle --apply` to end them,"
                " or lower the pool's target or min"
            )
        case WasteCause.UNUSED:
            return "no instance ran on paid capacity: raise the target, move a pool to it, or cancel the reservation"
        case WasteCause.STARTING:
            each = time.total_seconds() / max(resources, 1)
            return (
                f"{each:.0f} s from launch to first reading on average: reduce restarts, or use a nearer model cache"
            )
        case WasteCause.UNOBSERVED:
            return (
                f"{count} kept for {hours:.1f} h in total because their metrics are missing:"
                " check that Prometheus reaches the engine and the GPU exporter (`gpufleet watch why INSTANCE`)"
            )
        case WasteCause.MINIMUM:
            return "instances that ran for less than a minute are billed for a minute: find out why boots fail"
