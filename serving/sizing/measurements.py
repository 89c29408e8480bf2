"""Throughput that others measured and published, for a model of the same shape on the same accelerators.

Rows are in `data/measured.csv` (vLLM on NVIDIA GPUs, which the roofline is fitted to) and `data/published.csv` (other
accelerators); `data/SOURCE.md` has the sources.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from serving.sizing.model import ModelShape
from serving.sizing.speed import Speed, SpeedError, SpeedOrigin, Traffic, best

ALIKE: Final = 0.25
"""A row applies to requests whose input and output differ from it by at most this share."""
REPEATED: Final = SpeedError(
    low=-0.10,
    high=0.10,
    basis="95 % of 212 repeated InferenceX and NVIDIA measurements are this close to their median",
)
"""The spread of repeated measurements of equal configurations: 90 % of the distances are below 6.3 %."""

SOURCES: Final[Mapping[str, str]] = {
    "inferencex": "InferenceX",
    "neuron": "AWS Neuron documentation, benchmarks, P50",
    "neuron-trn2": "AWS Neuron documentation, tutorial, P50",
    "tpu-recipes-v6e": "Google, tpu-recipes, mean",
    "tpu-recipes-v7x": "Google, tpu-recipes, InferenceX client",
    "accelmark": "AccelMark, batch of 100 ShareGPT requests with its run-down",
}
"""For people, by the code in the rows."""

Class = tuple[str, int, int, int, int]
"""Family, hidden size, layers, key heads, experts: checkpoints with equal values have equal speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published measurement of one replica."""

    model: str
    shape: Class
    precision: str
    gpu: str
    """The device's name in the catalogue."""
    gpus: int
    input_tokens: int
    output_tokens: int
    concurrency: int | None
    ttft_s: float | None
    itl_s: float | None
    requests_per_s: float
    engine: str
    source: str
    """A key of SOURCES."""
    date: str
    """Of the measurement or publication, as far as stated; empty: not stated."""

    def speed(self) -> Speed:
        """Return the row as a speed."""
        when = f", {self.date}" if self.date else ""
        return Speed(
            requests_per_s=self.requests_per_s,
            concurrency=self.concurrency,
            ttft_s=self.ttft_s,
            itl_s=self.itl_s,
            kind=SpeedOrigin.PUBLISHED,
            source=f"{SOURCES[self.source]}: {self.model} {self.precision}, {self.engine}, {self.gpus} × {self.gpu}, "
            f"{self.input_tokens} to {self.output_tokens}{when}",
            error=self._error(),
        )

    def _error(self) -> SpeedError | None:
        """Return the spread of repeated runs; for a source without them, how far its own figures disagree."""
        if self.source == "inferencex":
            return REPEATED
        if self.concurrency is None or self.ttft_s is None or self.itl_s is None:
            return None
        rate = closed_loop(self.concurrency, self.ttft_s, self.itl_s, self.output_tokens)
        difference = rate / self.requests_per_s - 1
        basis = "one run; the latencies that its source states give the other end of this range"
        return SpeedError(low=min(difference, 0), high=max(difference, 0), basis=basis)


def shape_of(model: ModelShape) -> Class:
    """Return what identifies models of equal speed."""
    return (model.family, model.hidden, model.layer_count, model.kv_heads, model.experts)


@cache
def measured() -> tuple[Row, ...]:
    """Return the rows that the roofline is fitted to."""
    return tuple(_measured())


@cache
def published() -> tuple[Row, ...]:
    """Return all rows."""
    return (*measured(), *_published())


def table(name: str) -> Iterator[dict[str, str]]:
    """Return the rows of a table of this package."""
    text = resources.files("serving.sizing").joinpath(f"data/{name}").read_text("utf-8")
    return csv.DictReader(text.splitlines())


def row_shape(row: Mapping[str, str]) -> Class:
    """Return the class of models that a row of a table belongs to."""
    return (row["family"], int(row["hidden"]), int(row["layers"]), int(row["kv_heads"]), int(row["experts"]))


def closed_loop(concurrency: int, ttft_s: float, itl_s: float, output_tokens: int) -> float:
    """Return the requests per second of this number of clients, each of which sends its next request at once."""
    return concurrency / (ttft_s + (output_tokens - 1) * itl_s)


def _measured() -> Iterator[Row]:
    for row in table("measured.csv"):
        ttft, itl = float(row["ttft_ms"]) / 1000, float(row["tpot_ms"]) / 1000
        yield Row(
            model=row["model"],
            shape=row_shape(row),
            precision=row["precision"],
            gpu=row["gpu"],
            gpus=int(row["gpus"]),
            input_tokens=int(row["input"]),
            output_tokens=int(row["output"]),
            concurrency=int(row["concurrency"]),
            ttft_s=ttft,
            itl_s=itl,
            requests_per_s=closed_loop(int(row["concurrency"]), ttft, itl, int(row["output"])),
            engine=f"vLLM {row['vllm']}".strip(),
            source="inferencex",
            date=row["measured"],
        )


def _published() -> Iterator[Row]:
    for row in table("published.csv"):
        yield Row(
            model=row["model"],
            shape=row_shape(row),
            precision=row["precision"],
            gpu=row["gpu"],
            gpus=int(row["gpus"]),
            input_tokens=int(row["input"]),
            output_tokens=int(row["output"]),
            concurrency=int(row["concurrency"]) if row["concurrency"] else None,
            ttft_s=float(row["ttft_ms"]) / 1000 if row["ttft_ms"] else None,
            itl_s=float(row["tpot_ms"]) / 1000 if row["tpot_ms"] else None,
            requests_per_s=float(row["requests_s"]),
            engine=row["engine"],
            source=row["source"],
            date=row["published"],
        )


def alike(row: int, wanted: int) -> bool:
    """Whether a number of tokens is close enough to a row's."""
    return abs(row - wanted) <= ALIKE * row


def rows_for(model: ModelShape, precision: str, gpu: str, traffic: Traffic) -> list[Row]:
    """Return the rows of models of this shape with requests of about this size, on any number of these devices."""
    shape = shape_of(model)
    return [
        row
        for row in published()
        if (row.shape, row.gpu, row.precision) == (shape, gpu, precision)
        and alike(row.input_tokens, traffic.input_tokens)
        and alike(row.output_tokens, traffic.output_tokens)
    ]


def from_published(model: ModelShape, precision: str, gpu: str, gpus: int, traffic: Traffic) -> Speed | None:
    """Return the best published speed within the objective; None without a row, or when no row is fast enough."""
    rows = rows_for(model, precision, gpu, traffic)
    return best((row.speed() for row in rows if row.gpus == gpus), traffic)


def was_measured(model: ModelShape, precision: str, gpu: str, gpus: int, traffic: Traffic) -> bool:
    """Whether any row for this traffic exists: then the roofline is not used."""
    return any(row.gpus == gpus for row in rows_for(model, precision, gpu, traffic))


def tokens_per_s(row: Row) -> float:
    """Return the input and output tokens per second of a replica in a row of `measured`, over all its requests."""
    seconds = (row.ttft_s or 0) + row.output_tokens * (row.itl_s or 0)
    return (row.concurrency or 0) * (row.input_tokens + row.output_tokens) / seconds


def most_measured(model: str, gpu: str, gpus: int) -> Row | None:
    """Return the row of InferenceX with the most tokens per second of a model on `gpus` GPUs; None without a row.

    `model`: a name as on a hub. Tuned variants (`…-Instruct`) are as fast as the model in their name.
    """
    known = [row for row in measured() if row.gpu == gpu and row.gpus == gpus and _is_or_tunes(model, row.model)]
    return max(known, key=tokens_per_s, default=None)


def _is_or_tunes(model: str, base: str) -> bool:
    return model == base or model.startswith(f"{base}-")
