"""Throughput that a fleet's own machines served, from its ledger, as a source of speed for `gpufleet choose`."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from app import reports
from app.errors import AppError, ErrorCode
from app.fleets import load
from app.windows import Window
from gpufleet.costs.allocation import ChargeKind, UseState
from gpufleet.costs.report import Report
from gpufleet.ledger.counters import Tokens
from gpufleet.settings.document import FleetDocument
from serving.sizing.measurements import ALIKE
from serving.sizing.speed import Speed, SpeedError, SpeedOrigin, Traffic

DAYS: Final = 7
"""Days of the ledger that are read."""
MIN_USED: Final = timedelta(hours=1)
"""Minimum used time of a machine type in a day so that the day counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDay:
    """What one pool's machines of one type served in a day, while they were used."""

    tokens: Tokens
    used: timedelta
    """Used time of all machines together."""

    @property
    def tokens_per_s(self) -> float | None:
        """Input and output tokens per second and machine; None: unknown, or too little time."""
        total = self.tokens.total
        return None if total is None or self.used < MIN_USED else total / self.used.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedHere:
    """The served throughput of one machine type."""

    speed: Speed | None
    """None: see `why`."""
    why: str


def served_here(
    urls: list[str] | None, pool: str | None, traffic: Traffic, now: datetime
) -> Mapping[str, ServedHere]:
    """Return what the pool of this name served, by machine type. Without a pool: nothing. Raises AppError."""
    if pool is None:
        return {}
    documents = load(urls)
    found = [one for one in documents if any(each.name == pool for each in one.pools)]
    if len(found) != 1:
        known = ", ".join(sorted({each.name for one in documents for each in one.pools}))
        where = f"in {len(found)} fleets: select one with --fleet" if found else "in none"
        raise AppError(
            f"--pool: expected a pool of one of the fleets, got {pool!r}, which is {where}; pools: {known}",
            ErrorCode.WRONG_USE,
        )
    (document,) = found
    days = [
        Window(since=now - timedelta(days=back + 1), until=now - timedelta(days=back), now=now, timezone="UTC")
        for back in range(DAYS)
    ]
    by_type: dict[str, list[ServedDay]] = defaultdict(list)
    for report in reports.costs(document, days, True):
        for machine_type, day in _days(report, pool).items():
            by_type[machine_type].append(day)
    return {
        machine_type: of_days(document, pool, machine_type, rows, traffic) for machine_type, rows in by_type.items()
    }


def _days(report: Report, pool: str) -> Mapping[str, ServedDay]:
    """What the pool's machines served in the report's window, by machine type."""
    used: dict[str, timedelta] = defaultdict(timedelta)
    tokens: dict[str, Tokens] = {}
    for (name, _, kind, _, _, machine_type), figure in report.cells.items():
        if name != pool or kind == ChargeKind.SHARED:
            continue
        times = (figure.times.get(state, timedelta()) for state in (UseState.USED, UseState.UNMEASURED))
        used[machine_type] = sum(times, used[machine_type])
        tokens[machine_type] = tokens.get(machine_type, Tokens()) + figure.tokens
    return {name: ServedDay(tokens=tokens[name], used=time) for name, time in used.items()}


def of_days(
    document: FleetDocument, pool: str, machine_type: str, days: list[ServedDay], traffic: Traffic
) -> ServedHere:
    """Return the rate of the busiest day. It is a lower bound: the machines may not have been at their limit."""
    where = f"{document.cloud}/{document.environment}/{document.region}, pool {pool}, {machine_type}"
    rates = sorted(rate for day in days if (rate := day.tokens_per_s) is not None)
    busiest = max((day for day in days if day.tokens_per_s == rates[-1]), key=lambda day: day.used) if rates else None
    if busiest is None or not busiest.tokens.prompt or not busiest.tokens.generation:
        return ServedHere(speed=None, why=f"{where}: no day of the last {DAYS} with an hour of use and known tokens")
    most = rates[-1]
    mix, wanted = busiest.tokens.prompt / busiest.tokens.generation, traffic.input_tokens / traffic.output_tokens
    if abs(mix - wanted) > ALIKE * mix:
        why = f"{where}: serves {mix:.2g} input tokens per output token, the demand has {wanted:.2g}"
        return ServedHere(speed=None, why=why)
    basis = f"{len(rates)} day(s) of the ledger; machines that are not at their limit could serve more"
    speed = Speed(
        requests_per_s=most / (traffic.input_tokens + traffic.output_tokens),
        concurrency=None,
        ttft_s=None,
        itl_s=None,
        kind=SpeedOrigin.MEASURED_HERE,
        source=f"ledger of {where}: {most:,.0f} tokens/s per machine on the busiest of the last {DAYS} days",
        error=SpeedError(low=rates[0] / most - 1, high=None, basis=basis),
    )
    return ServedHere(speed=speed, why="")
