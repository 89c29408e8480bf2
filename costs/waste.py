"""Where money went without serving: by cause and pool, with what can be done about it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum

from costs.allocation import Charge, Kind, State
from costs.report import NONE, Report
from gpufleet.domain import money


class Cause(StrEnum):
    """Why money served nobody."""

    IDLE = "idle"
    UNUSED = "unused reservation"
    STARTING = "starting"
    MINIMUM = "minimum charge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """One cause in one pool."""

    cause: Cause
    pool: str
    amount: Decimal
    """In dollar-seconds."""
    time: timedelta
    """Instance time together."""
    resources: tuple[str, ...]
    advice: str


def waste(report: Report) -> list[Waste]:
    """Every cause in every pool, the dearest first. Credits of interrupted instances are taken off."""
    sums: dict[tuple[Cause, str], Decimal] = {}
    times: dict[tuple[Cause, str], timedelta] = {}
    resources: dict[tuple[Cause, str], dict[str, None]] = {}
    for charge in report.charges:
        cause = _cause(charge)
        if cause is None or charge.amount is None:
            continue
        key = (cause, charge.pool or NONE)
        sums[key] = money.EXACT.add(sums.get(key, money.ZERO), charge.amount)
        if charge.kind in (Kind.TIME, Kind.RESERVATION, Kind.COMMITTED):
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
        )
        for (cause, pool), amount in sums.items()
        if amount > 0
    ]
    return sorted(found, key=lambda w: (-w.amount, w.cause, w.pool))


def total(found: Iterable[Waste]) -> Decimal:
    """All of it, in dollar-seconds."""
    return money.total(one.amount for one in found)


def _cause(charge: Charge) -> Cause | None:
    if charge.kind is Kind.MINIMUM:
        return Cause.MINIMUM
    return {State.IDLE: Cause.IDLE, State.UNUSED: Cause.UNUSED, State.STARTING: Cause.STARTING}.get(charge.state)


def _advice(cause: Cause, resources: int, time: timedelta) -> str:
    hours = time.total_seconds() / 3600
    count = f"{resources} instance{'' if resources == 1 else 's'}"
    match cause:
        case Cause.IDLE:
            return (
                f"{count} idled {hours:.1f} h in all: let `gpufleet watch idle --apply` end them,"
                " or lower the pool's target or min"
            )
        case Cause.UNUSED:
            return "nobody ran on paid capacity: raise the target, move a pool onto it, or let the reservation go"
        case Cause.STARTING:
            each = time.total_seconds() / max(resources, 1)
            return f"{each:.0f} s from launch to first reading on average: fewer restarts, or a nearer model cache"
        case Cause.MINIMUM:
            return "instances that lived less than a minute are billed a minute: look at why boots fail"
