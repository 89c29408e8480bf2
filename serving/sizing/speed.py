"""The modelled speed of a replica for given traffic.

The roofline takes the larger of the time to move bytes and the time to compute, both at a share of the GPU's peak
that is fitted to the rows of `data/measured.csv`. `serving.sizing.validity` has its error on other measurements.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpufleet.domain.catalogue import Gpu
from serving.sizing.model import Attention, LatentAttention, ModelShape, StateLayer, Weights

EFFICIENCY: Final[Mapping[int, float]] = {1: 0.65, 2: 0.58, 4: 0.42, 8: 0.27}
"""Share of the peak that vLLM reached, by number of GPUs per model: the median of the measured rows. Half of the
rows are within a quarter of it on 1 and 2 GPUs, within a third on 4 and 8."""
BATCHES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_FP8_NAMES: Final = frozenset({"fp8", "fbgemm_fp8", "modelopt"})


class SpeedOrigin(StrEnum):
    """The origin of a speed. The values are stable codes."""

    MEASURED_HERE = "measured_here"
    """The ledger of a fleet of this project: tokens that its machines served."""
    PUBLISHED = "published"
    """A measurement of others: see `serving.sizing.measurements`."""
    MODELLED = "modelled"
    """The roofline of this module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The size of requests, and the latency objective."""

    input_tokens: int
    output_tokens: int
    ttft_s: float | None = None
    """Maximum time to the first token in seconds; None: no limit."""
    itl_s: float | None = None
    """Maximum time between two tokens in seconds; None: no limit."""

    def allows(self, ttft_s: float | None, itl_s: float | None) -> bool:
        """Whether these latencies meet the objective. An unknown latency (None) meets no limit."""
        return _within(ttft_s, self.ttft_s) and _within(itl_s, self.itl_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedError:
    """How far real throughput was from the figure, as a share of it: -0.3 is 30 % less than the figure."""

    low: float
    high: float | None
    """None: there is no upper bound; the figure is a lower bound."""
    basis: str
    """The comparison that the range is from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of one replica, at the concurrency with the highest throughput within the objective."""

    requests_per_s: float
    concurrency: int | None
    """None: the source does not state it."""
    ttft_s: float | None
    """None: the source does not state it."""
    itl_s: float | None
    kind: SpeedOrigin
    source: str
    """Of the figure: benchmark, engine, request size, date."""
    error: SpeedError | None = None
    """None: unknown."""


def precision(model: ModelShape, *, weights_fp8: bool = False) -> str:
    """Return the number format of a model's matrix multiplications, as published rows name it."""
    if weights_fp8 or model.quantization in _FP8_NAMES:
        return "fp8"
    if model.quantization is not None:
        return model.quantization
    return {"bfloat16": "bf16", "float16": "bf16"}.get(model.dtype, model.dtype)


def _within(value: float | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value <= limit)


def best(speeds: Iterable[Speed], traffic: Traffic) -> Speed | None:
    """Return the speed with the highest throughput that meets the objective; None: no speed does."""
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
        return best([self.at(size, traffic) for size in sizes], traffic)

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
            kind=SpeedOrigin.MODELLED,
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
        peak = f"{self.gpu.memory_bandwidth_gb_s:.0f} GB/s and {self._tflops():.0f} TFLOPS each"
        return f"roofline, {self._efficiency():.0%} of {peak} of {self.gpus} × {self.gpu.name}"

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
