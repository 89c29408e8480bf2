"""How many blocks and requests fit into given memory: the same arithmetic as vLLM 0.32's kv_cache_utils.py."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from serving.sizing.model import Attention, LatentAttention, Layer, ModelShape, SizingError, StateLayer

BLOCK: Final = 16
"""Tokens per block on GPUs; vLLM's CPU platform uses 128."""
BATCHED_TOKENS: Final = 8192
"""vLLM's default of --max-num-batched-tokens for servers on large GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """The parameters, besides the model, that determine the size of the KV cache."""

    block: int = BLOCK
    kv_bytes: int = 2
    tp: int = 1
    pp: int = 1
    max_model_len: int
    batched_tokens: int = BATCHED_TOKENS
    concurrent_batches: int = 2
    """2 with async scheduling (the default on GPUs), 1 without (CPU)."""

    @property
    def in_flight(self) -> int:
        """Maximum tokens that are scheduled but not completed."""
        return self.concurrent_batches * self.batched_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that share a block table."""

    layers: int
    blocks_per_request: int
    """Blocks of a request with the maximum context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """The layout of a model's cache on one GPU, as vLLM would create it."""

    bytes_per_block: int
    """Bytes of one block of every layer of a group: the unit of the pool."""
    groups: tuple[LayerGroup, ...]
    block: int
    max_model_len: int

    @property
    def blocks_per_request(self) -> int:
        return sum(group.blocks_per_request for group in self.groups)

    def blocks(self, memory: int) -> int:
        """Return the number of blocks that fit: `num_gpu_blocks`."""
        return max(0, memory) // self.bytes_per_block

    def concurrency(self, memory: int) -> float:
        """Return the number of maximum-length requests that fit at once: `kv_cache_max_concurrency`."""
        return self.blocks(memory) / self.blocks_per_request

    def tokens(self, memory: int) -> int:
        """Return what vLLM logs as "KV cache size". For hybrid models it is concurrency × context, no capacity."""
        return int(self.concurrency(memory) * self.max_model_len)


def layout(model: ModelShape, shape: CacheShape) -> KvLayout | None:
    """Return the layout; None for a model without a cache. Raises SizingError."""
    if model.has_no_cache:
        return None
    if shape.max_model_len > model.max_context:
        raise SizingError(f"context {shape.max_model_len} is longer than the model's {model.max_context}")
    layers = model.layers[: -(-len(model.layers) // shape.pp)] if shape.pp > 1 else model.layers
    kinds = _by_kind(layers)
    if any(isinstance(layer, StateLayer) for layer in kinds) and len(kinds) > 1:
        return _hybrid(kinds, shape)
    pages = {layer: _page(layer, shape) for layer in kinds}
    if len(kinds) == 1:
        ((layer, count),) = kinds.items()
        group = LayerGroup(layers=count, blocks_per_request=_blocks_per_request(layer, shape))
        return _layout(pages[layer] * count, [group], shape)
    if len(set(pages.values())) != 1:
        raise SizingError(
            "layers with keys of different sizes: this is not supported, because vLLM packs them by special rules"
        )
    return _grouped(kinds, next(iter(pages.values())), shape)


def _layout(bytes_per_block: int, groups: Sequence[LayerGroup], shape: CacheShape) -> KvLayout:
    return KvLayout(
        bytes_per_block=bytes_per_block, groups=tuple(groups), block=shape.block, max_model_len=shape.max_model_len
    )


def _by_kind(layers: Sequence[Layer]) -> dict[Layer, int]:
    counts: dict[Layer, int] = defaultdict(int)
    for layer in layers:
        counts[layer] += 1
    return dict(counts)


def _grouped(kinds: dict[Layer, int], page: int, shape: CacheShape) -> KvLayout:
    """Lay out layer types with equal page sizes in one pool. Groups are padded to the same number of layers."""
    fewest, most = min(kinds.values()), max(kinds.values())
    size = most if most < fewest * 1.5 else fewest
    groups = [
        LayerGroup(layers=size, blocks_per_request=_blocks_per_request(layer, shape))
        for layer, count in kinds.items()
        for _ in range(-(-count // size))
    ]
    return _layout(page * size, groups, shape)


def _hybrid(kinds: dict[Layer, int], shape: CacheShape) -> KvLayout:
    """Lay out attention and state layers: the attention block is long enough that its page can store a state."""
    states = [layer for layer in kinds if isinstance(layer, StateLayer)]
    others = [layer for layer in kinds if not isinstance(layer, StateLayer)]
    if len(states) != 1 or len(others) != 1:
        raise SizingError("models with several types of attention layers and of state layers are not supported")
    state, attention = states[0], others[0]
    one_token = replace(shape, block=1)
    per_token = _page(attention, one_token)
    needed = -(-state.bytes_per_sequence(shape.tp) // per_token)
    block = -(-max(needed, shape.block) // shape.block) * shape.block
    longer = replace(shape, block=block)
    return _grouped(kinds, _page(attention, longer), longer)


def _page(layer: Layer, shape: CacheShape) -> int:
    match layer:
        case Attention():
            return layer.page_bytes(block=shape.block, kv_bytes=shape.kv_bytes, tp=shape.tp)
        case LatentAttention():
            return layer.page_bytes(block=shape.block, kv_bytes=shape.kv_bytes)
        case StateLayer():
            return layer.bytes_per_sequence(shape.tp)


def _blocks_per_request(layer: Layer, shape: CacheShape) -> int:
    match layer:
        case StateLayer():
            return 1
        case Attention(window=int(window)):
            tokens = min(window - 1 + shape.in_flight, shape.max_model_len)
            # a window may start in the middle of a block
            return -(-tokens // shape.block) + 1
        case Attention(chunk=int(chunk)):
            return -(-min(chunk + shape.in_flight, shape.max_model_len) // shape.block)
        case _:
            return -(-shape.max_model_len // shape.block)
