"""What the public inputs of two other tools give for the same demand.

AIConfigurator (NVIDIA): its table of measurements, and estimates of its release 0.12.0. It has no prices: those of
the offers are used. Mélange: a plot of its documentation names the GPU with the most tokens per dollar for each
request size of Llama-2-7b. It publishes no throughput, so it gives no USD per million tokens. Sources:
`data/SOURCE.md`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Final, NamedTuple

from gpufleet.domain.catalogue import MachineType
from serving.sizing.choice import MachineSizing, Offer, Option, SizingDemand, rank, times
from serving.sizing.measurements import Class, Row, alike, closed_loop, measured, row_shape, shape_of, table
from serving.sizing.model import ModelShape
from serving.sizing.options import BITS
from serving.sizing.speed import Speed, SpeedOrigin, Traffic, best

_LLAMA_2_7B: Final[Class] = ("llama", 4096, 32, 32, 0)


class UncoveredCode(StrEnum):
    """Why the public inputs of a tool do not cover a demand. The values are stable codes."""

    MODEL = "other_model"
    FORMAT = "other_number_format"
    REQUEST_SIZE = "other_request_size"
    OBJECTIVE = "over_latency_objective"
    MACHINES = "no_priced_machine"
    OPTION = "option_not_covered"


class AicRow(NamedTuple):
    """A row of AIConfigurator: measured with an engine, or its estimate."""

    is_measured: bool
    model: str
    shape: Class
    precision: str
    gpu: str
    gpus: int
    input_tokens: int
    output_tokens: int
    concurrency: int
    ttft_s: float
    itl_s: float
    engine: str

    def speed(self) -> Speed:
        """Return the row as a speed."""
        how = "measured" if self.is_measured else "estimated by AIConfigurator 0.12.0"
        return Speed(
            requests_per_s=closed_loop(self.concurrency, self.ttft_s, self.itl_s, self.output_tokens),
            concurrency=self.concurrency,
            ttft_s=self.ttft_s,
            itl_s=self.itl_s,
            kind=SpeedOrigin.PUBLISHED if self.is_measured else SpeedOrigin.MODELLED,
            source=f"{self.model} {self.precision}, {self.engine}, {self.gpus} × {self.gpu}, {self.input_tokens} to "
            f"{self.output_tokens}, {how}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AicAnswer:
    """The demand served by the machines of each offer that AIConfigurator's tables cover, cheapest first."""

    options: Sequence[Option]
    uncovered: UncoveredCode | None
    """Why there is no option; None: there is."""

    def for_offer_of(self, option: Option) -> Option | None:
        """Return the covered option of the same offer and serving option; None: not covered."""
        return next(
            (one for one in self.options if one.offer == option.offer and one.able.option is option.able.option), None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MelangeAnswer:
    """The GPU with the most tokens per dollar in Mélange's plot, at the prices of 2024 that it used."""

    gpu: str | None
    percent: int | None
    """How many more tokens per dollar than on the second GPU of the plot."""
    input_tokens: int | None
    """The plot's request size: the next one above the demand."""
    output_tokens: int | None
    uncovered: UncoveredCode | None


@cache
def aic_rows() -> tuple[AicRow, ...]:
    """Return AIConfigurator's rows; its measurements of vLLM are the rows that the roofline is fitted to."""
    own = [
        AicRow(
            row["kind"] == "measured", row["model"], row_shape(row), row["precision"], row["gpu"], int(row["gpus"]),
            int(row["input"]), int(row["output"]), int(row["concurrency"]), float(row["ttft_ms"]) / 1000,
            float(row["tpot_ms"]) / 1000, row["engine"],
        )
        for row in table("aiconfigurator.csv")
    ]  # fmt: skip
    return (*own, *(row for one in measured() if (row := _as_aic(one)) is not None))


def _as_aic(row: Row) -> AicRow | None:
    if row.concurrency is None or row.ttft_s is None or row.itl_s is None:
        return None
    return AicRow(
        True, row.model, row.shape, row.precision, row.gpu, row.gpus, row.input_tokens, row.output_tokens,
        row.concurrency, row.ttft_s, row.itl_s, row.engine,
    )  # fmt: skip


def aiconfigurator(model: ModelShape, demand: SizingDemand, offers: Iterable[Offer]) -> AicAnswer:
    """Return what AIConfigurator's tables give, at the prices of these offers."""
    shape, kind, traffic = shape_of(model), demand.precision(model), demand.traffic
    if demand.option is not None and demand.option not in BITS:
        return AicAnswer(options=(), uncovered=UncoveredCode.OPTION)
    rows = [row for row in aic_rows() if row.shape == shape]
    if not rows:
        return AicAnswer(options=(), uncovered=UncoveredCode.MODEL)
    rows = [row for row in rows if row.precision == kind]
    if not rows:
        return AicAnswer(options=(), uncovered=UncoveredCode.FORMAT)
    sized = [row for row in rows if _is_alike(row, traffic)]
    if not sized:
        return AicAnswer(options=(), uncovered=UncoveredCode.REQUEST_SIZE)
    able: list[tuple[Offer, MachineSizing]] = []
    gpus = {row.gpu for row in sized}
    priced = [offer for offer in offers if offer.machine.gpu in gpus]
    for offer in priced:
        speed = _fastest(sized, offer.machine, traffic, is_copied=not model.experts)
        if speed is not None:
            able.append((offer, MachineSizing(fit=None, speed=speed, option=demand.option)))
    if able:
        return AicAnswer(options=rank(able, demand), uncovered=None)
    return AicAnswer(options=(), uncovered=UncoveredCode.OBJECTIVE if priced else UncoveredCode.MACHINES)


def _is_alike(row: AicRow, traffic: Traffic) -> bool:
    return alike(row.input_tokens, traffic.input_tokens) and alike(row.output_tokens, traffic.output_tokens)


def _fastest(rows: Sequence[AicRow], machine: MachineType, traffic: Traffic, *, is_copied: bool) -> Speed | None:
    """Return the best speed of all engines on all devices of a machine: measured, else estimated."""
    for is_measured in (True, False):
        speeds = [
            times(row.speed(), machine.gpu_count // row.gpus)
            for row in rows
            if row.is_measured is is_measured and row.gpu == machine.gpu
            if row.gpus == machine.gpu_count or (is_copied and machine.gpu_count % row.gpus == 0)
        ]
        if (speed := best(speeds, traffic)) is not None:
            return replace(speed, error=None)
    return None


def melange(model: ModelShape, demand: SizingDemand) -> MelangeAnswer:
    """Return the GPU that Mélange's plot names for requests of this size."""
    if shape_of(model) != _LLAMA_2_7B:
        return _no_melange(UncoveredCode.MODEL)
    if demand.precision(model) != "bf16":
        return _no_melange(UncoveredCode.FORMAT)
    if demand.option is not None:
        return _no_melange(UncoveredCode.OPTION)
    tiles = [(int(row["input"]), int(row["output"]), row["gpu"], int(row["percent"])) for row in table("melange.csv")]
    above = [
        tile for tile in tiles if tile[0] >= demand.traffic.input_tokens and tile[1] >= demand.traffic.output_tokens
    ]
    if not above:
        return _no_melange(UncoveredCode.REQUEST_SIZE)
    input_tokens, output_tokens, gpu, percent = min(above)
    return MelangeAnswer(
        gpu=gpu, percent=percent, input_tokens=input_tokens, output_tokens=output_tokens, uncovered=None
    )


def _no_melange(why: UncoveredCode) -> MelangeAnswer:
    return MelangeAnswer(gpu=None, percent=None, input_tokens=None, output_tokens=None, uncovered=why)
