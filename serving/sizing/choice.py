"""Finds the cheapest machines for a demand: ranks single types, and mixes types by integer programming.

It invents no values: a machine type without a price or a source of its throughput is not ranked, and a code says why.
The mix follows Mélange (Griggs et al., 2024): machine types of different speed and price cover a demand together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from math import ceil
from typing import Any, Final

from gpufleet.domain import catalogue
from gpufleet.domain.catalogue import MachineType, UnknownMachineError
from gpufleet.domain.model import CapacityType
from serving.sizing import measurements
from serving.sizing.decoding import ngram_config, speculation
from serving.sizing.fit import MAX_SEQUENCES, Fit, FitRequest, refusal, spread
from serving.sizing.measurements import from_published, rows_for, was_measured
from serving.sizing.model import ModelShape, SizingError, Weights
from serving.sizing.options import BITS, ServingOption, applied, effects_on
from serving.sizing.speed import BATCHES, SizedReplica, Speed, SpeedOrigin, Traffic, best, precision
from serving.sizing.validity import ENGINE, model_error, modelled_kinds

MAX_OF_ONE: Final = 1000
"""Maximum number of machines of one type in a mix."""


class UnrankedCode(StrEnum):
    """Why a machine type is not ranked. The values are stable codes."""

    DOES_NOT_FIT = "does_not_fit"
    HARDWARE_CANNOT = "hardware_cannot"
    """The device cannot compute the number format."""
    NOT_APPLICABLE = "option_not_applicable"
    """The option does not apply to the model or its checkpoint."""
    NO_THROUGHPUT = "no_throughput_source"
    """The throughput of this model class with such requests is not published, and the model is not valid for it."""
    NO_LATENCY = "no_published_latency"
    """There is a throughput, but no latency to compare with the objective."""
    NO_EFFECT = "no_published_effect"
    """The option's effect on this device at this load is not published."""
    OVER_OBJECTIVE = "over_latency_objective"
    NO_PRICE = "no_price"
    FRACTION = "fraction_of_a_device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What is missing to rank a machine type."""

    code: UnrankedCode
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingDemand:
    """The traffic to serve, the number formats and the option to use."""

    traffic: Traffic
    requests_per_s: float
    kv_fp8: bool = False
    weights_fp8: bool = False
    option: ServingOption | None = None
    draft_bytes: int = 0
    """Weights of the second model that the option needs."""

    @property
    def tokens_per_hour(self) -> Decimal:
        """Input and output tokens together."""
        tokens = self.traffic.input_tokens + self.traffic.output_tokens
        return Decimal(str(self.requests_per_s)) * tokens * 3600

    @property
    def in_fp8(self) -> bool:
        """Whether 16-bit weights are quantized to FP8 while loading."""
        return self.weights_fp8 or self.option is ServingOption.FP8

    @property
    def bits(self) -> Fraction | None:
        """Bits per weight in a checkpoint of another format; None: the given checkpoint."""
        return None if self.in_fp8 or self.option is None else BITS.get(self.option)

    def precision(self, model: ModelShape) -> str:
        """Return the number format of the matrix multiplications, as published rows name it."""
        if self.option is not None and self.bits is not None:
            return self.option.value
        return precision(model, weights_fp8=self.in_fp8)


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

    fit: Fit | None
    """None: others ran the model there; the memory of this kind of accelerator is not computed."""
    speed: Speed
    option: ServingOption | None = None


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


def ability(
    model: ModelShape, weights: Weights, machine: MachineType, demand: SizingDemand
) -> MachineSizing | Missing:
    """Return the fit and speed of a machine type, or what is missing to rank it.

    Its devices work as one engine or as several copies, whichever serves more. Published speeds take precedence over
    the model, which is valid for some kinds of accelerators only.
    """
    if machine.gpu_share != 1:
        return Missing(code=UnrankedCode.FRACTION, detail="a fraction of a GPU, which sizing does not support")
    if (why := _not_applicable(model, demand)) is not None:
        return Missing(code=UnrankedCode.NOT_APPLICABLE, detail=why)
    if machine.accelerator not in modelled_kinds():
        return _published(model, machine, demand)
    try:
        gpu = catalogue.gpu(machine.gpu)
    except UnknownMachineError:
        return Missing(code=UnrankedCode.NO_THROUGHPUT, detail=f"the catalogue has no figures of {machine.gpu}")
    whole = SizedReplica(
        model=model,
        weights=weights,
        gpu=gpu,
        gpus=machine.gpu_count,
        kv_bytes=1 if demand.kv_fp8 else 2,
        weights_fp8=demand.in_fp8,
    )
    ways = [_copied(whole, copies, demand) for copies in _copies(model, machine)]
    able = [way for way in ways if isinstance(way, MachineSizing)]
    if not able:
        return ways[0]
    return max(able, key=lambda way: (way.speed.kind is SpeedOrigin.PUBLISHED, way.speed.requests_per_s))


def _not_applicable(model: ModelShape, demand: SizingDemand) -> str | None:
    """Return why the option does not apply to the model; None: it does."""
    if demand.option in BITS and model.quantization is not None:
        return f"the checkpoint is in {model.quantization} already"
    if demand.option is ServingOption.NGRAM and speculation(model).method is None:
        return speculation(model).reason
    return None


def _copies(model: ModelShape, machine: MachineType) -> list[int]:
    """Return the possible numbers of engine copies. With experts only one: vLLM spreads experts over all copies."""
    return [1] if model.experts else [n for n in range(1, machine.gpu_count + 1) if machine.gpu_count % n == 0]


def _copied(whole: SizedReplica, copies: int, demand: SizingDemand) -> MachineSizing | Missing:
    """Return fit and speed of this number of copies on evenly shared GPUs, or what is missing."""
    one = _alone(replace(whole, gpus=whole.gpus // copies), demand)
    if copies == 1 or isinstance(one, Missing) or one.fit is None:
        return one
    options = replace(one.fit.options, data_parallel_size=copies)
    return replace(one, fit=replace(one.fit, options=options), speed=times(one.speed, copies))


def times(speed: Speed, copies: int) -> Speed:
    """Return the speed of several copies of a replica."""
    if copies == 1:
        return speed
    return replace(
        speed,
        requests_per_s=speed.requests_per_s * copies,
        concurrency=None if speed.concurrency is None else speed.concurrency * copies,
        source=f"{copies} copies, each: {speed.source}",
    )


def _alone(replica: SizedReplica, demand: SizingDemand) -> MachineSizing | Missing:
    fits = _fit(replica, demand)
    if isinstance(fits, Missing):
        return fits
    most = min(fits.concurrency or MAX_SEQUENCES, MAX_SEQUENCES)
    option = demand.option
    if option is None or option is ServingOption.FP8:
        speed = _speed(replica, demand, most)
    else:
        # published effects, because the model covers no option but FP8
        speed = _with_effect(replica, demand, option, most)
    if isinstance(speed, Missing):
        return speed
    return MachineSizing(fit=fits, speed=speed, option=option)


def _fit(replica: SizedReplica, demand: SizingDemand) -> Fit | Missing:
    traffic = demand.traffic
    request = FitRequest(
        context=traffic.input_tokens + traffic.output_tokens,
        kv_fp8=demand.kv_fp8,
        weights_fp8=demand.in_fp8,
        weight_bits=demand.bits,
        draft_bytes=demand.draft_bytes,
    )
    model, gpu = replica.model, replica.gpu
    if (why := refusal(model, gpu, request)) is not None:
        return Missing(code=UnrankedCode.HARDWARE_CANNOT, detail=why)
    try:
        fits = spread(model, replica.weights, gpu, replica.gpus, request)
    except SizingError as error:
        return Missing(code=UnrankedCode.DOES_NOT_FIT, detail=str(error))
    if not fits.fits:
        return Missing(code=UnrankedCode.DOES_NOT_FIT, detail=fits.reason)
    if demand.option is ServingOption.NGRAM:
        return replace(fits, options=replace(fits.options, speculative_config=ngram_config()))
    return fits


def _speed(replica: SizedReplica, demand: SizingDemand, most: float) -> Speed | Missing:
    traffic, kind = demand.traffic, demand.precision(replica.model)
    on = (replica.gpu.name, replica.gpus)
    speed = from_published(replica.model, kind, *on, traffic)
    if speed is None and not was_measured(replica.model, kind, *on, traffic):
        speed = replica.from_roofline(traffic, most)
        speed = None if speed is None else replace(speed, error=model_error(*on))
    return speed or _over_objective()


def _with_effect(replica: SizedReplica, demand: SizingDemand, option: ServingOption, most: float) -> Speed | Missing:
    """Return the modelled speed without the option times the option's published effect."""
    on = f"{replica.gpus} × {replica.gpu.name}"
    found = effects_on(option, replica.model, replica.gpu.name, replica.gpus, ENGINE)
    if not found:
        detail = f"no published effect of {option} on {replica.gpu.name} with such a model"
        return Missing(code=UnrankedCode.NO_EFFECT, detail=detail)
    error = model_error(replica.gpu.name, replica.gpus)
    base = [replace(replica.at(size, demand.traffic), error=error) for size in BATCHES if size <= most]
    speeds = [speed for speed in (applied(one, found) for one in base) if speed is not None]
    if not speeds:
        loads = [one.concurrency for one in found if one.concurrency]
        least = min(load.start for load in loads)
        detail = f"published effects of {option} are for {least} concurrent requests or more, {most:.0f} fit on {on}"
        return Missing(code=UnrankedCode.NO_EFFECT, detail=detail)
    return best(speeds, demand.traffic) or _over_objective()


def _over_objective() -> Missing:
    return Missing(code=UnrankedCode.OVER_OBJECTIVE, detail="fits, but its latency is over the objective at any load")


def _published(model: ModelShape, machine: MachineType, demand: SizingDemand) -> MachineSizing | Missing:
    """Return the speed that others published for this model class on the machine's devices."""
    if demand.option is not None and demand.option not in BITS:
        detail = f"no published effect of {demand.option} on {machine.gpu} with {ENGINE}"
        return Missing(code=UnrankedCode.NO_EFFECT, detail=detail)
    kind, traffic = demand.precision(model), demand.traffic
    rows = [row for row in rows_for(model, kind, machine.gpu, traffic) if machine.gpu_count % row.gpus == 0]
    if not rows:
        detail = f"no published throughput on {machine.gpu}: {_what_is_published(model, machine.gpu)}"
        return Missing(code=UnrankedCode.NO_THROUGHPUT, detail=detail)
    speed = best((times(row.speed(), machine.gpu_count // row.gpus) for row in rows), traffic)
    if speed is not None:
        return MachineSizing(fit=None, speed=speed, option=demand.option)
    if any(row.itl_s is None for row in rows):
        detail = f"the throughput on {machine.gpu} is published without latencies, and an objective is given"
        return Missing(code=UnrankedCode.NO_LATENCY, detail=detail)
    return _over_objective()


def _what_is_published(model: ModelShape, gpu: str) -> str:
    """Return the formats and request sizes that are published for models of this shape."""
    shape = measurements.shape_of(model)
    rows = [row for row in measurements.published() if (row.shape, row.gpu) == (shape, gpu)]
    sizes = dict.fromkeys(f"{row.precision} {row.input_tokens} to {row.output_tokens}" for row in rows)
    return f"only {', '.join(sizes)}" if sizes else "none for such a model"


def rank(offers: Iterable[tuple[Offer, MachineSizing]], demand: SizingDemand) -> list[Option]:
    """Return the options, cheapest first."""
    return sorted((option_of(offer, able, demand) for offer, able in offers), key=by_cost)


def by_cost(option: Option) -> tuple[Decimal, int, str, str]:
    """Return the order of options: cheapest first, then the fewest machines."""
    return (option.usd_per_hour, option.count, option.offer.machine.name, option.able.option or "")


def option_of(offer: Offer, able: MachineSizing, demand: SizingDemand) -> Option:
    """Return the demand served by machines of this offer."""
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
        bounds=solver.Bounds(0, MAX_OF_ONE),
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
