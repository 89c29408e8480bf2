"""Whether a model fits a machine's GPUs, how many requests fit at once, and the arguments for vLLM."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from gpufleet.domain.catalogue import Gpu
from serving.engines.vllm import VllmOptions
from serving.sizing.decoding import drafting, speculation
from serving.sizing.memory import BATCHED_TOKENS, CacheShape, KvLayout, layout
from serving.sizing.model import ModelShape, SizingError, Weights

MIB: Final = 1024**2
GIB: Final = 1024**3
UTILIZATION: Final = 0.92
"""vLLM's default of --gpu-memory-utilization."""
TORCH_SHARE: Final = 22516 / 22888
"""Share of the cloud's nominal memory that torch can use, measured on an A10G."""
CONTEXT_BYTES: Final = GIB // 2
"""CUDA context of a process: 0.3 to 0.6 GiB."""
NCCL_BYTES: Final = 400 * MIB
"""NCCL buffers on each GPU of a group: 342 to 392 MB for 2 to 8 GPUs (NVIDIA's AIConfigurator)."""
GRAPH_BYTES: Final = 650 * MIB
"""CUDA graphs: 0.36 to 0.65 GiB measured for 7B to 70B."""
MAX_SEQUENCES: Final = 256
_SENSES_NOTE: Final = (
    "the model accepts images or audio: its weights are counted, but not the memory for processing the largest "
    "input; vLLM measures that at its start and takes it from the KV cache (--language-model-only serves only text)"
)
_FP8: Final = frozenset({"fp8", "fbgemm_fp8", "modelopt"})
_FP4: Final = frozenset({"mxfp4", "nvfp4", "modelopt_fp4"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRequest:
    """The requirements for a machine."""

    context: int
    """Maximum tokens of a request, input and output together."""
    concurrency: int = 1
    """Concurrent requests of that length."""
    kv_fp8: bool = False
    weights_fp8: bool = False
    """Quantize 16-bit weights while loading."""
    weight_bits: Fraction | None = None
    """Bits of each weight that has 16 in the checkpoint, in another checkpoint of the model; None: 16."""
    draft_bytes: int = 0
    """Weights of a second model for drafts, copied on each GPU. Its KV cache is not counted."""
    batched_tokens: int = BATCHED_TOKENS
    speculate: bool = False
    """Use speculative decoding if a method exists: fewer steps per response while the GPU has spare capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSplit:
    """How a model is distributed over GPUs: each layer over `tp`, the layers over `pp`."""

    tp: int = 1
    pp: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp


ONE_GPU: Final = ParallelSplit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The result for one distribution of a model over GPUs."""

    gpu: str
    split: ParallelSplit
    fits: bool
    reason: str
    """Why the model fits or does not, in one line."""
    weights_bytes: int
    """On the GPU with the most bytes."""
    overhead_bytes: int
    """Activations, graphs, context on that GPU: estimated."""
    kv_bytes: int
    """Bytes for the KV cache on that GPU; negative: missing bytes."""
    kv_layout: KvLayout | None
    concurrency: float | None
    """Concurrent requests of the requested length that fit; None for a model without a cache."""
    options: VllmOptions
    notes: tuple[str, ...] = ()


def refusal(model: ModelShape, gpu: Gpu, request: FitRequest) -> str | None:
    """Return why this GPU cannot compute the model's number formats; None when it can."""
    if (request.weights_fp8 or request.kv_fp8) and not gpu.fp8:
        return f"{gpu.name} has no FP8 arithmetic"
    if model.quantization in _FP4 and not gpu.fp8:
        return f"{gpu.name} cannot compute {model.quantization} weights"
    if model.quantization in _FP8 and not gpu.fp8:
        return f"{gpu.name} has no FP8 arithmetic, but the checkpoint is in FP8: use one in 16 bits, AWQ or GPTQ"
    return None


def fit(model: ModelShape, weights: Weights, gpu: Gpu, request: FitRequest, split: ParallelSplit = ONE_GPU) -> Fit:
    """Try one distribution. Raises SizingError for requirements that no GPU can meet."""
    if request.context > model.max_context:
        raise SizingError(f"context {request.context} is longer than the model's {model.max_context}")
    notes: list[str] = []
    tp, pp = split.tp, split.pp
    kv_heads = model.kv_heads
    on_gpu = _weights_on_gpu(weights, request, split, kv_heads)
    overhead = _overhead(model, request, split)
    budget = int(gpu.memory_mib * MIB * TORCH_SHARE * UTILIZATION)
    left = budget - on_gpu - overhead
    shape = CacheShape(
        kv_bytes=1 if request.kv_fp8 else 2,
        tp=tp,
        pp=pp,
        max_model_len=request.context,
        batched_tokens=request.batched_tokens,
    )
    plan = layout(drafting(model) if request.speculate else model, shape)
    at_once = None if plan is None else plan.concurrency(left)
    impossible = refusal(model, gpu, request) or _indivisible(model, tp)
    reason = impossible or _memory_reason(left, plan, at_once, request)
    if not gpu.bf16 and model.dtype == "bfloat16":
        notes.append(f"{gpu.name} has no BF16: computed in FP16, which breaks some models (Gemma)")
    if kv_heads < tp and model.layers:
        notes.append(f"{kv_heads} key heads on {tp} GPUs: each key head is stored {tp // max(1, kv_heads)} times")
    if model.multimodal:
        notes.append(_SENSES_NOTE)
    if request.speculate and speculation(model).method is None:
        notes.append(f"no speculative decoding: {speculation(model).reason}")
    return Fit(
        gpu=gpu.name,
        split=split,
        fits=reason is None,
        reason=reason or _fit_message(at_once, request),
        weights_bytes=on_gpu,
        overhead_bytes=overhead,
        kv_bytes=left,
        kv_layout=plan,
        concurrency=at_once,
        options=_options(model, gpu, request, split, at_once),
        notes=tuple(notes),
    )


def smallest_fit(model: ModelShape, weights: Weights, gpu: Gpu, count: int, request: FitRequest) -> Fit:
    """Return the fit on the fewest of `count` GPUs that suffice; on all when none does. Raises SizingError."""
    tried = [spread(model, weights, gpu, number, request) for number in _powers(count)]
    possible = [answer for answer in tried if not _indivisible(model, answer.split.tp)]
    return next((answer for answer in possible if answer.fits), possible[-1])


def spread(model: ModelShape, weights: Weights, gpu: Gpu, count: int, request: FitRequest) -> Fit:
    """Use all of `count` GPUs: the largest `tp` that divides the heads and fits, `pp` for the others.

    Raises SizingError.
    """
    ways = [ParallelSplit(tp=tp, pp=count // tp) for tp in range(count, 0, -1) if count % tp == 0]
    possible = [way for way in ways if not _indivisible(model, way.tp) and way.pp <= max(1, model.layer_count)]
    tried = [fit(model, weights, gpu, request, way) for way in possible or [ParallelSplit(tp=count)]]
    return next((answer for answer in tried if answer.fits), tried[0])


def _powers(count: int) -> list[int]:
    found = [n for n in (1, 2, 4, 8, 16) if n <= count]
    return found if count in found else [*found, count]


def _weights_on_gpu(weights: Weights, request: FitRequest, split: ParallelSplit, kv_heads: int) -> int:
    on_gpu = weights.per_gpu(tp=split.tp, pp=split.pp, kv_heads=kv_heads)
    bits = Fraction(8) if request.weights_fp8 else request.weight_bits
    if bits is not None:
        on_gpu -= int(weights.quantizable * (1 - bits / 16)) // split.gpus
    return on_gpu + request.draft_bytes


def _overhead(model: ModelShape, request: FitRequest, split: ParallelSplit) -> int:
    """Return the bytes of one batch's activations, the sampler's logits, CUDA graphs and contexts.

    Per token: three intermediate and three hidden vectors in 16 bits. For an 8B Llama at 20,480 tokens this gives
    2.11 GiB; vLLM reported 2.07 GiB.
    """
    per_token = 2 * (3 * -(-model.intermediate // split.tp) + 3 * model.hidden)
    logits = min(MAX_SEQUENCES, max(1, request.concurrency)) * model.vocabulary * 4
    together = NCCL_BYTES if split.gpus > 1 else 0
    return request.batched_tokens * per_token + logits + GRAPH_BYTES + CONTEXT_BYTES + together


def _indivisible(model: ModelShape, tp: int) -> str | None:
    if model.heads % tp:
        return f"{model.heads} attention heads cannot be split over {tp} GPUs"
    return None


def _memory_reason(left: int, plan: KvLayout | None, at_once: float | None, request: FitRequest) -> str | None:
    if left <= 0:
        return f"{-left / GIB:.1f} GiB too little memory for weights and activations"
    if plan is None or at_once is None:
        return None
    if at_once < 1:
        short = plan.blocks_per_request * plan.bytes_per_block - left
        return f"{short / GIB:.2f} GiB too little memory for one request of {request.context} tokens"
    if at_once < request.concurrency:
        return f"{at_once:.1f} requests of {request.context} tokens fit, {request.concurrency} are required"
    return None


def _fit_message(at_once: float | None, request: FitRequest) -> str:
    if at_once is None:
        return "fits; the model has no KV cache"
    return f"fits, with {at_once:.1f} concurrent requests of {request.context} tokens"


def _options(
    model: ModelShape, gpu: Gpu, request: FitRequest, split: ParallelSplit, at_once: float | None
) -> VllmOptions:
    options = VllmOptions(
        max_model_len=request.context,
        tensor_parallel_size=split.tp,
        pipeline_parallel_size=split.pp,
        max_num_batched_tokens=request.batched_tokens,
        max_num_seqs=_sequences(at_once, request),
    )
    if not gpu.bf16 and model.dtype == "bfloat16":
        options = replace(options, dtype="half")
    if request.kv_fp8:
        options = replace(options, kv_cache_dtype="fp8")
    if request.weights_fp8:
        options = replace(options, quantization="fp8")
    if request.speculate:
        options = replace(options, speculative_config=speculation(model).config())
    return options


def _sequences(at_once: float | None, request: FitRequest) -> int:
    """Return the sequence limit. Most requests are shorter than the maximum, so four times as many may run."""
    return MAX_SEQUENCES if at_once is None else max(request.concurrency, min(MAX_SEQUENCES, int(at_once * 4)), 1)
