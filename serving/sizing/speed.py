"""The speed of a replica for given traffic: measured if a row exists, else a roofline estimate. Results say which.

Measured rows are in `data/measured.csv` (source: `data/SOURCE.md`). The roofline takes the larger of the time to move
bytes and the time to compute, both at a share of the GPU's peak that is fitted to the measured rows.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Final

from gpufleet.domain.catalogue import Gpu
from serving.sizing.model import Attention, LatentAttention, ModelShape, StateLayer, Weights

EFFICIENCY: Final[Mapping[int, float]] = {1: 0.65, 2: 0.58, 4: 0.42, 8: 0.27}
"""Share of the peak that vLLM reached, by number of GPUs per model: the median of the measured rows. Half of the
rows are within a quarter of it on 1 and 2 GPUs, within a third on 4 and 8."""
ALIKE: Final = 0.25
"""A measured row applies to requests whose input and output differ from it by at most this share."""
BATCHES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_FP8_NAMES: Final = frozenset({"fp8", "fbgemm_fp8", "modelopt"})


class SpeedOrigin(StrEnum):
    """The origin of a speed."""

    MEASURED = "measured"
    ROOFLINE = "estimated (roofline)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The size of requests, and the latency objective."""

    input_tokens: int
    output_tokens: int
    ttft_s: float | None = None
    """Maximum time to the first token in seconds; None: no limit."""
    itl_s: float | None = None
    """Maximum time between two tokens in seconds; None: no limit."""

    def allows(self, ttft_s: float, itl_s: float) -> bool:
        """Whether these latencies meet the objective."""
        return (self.ttft_s is None or ttft_s <= self.ttft_s) and (self.itl_s is None or itl_s <= self.itl_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of one replica, at the concurrency with the highest throughput within the objective."""

    requests_per_s: float
    concurrency: int
    ttft_s: float
    itl_s: float
    kind: SpeedOrigin
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement of vLLM."""

    model: str
    shape: tuple[str, int, int, int]
    """Family, hidden size, layers, experts: checkpoints with equal values have equal speed."""
    precision: str
    gpu: str
    gpus: int
    input_tokens: int
    output_tokens: int
    concurrency: int
    ttft_s: float
    itl_s: float
    engine: str


@cache
def measured() -> tuple[Row, ...]:
    """Return all measured rows."""
    return tuple(_rows())


def _rows() -> Iterator[Row]:
    text = resources.files("serving.sizing").joinpath("data/measured.csv").read_text("utf-8")
    for row in csv.DictReader(text.splitlines()):
        yield Row(
            model=row["model"],
            shape=(row["family"], int(row["hidden"]), int(row["layers"]), int(row["experts"])),
            precision=row["precision"],
            gpu=row["gpu"],
            gpus=int(row["gpus"]),
            input_tokens=int(row["input"]),
            output_tokens=int(row["output"]),
            concurrency=int(row["concurrency"]),
            ttft_s=float(row["ttft_ms"]) / 1000,
            itl_s=float(row["tpot_ms"]) / 1000,
            engine=f"vLLM {row['vllm']}".strip(),
        )


def precision(model: ModelShape, *, weights_fp8: bool = False) -> str:
    """Return the number format of a model's matrix multiplications, as the measured rows name it."""
    if weights_fp8 or model.quantization in _FP8_NAMES:
        return "fp8"
    if model.quantization is not None:
        return model.quantization
    return {"bfloat16": "bf16", "float16": "bf16"}.get(model.dtype, model.dtype)


def from_measurements(
    model: ModelShape, gpu: Gpu, gpus: int, traffic: Traffic, *, weights_fp8: bool = False
) -> Speed | None:
    """Return the best measured speed within the objective; None without a row, or when no row is fast enough."""
    shape = (model.family, model.hidden, model.layer_count, model.experts)
    known = [
        row
        for row in measured()
        if (row.shape, row.gpu, row.gpus) == (shape, gpu.name, gpus)
        and row.precision == precision(model, weights_fp8=weights_fp8)
        and _alike(row.input_tokens, traffic.input_tokens)
        and _alike(row.output_tokens, traffic.output_tokens)
    ]
    return _best([_as_speed(row) for row in known], traffic)


def was_measured(model: ModelShape, gpu: Gpu, gpus: int, traffic: Traffic, *, weights_fp8: bool = False) -> bool:
    """Whether any row for this traffic exists: then the roofline is not used."""
    anything = Traffic(input_tokens=traffic.input_tokens, output_tokens=traffic.output_tokens)
    return from_measurements(model, gpu, gpus, anything, weights_fp8=weights_fp8) is not None


def _alike(row: int, wanted: int) -> bool:
    return abs(row - wanted) <= ALIKE * row


def _as_speed(row: Row) -> Speed:
    seconds = row.ttft_s + (row.output_tokens - 1) * row.itl_s
    return Speed(
        requests_per_s=row.concurrency / seconds,
        concurrency=row.concurrency,
        ttft_s=row.ttft_s,
        itl_s=row.itl_s,
        kind=SpeedOrigin.MEASURED,
        source=f"InferenceX: {row.model} {row.precision}, {row.engine}, {row.input_tokens} to {row.output_tokens}",
    )


def _best(speeds: list[Speed], traffic: Traffic) -> Speed | None:
    good = [speed for speed in speeds if traffic.allows(speed.ttft_s, speed.itl_s)]
    return max(good, key=lambda speed: speed.requests_per_s, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedReplica:
    """A model on the GPUs of one machine."""

    model: ModelShape
    weights: Weights
    gpu: Gpu
    gpus: int
    kv_bytes: int = 2
    weights_fp8: bool = False

    def from_roofline(self, traffic: Traffic, most: float) -> Speed | None:
        """Return the best estimated speed within the objective, with at most `most` concurrent requests."""
        sizes = [size for size in BATCHES if size <= most]
        return _best([self.at(size, traffic) for size in sizes], traffic)

    def at(self, batch: int, traffic: Traffic) -> Speed:
        """Return the speed of steady traffic with `batch` concurrent requests: each prefill interrupts the others."""
        step = self.step_s(batch, traffic.input_tokens + traffic.output_tokens // 2)
        prefill = self.prefill_s(traffic.input_tokens)
        ttft = prefill + step
        itl = step + batch * prefill / traffic.output_tokens
        return Speed(
            requests_per_s=batch / (ttft + (traffic.output_tokens - 1) * itl),
            concurrency=batch,
            ttft_s=ttft,
            itl_s=itl,
            kind=SpeedOrigin.ROOFLINE,
            source=self._peak(),
        )

    def step_s(self, batch: int, context: int) -> float:
        """Return the seconds of one step, in which each of `batch` requests gets a token."""
        moved = (self._weight_bytes(batch) + batch * self._cache_bytes(context)) / self.gpus
        memory = moved / (self.gpu.memory_bandwidth_gb_s * 1e9 * self._efficiency())
        return max(memory, batch * self._compute_s())

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds to process a prompt."""
        return max(tokens * self._compute_s(), self.step_s(1, tokens))

    def _compute_s(self) -> float:
        """Return the seconds of one token's operations on all GPUs: two per weight that the token uses."""
        return 2 * self._active_parameters() / (self._tflops() * 1e12 * self._efficiency() * self.gpus)

    def _peak(self) -> str:
        peak = f"{self.gpu.memory_bandwidth_gb_s:.0f} GB/s and {self._tflops():.0f} TFLOPS"
        return f"{self._efficiency():.0%} of {peak}"

    def _efficiency(self) -> float:
        return next((share for gpus, share in EFFICIENCY.items() if self.gpus <= gpus), EFFICIENCY[8])

    def _tflops(self) -> float:
        eight_bits = precision(self.model, weights_fp8=self.weights_fp8) == "fp8"
        if eight_bits and self.gpu.fp8_dense_tflops is not None:
            return self.gpu.fp8_dense_tflops
        return self.gpu.fp16_dense_tflops

    def _active_share(self) -> float:
        """Return the share of the experts' weights that one token uses, 0 to 1."""
        model = self.model
        return model.active_experts / model.experts if model.experts and model.active_experts else 1.0

    def _active_parameters(self) -> float:
        share = self.weights.experts / self.weights.total
        return self.weights.parameters * (1 - share * (1 - self._active_share()))

    def _weight_bytes(self, batch: int) -> float:
        """Return the weight bytes that a step reads on all GPUs: of experts, only those that a token uses."""
        met = 1 - (1 - self._active_share()) ** batch
        halved = self.weights.quantizable / 2 if self.weights_fp8 else 0
        return self.weights.total - halved - self.weights.experts * (1 - met)

    def _cache_bytes(self, context: int) -> float:
        """Return the bytes of keys, values and states that a step reads for one request."""
        read = 0.0
        for layer in self.model.layers:
            match layer:
                case Attention(window=window, chunk=chunk):
                    tokens = min(context, window or chunk or context)
                    read += tokens * layer.page_bytes(block=1, kv_bytes=self.kv_bytes, tp=1)
                case LatentAttention():
                    # every GPU reads all of it
                    read += context * layer.page_bytes(block=1, kv_bytes=self.kv_bytes) * self.gpus
                case StateLayer():
                    read += 2 * layer.bytes_per_sequence(1)
        return read


def tokens_per_s(row: Row) -> float:
    """Return the input and output tokens per second of a measured replica, over all its requests."""
    seconds = row.ttft_s + row.output_tokens * row.itl_s
    return row.concurrency * (row.input_tokens + row.output_tokens) / seconds


def most_measured(model: str, gpu: str, gpus: int) -> Row | None:
    """Return the row with the most tokens per second of a model on `gpus` GPUs; None without a row.

    `model`: a name as on a hub. Tuned variants (`…-Instruct`) are as fast as the model in their name.
    """
    known = [row for row in measured() if row.gpu == gpu and row.gpus == gpus and _is_or_tunes(model, row.model)]
    return max(known, key=tokens_per_s, default=None)


def _is_or_tunes(model: str, base: str) -> bool:
    return model == base or model.startswith(f"{base}-")
