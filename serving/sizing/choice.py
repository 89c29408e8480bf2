"""Finds the cheapest machines for a demand: ranks single types, and mixes types by integer programming.

It invents no values: a machine type without a price or a speed is listed as unknown, with what is missing.
The mix follows Mélange (Griggs et al., 2024): machine types of different speed and price cover a demand together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import ceil
from typing import Any, Final

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import MachineType, UnknownMachineError
from gpufleet.domain.model import CapacityType
from serving.sizing.fit import MOST_SEQUENCES, Fit, FitRequest, spread
from serving.sizing.model import ModelShape, SizingError, Weights
from serving.sizing.speed import SizedReplica, Speed, SpeedOrigin, Traffic, from_measurements, was_measured

MOST_OF_ONE: Final = 1000
"""Maximum number of machines of one type in a mix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingDemand:
    """The traffic to serve, and the number formats to use."""

    traffic: Traffic
    requests_per_s: float
    kv_fp8: bool = False
    weights_fp8: bool = False

    @property
    def tokens_per_hour(self) -> Decimal:
        """Input and output tokens together."""
        tokens = self.traffic.input_tokens + self.traffic.output_tokens
        return Decimal(str(self.requests_per_s)) * tokens * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A machine type at a price."""

    machine: MachineType
    capacity_type: CapacityType
    usd_per_hour: Decimal
    price_source: str
    """The source of the price, with its date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSizing:
    """The fit and the speed of a machine type for the demand."""

    fit: Fit
    speed: Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The demand served by machines of one type only."""

    offer: Offer
    able: MachineSizing
    count: int
    usd_per_hour: Decimal
    usd_per_million_tokens: Decimal
    """Blended: per input and output token of the demand, including the idle time of the last machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A mix of several machine types."""

    parts: tuple[tuple[Option, int], ...]
    usd_per_hour: Decimal
    usd_per_million_tokens: Decimal


def ability(model: ModelShape, weights: Weights, machine: MachineType, demand: SizingDemand) -> MachineSizing | str:
    """Return the fit and speed of a machine type, or the reason why it cannot serve the demand.

    Its GPUs work as one engine or as several copies, whichever serves more. Measured speeds take precedence over
    estimates.
    """
    if machine.gpu_share != 1:
        return "has a fraction of a GPU, which sizing does not support"
    try:
        gpu = catalogue.gpu(machine.gpu)
    except UnknownMachineError:
        return f"the GPU {machine.gpu} is unknown"
    whole = SizedReplica(
        model=model,
        weights=weights,
        gpu=gpu,
        gpus=machine.gpu_count,
        kv_bytes=1 if demand.kv_fp8 else 2,
        weights_fp8=demand.weights_fp8,
    )
    ways = [_copied(whole, copies, demand) for copies in _copies(model, machine)]
    able = [way for way in ways if isinstance(way, MachineSizing)]
    if not able:
        return str(ways[0])
    return max(able, key=lambda way: (way.speed.kind is SpeedOrigin.MEASURED, way.speed.requests_per_s))


def _copies(model: ModelShape, machine: MachineType) -> list[int]:
    """Return the possible numbers of engine copies. With experts only one: vLLM spreads experts over all copies."""
    return [1] if model.experts else [n for n in range(1, machine.gpu_count + 1) if machine.gpu_count % n == 0]


def _copied(whole: SizedReplica, copies: int, demand: SizingDemand) -> MachineSizing | str:
    """Return fit and speed of this number of copies on evenly shared GPUs, or the reason why they cannot serve."""
    one = _alone(replace(whole, gpus=whole.gpus // copies), demand)
    if copies == 1 or isinstance(one, str):
        return one
    return MachineSizing(
        fit=replace(one.fit, options=replace(one.fit.options, data_parallel_size=copies)),
        speed=replace(
            one.speed,
            requests_per_s=one.speed.requests_per_s * copies,
            concurrency=one.speed.concurrency * copies,
            source=f"{copies} copies, each: {one.speed.source}",
        ),
    )


def _alone(replica: SizedReplica, demand: SizingDemand) -> MachineSizing | str:
    traffic = demand.traffic
    context = traffic.input_tokens + traffic.output_tokens
    request = FitRequest(context=context, kv_fp8=demand.kv_fp8, weights_fp8=demand.weights_fp8)
    model, gpu, gpus = replica.model, replica.gpu, replica.gpus
    try:
        fits = spread(model, replica.weights, gpu, gpus, request)
    except SizingError as error:
        return str(error)
    if not fits.fits:
        return fits.reason
    speed = from_measurements(model, gpu, gpus, traffic, weights_fp8=demand.weights_fp8)
    if speed is None and not was_measured(model, gpu, gpus, traffic, weights_fp8=demand.weights_fp8):
        speed = replica.from_roofline(traffic, min(fits.concurrency or MOST_SEQUENCES, MOST_SEQUENCES))
    if speed is None:
        return "fits, but its latency is over the objective at any load"
    return MachineSizing(fit=fits, speed=speed)


def rank(offers: Iterable[tuple[Offer, MachineSizing]], demand: SizingDemand) -> list[Option]:
    """Return the options, cheapest first."""
    options = [_option(offer, able, demand) for offer, able in offers]
    return sorted(options, key=lambda option: (option.usd_per_hour, option.count, option.offer.machine.name))


def _option(offer: Offer, able: MachineSizing, demand: SizingDemand) -> Option:
    count = max(1, ceil(demand.requests_per_s / able.speed.requests_per_s))
    cost = offer.usd_per_hour * count
    return Option(
        offer=offer,
        able=able,
        count=count,
        usd_per_hour=cost,
        usd_per_million_tokens=cost * 1_000_000 / demand.tokens_per_hour,
    )


def cheapest_mix(options: Sequence[Option], demand: SizingDemand) -> Mix | None:
    """Return the cheapest whole numbers of machines that together serve the demand; None without options.

    Minimises Σ price × n subject to Σ requests per second × n ≥ demand, with whole n. HiGHS solves it.
    """
    if not options:
        return None
    # this import takes half a second, and instances never need it
    from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]

    solver: Any = optimize
    found: Any = solver.milp(
        c=[float(option.offer.usd_per_hour) for option in options],
        constraints=solver.LinearConstraint(
            [[option.able.speed.requests_per_s for option in options]], lb=demand.requests_per_s
        ),
        integrality=[1] * len(options),
        bounds=solver.Bounds(0, MOST_OF_ONE),
    )
    if not found.success:
        return None
    counts = [round(float(value)) for value in found.x]
    parts = tuple((option, count) for option, count in zip(options, counts, strict=True) if count)
    cost = sum((option.offer.usd_per_hour * count for option, count in parts), Decimal(0))
    return Mix(
        parts=parts,
        usd_per_hour=cost,
        usd_per_million_tokens=cost * 1_000_000 / demand.tokens_per_hour,
    )
