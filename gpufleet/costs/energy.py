"""Energy and CO2e of a part of a fleet, and their ratios to tokens. Pure.

Rules:
- Energy is that of accelerators, as their counters measure it: not that of hosts, networks and cooling. Time without
  a measurement is unknown. Its share is shown, and nothing is assumed for it.
- CO2e is energy times the grid factor that the settings stated at that time. If energy has no stated factor, the CO2e
  of each sum that contains it is unknown.
- Joules per million tokens count the instances whose energy was measured for at least `ENOUGH` of their device time,
  and whose tokens are known, also if they are 0. Energy and tokens of all others are left out of both sums.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Final

from gpufleet.costs.closing import Closing
from gpufleet.costs.commitments import DeclaredCosts
from gpufleet.costs.declarations import StoredDeclaration
from gpufleet.domain import catalogue, money
from gpufleet.domain.catalogue import UnknownMachineError
from gpufleet.domain.energy import GridFactor
from gpufleet.domain.model import Cloud
from gpufleet.ledger.counters import Tokens
from gpufleet.ledger.energy import EnergyUse, microseconds_of

ENOUGH: Final = Fraction(9, 10)
"""The measured share of an instance's device time from which its energy is compared with its tokens."""
_MILLIJOULES_PER_JOULE: Final = Decimal(1_000)
_MILLIJOULES_PER_KWH: Final = Decimal(3_600_000_000)
_MILLION: Final = Decimal(1_000_000)
_DIVIDE: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)
_STEP: Final = Decimal("0.001")
_FINE: Final = Decimal("0.000001")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceEnergy:
    """The energy of one instance in a part of a window with one owner and one grid factor."""

    instance_id: str
    since: datetime
    until: datetime
    use: EnergyUse
    factor: GridFactor | None
    """None: the settings stated none for that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """The energy of a part of a fleet. Energies are in millijoules."""

    used_mj: int = 0
    idle_mj: int = 0
    other_mj: int = 0
    """While it is unknown whether the instances were busy or idle."""
    measured_us: int = 0
    """Measured time of all devices together, in microseconds."""
    device_us: int = 0
    """Time of all devices together while their instances ran, measured or not."""
    weighted: Decimal = money.ZERO
    """Energies times their grid factors, in millijoules times grams per kWh."""
    without_factor_mj: int = 0
    resets: int = 0
    rejected: int = 0
    compared_mj: int = 0
    """The energy that is compared with `compared_tokens`."""
    compared_weighted: Decimal = money.ZERO
    compared_without_factor_mj: int = 0
    compared_tokens: int = 0

    def __add__(self, other: "Energy") -> "Energy":
        with localcontext(money.EXACT):
            return Energy(**{name: getattr(self, name) + getattr(other, name) for name in _NAMES})

    @property
    def millijoules(self) -> int | None:
        """The measured energy; None: nothing was measured."""
        return self.used_mj + self.idle_mj + self.other_mj if self.measured_us else None

    @property
    def coverage(self) -> float | None:
        """The measured share of the device time; None: no device ran."""
        return min(self.measured_us / self.device_us, 1.0) if self.device_us else None

    @property
    def grams(self) -> Decimal | None:
        """CO2e of the measured energy; None: nothing was measured, or a part has no stated grid factor."""
        if self.millijoules is None or self.without_factor_mj:
            return None
        return _DIVIDE.divide(self.weighted, _MILLIJOULES_PER_KWH).quantize(_FINE, context=_DIVIDE)

    @property
    def joules_per_million_tokens(self) -> Decimal | None:
        """None: energy and tokens were not both measured."""
        return _per_million(Decimal(self.compared_mj), self.compared_tokens, _MILLIJOULES_PER_JOULE, _STEP)

    @property
    def grams_per_million_tokens(self) -> Decimal | None:
        """CO2e; None: energy and tokens were not both measured, or a part has no stated grid factor."""
        if self.compared_without_factor_mj:
            return None
        return _per_million(self.compared_weighted, self.compared_tokens, _MILLIJOULES_PER_KWH, _FINE)

    def split(self, weights: Sequence[Decimal]) -> list["Energy"]:
        """Parts by weight, which add up to the millijoule; nothing of them is compared with tokens."""
        found = [Energy() for _ in weights]
        for name in ("used_mj", "idle_mj", "other_mj", "measured_us", "device_us", "without_factor_mj"):
            parts = money.split(Decimal(getattr(self, name)), weights, Decimal(1))
            found = [replace(one, **{name: int(part)}) for one, part in zip(found, parts, strict=True)]
        parts = money.split(self.weighted, weights)
        return [replace(one, weighted=part) for one, part in zip(found, parts, strict=True)]

    def compared_with(self, tokens: Tokens) -> "Energy":
        """All of it, compared with tokens; unchanged if these are unknown."""
        if tokens.total is None:
            return self
        return replace(
            self,
            compared_mj=self.used_mj + self.idle_mj + self.other_mj,
            compared_weighted=self.weighted,
            compared_without_factor_mj=self.without_factor_mj,
            compared_tokens=tokens.total,
        )


_NAMES: Final = tuple(field.name for field in fields(Energy))


def joules(millijoules: int) -> Decimal:
    """Millijoules in joules."""
    return Decimal(millijoules).scaleb(-3)


def _per_million(amount: Decimal, tokens: int, unit: Decimal, step: Decimal) -> Decimal | None:
    if not tokens:
        return None
    scaled = _DIVIDE.divide(_DIVIDE.multiply(amount, _MILLION), _DIVIDE.multiply(unit, Decimal(tokens)))
    return scaled.quantize(step, context=_DIVIDE)


def energy_of(use: EnergyUse, factor: GridFactor | None) -> Energy:
    """The energy with its grid factor, without the time of devices."""
    whole = use.millijoules
    weighted = money.ZERO if factor is None else money.EXACT.multiply(factor.grams_per_device_kwh, Decimal(whole))
    return Energy(
        used_mj=use.used_mj,
        idle_mj=use.idle_mj,
        other_mj=use.other_mj,
        measured_us=use.measured_us,
        weighted=weighted,
        without_factor_mj=whole if factor is None else 0,
        resets=use.resets,
        rejected=use.rejected,
    )


def device_time(ran: timedelta, cloud: Cloud, machine_type: str, seen: int) -> int:
    """The device time of an instance in microseconds. `seen`: devices with readings."""
    try:
        known = catalogue.machine(cloud, machine_type).gpu_count
    except UnknownMachineError:
        known = 0
    return microseconds_of(ran) * max(known, seen, 1)


def shares_devices(cloud: Cloud, machine_type: str) -> bool:
    """Whether a machine has only a share of its device. The device's counter may contain the energy of others."""
    try:
        return catalogue.machine(cloud, machine_type).gpu_share < 1
    except UnknownMachineError:
        return False


def is_compared(energy: Energy, tokens: Tokens) -> bool:
    """Whether energy and tokens of an instance are both measured well enough to be compared."""
    enough = energy.measured_us > 0 and energy.measured_us >= ENOUGH * energy.device_us
    return enough and tokens.total is not None and not tokens.unknown_before


@dataclass(frozen=True, slots=True)
class FactorSpan:
    """A part of a window with one grid factor."""

    since: datetime
    until: datetime
    factor: GridFactor | None


def factor_spans(
    kept: Sequence[StoredDeclaration],
    today: DeclaredCosts,
    closings: Iterable[Closing],
    since: datetime,
    until: datetime,
) -> list[FactorSpan]:
    """The grid factor of each part of a window. `kept`: the declarations, oldest first.

    The factor of the declaration in force counts. Before the first stated factor, that one counts, except in spans
    that were closed before it was stated.
    """
    closed = list(closings)
    cuts = {one.at for one in kept} | {at for one in closed for at in (one.since, one.until)}
    edges = [since, *sorted(at for at in cuts if since < at < until), until]
    found: list[FactorSpan] = []
    for start, end in pairwise(edges):
        closing = next((one for one in closed if one.since <= start < one.until), None)
        factor = _factor_at(kept, today, start, None if closing is None else closing.at)
        if found and found[-1].factor == factor:
            found[-1] = replace(found[-1], until=end)
        else:
            found.append(FactorSpan(start, end, factor))
    return found


def _factor_at(
    kept: Sequence[StoredDeclaration], today: DeclaredCosts, at: datetime, closed_at: datetime | None
) -> GridFactor | None:
    past = [one.declared.carbon for one in kept if one.at <= at] or [one.declared.carbon for one in kept[:1]]
    if not kept:
        past = [today.carbon]
    if any(factor is not None for factor in past):
        return past[-1]
    later = (one for one in kept if one.at > at and (closed_at is None or one.at <= closed_at))
    return next((one.declared.carbon for one in later if one.declared.carbon is not None), None)


def split_by_instance(
    uses: Iterable[tuple[datetime, datetime, Mapping[str, EnergyUse]]], factors: Sequence[FactorSpan]
) -> list[InstanceEnergy]:
    """The energy of each instance. Each span of `uses` has one grid factor."""
    return [
        InstanceEnergy(instance_id=name, since=start, until=end, use=use, factor=_of_span(factors, start))
        for start, end, by_instance in uses
        for name, use in sorted(by_instance.items())
    ]


def _of_span(factors: Sequence[FactorSpan], at: datetime) -> GridFactor | None:
    return next((one.factor for one in factors if one.since <= at < one.until), None)
