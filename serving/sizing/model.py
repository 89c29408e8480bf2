"""The model data for sizing: layers by what they cache, and weights by how they are split over GPUs."""

from dataclasses import dataclass
from math import prod
from typing import Final

from serving.weights import Tensor


class SizingError(ValueError):
    """The model cannot be sized; the message names what is missing or unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A layer that caches keys and values of the tokens that it can attend to."""

    kv_heads: int
    head_size: int
    head_size_v: int
    window: int | None = None
    """Sliding window in tokens."""
    chunk: int | None = None
    """Tokens per chunk of chunked local attention (Llama 4)."""

    def page_bytes(self, *, block: int, kv_bytes: int, tp: int) -> int:
        """Return the bytes of one block on one GPU. With more GPUs than key heads, each GPU copies one head."""
        return block * max(1, self.kv_heads // tp) * (self.head_size + self.head_size_v) * kv_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """MLA: one latent vector per token, the same on every GPU of a tensor-parallel group."""

    latent: int
    rope: int
    index: int = 0
    """Additional bytes per token of a sparse indexer (DeepSeek V3.2)."""

    def page_bytes(self, *, block: int, kv_bytes: int) -> int:
        """Return the bytes of one block. In FP8, a token of 512+64 takes 656 bytes: scales and a 16-bit rope part."""
        if kv_bytes == 1:
            return block * (self.latent + 4 * self.latent // 128 + 2 * self.rope + self.index)
        return block * ((self.latent + self.rope) * kv_bytes + self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayer:
    """A layer with a state of fixed size per sequence (Mamba, gated delta net)."""

    conv_channels: int
    conv_kernel: int
    heads: int
    head_size: int
    state_size: int
    groups: int = 1
    conv_dtype_bytes: int = 2
    ssm_dtype_bytes: int = 4
    """float32, the upper bound: vLLM stores the states of some models in the model's own type, which needs half."""

    def bytes_per_sequence(self, tp: int) -> int:
        """Return the bytes on one GPU. Heads and channels are split over the GPUs."""
        conv = self.conv_channels // tp * (self.conv_kernel - 1) * self.conv_dtype_bytes
        return conv + self.heads // tp * self.head_size * self.state_size * self.ssm_dtype_bytes


Layer = Attention | LatentAttention | StateLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model's dimensions and layers."""

    family: str
    """Its `model_type`."""
    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    max_context: int
    dtype: str
    layers: tuple[Layer, ...]
    """The layers that cache something; empty for encoders."""
    layer_count: int
    experts: int = 0
    active_experts: int = 0
    quantization: str | None = None
    """Number format of the checkpoint's weights, from its config: `fp8`, `awq`, `gptq`, `mxfp4`; `compressed-tensors`
    when that library's fields give integers or no format."""
    multimodal: bool = False
    """Whether it also processes images or audio."""
    draft_layers: int = 0
    """Draft layers (multi-token prediction) that vLLM can use. vLLM uses them only when its arguments enable it."""

    @property
    def has_no_cache(self) -> bool:
        """Whether the model is encoder-only: it has no KV cache."""
        return not self.layers

    @property
    def kv_heads(self) -> int:
        """The most key heads of a layer; 1 for models whose layers have none."""
        return max((layer.kv_heads for layer in self.layers if isinstance(layer, Attention)), default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The tensors of a checkpoint, summed by how tensor parallelism distributes them."""

    split: int
    """Bytes split over the GPUs."""
    copied: int
    """Bytes that every GPU has a copy of."""
    key_value: int
    """Bytes of key and value projections: split over at most the number of key heads, then copied."""
    ends: int
    """Bytes of embeddings and head, included in `split`. With pipelines, they are on the first and last stage."""
    quantizable: int
    """Bytes in 16 bits that quantization during loading would halve, included in the sums above."""
    parameters: int
    experts: int = 0
    """Bytes of experts' weights, included in `split`."""
    senses: int = 0
    """Bytes of vision and audio encoders, in no other sum. The calculation assumes a full copy on every GPU, because
    it depends on vLLM's class for the model whether they are split."""

    @property
    def total(self) -> int:
        return self.split + self.copied + self.key_value + self.senses

    def per_gpu(self, *, tp: int, pp: int, kv_heads: int) -> int:
        """Return the bytes on the GPU with the most bytes."""
        key_value = self.key_value // min(tp, max(1, kv_heads))
        body = (self.split - self.ends) // tp + self.copied + key_value
        return -(-body // pp) + self.ends // tp + self.senses


_COPIED: Final = (
    "norm",
    ".gate.weight",
    "router",
    "q_a_proj",
    "kv_a_proj",
    "fused_qkv_a_proj",
    "indexer",
    "e_score_correction_bias",
    "sinks",
)
_SENSES: Final = frozenset(
    (
        "visual",
        "vision",
        "vision_tower",
        "vision_model",
        "vision_encoder",
        "audio_tower",
        "multi_modal_projector",
        "mm_projector",
        "vision_language_adapter",
        "connector",
        "mlp1",
    )
)
"""Parts of tensor names that identify vision and audio encoders."""
_ENDS: Final = ("embed_tokens", "lm_head", "wte", "word_embeddings", "embed_in", "embed_out", "output.weight")


def weigh(tensors: list[Tensor]) -> Weights:
    """Sum the tensors of a checkpoint. Raises SizingError for a checkpoint without tensors."""
    if not tensors:
        raise SizingError("the checkpoint has no tensors")
    split = copied = key_value = ends = quantizable = parameters = experts = senses = 0
    for tensor in tensors:
        parameters += prod(tensor.shape)
        if not _SENSES.isdisjoint(tensor.name.split(".")):
            senses += tensor.size
            continue
        is_end = any(part in tensor.name for part in _ENDS)
        if len(tensor.shape) <= 1 or any(part in tensor.name for part in _COPIED):
            copied += tensor.size
        elif ".k_proj." in tensor.name or ".v_proj." in tensor.name:
            key_value += tensor.size
        else:
            split += tensor.size
            ends += tensor.size if is_end else 0
            experts += tensor.size if ".experts." in tensor.name else 0
        if len(tensor.shape) >= 2 and tensor.dtype in ("BF16", "F16") and not is_end and "norm" not in tensor.name:
            quantizable += tensor.size
    return Weights(
        split=split,
        copied=copied,
        key_value=key_value,
        ends=ends,
        quantizable=quantizable,
        parameters=parameters,
        experts=experts,
        senses=senses,
    )
