"""How many blocks and requests fit into a piece of memory: vLLM 0.32's own arithmetic (its kv_cache_utils.py)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from serving.sizing.model import Attention, LatentAttention, Layer, ModelShape, SizingError, StateLayer

BLOCK: Final = 16
"""Tokens per block on GPUs; vLLM's CPU platform takes 128."""
BATCHED_TOKENS: Final = 8192
"""vLLM's default of --max-num-batched-tokens for servers on large GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """What decides the size of the KV cache beside the model."""

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
        """Tokens that may be scheduled and not yet settled."""
        return self.concurrent_batches * self.batched_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that share a block table."""

    layers: int
    blocks_per_request: int
    """At the longest context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """How vLLM would lay a model's cache out on one GPU."""

    bytes_per_block: int
    """One block of every layer of a group: the unit of the pool."""
    groups: tuple[LayerGroup, ...]
    block: int
    max_model_len: int

    @property
    def blocks_per_request(self) -> int:
        return sum(group.blocks_per_request for group in self.groups)

    def blocks(self, memory: int) -> int:
        """Blocks that fit: `num_gpu_blocks`."""
        return max(0, memory) // self.bytes_per_block

    def concurrency(self, memory: int) -> float:
        """Requests of the longest context that fit at once: `kv_cache_max_concurrency`."""
        return self.blocks(memory) / self.blocks_per_request

    def tokens(self, memory: int) -> int:
        """What vLLM logs as "KV cache size"; of hybrid models it is no capacity, only concurrency × context."""
        return int(self.concurrency(memory) * self.max_model_len)


def layout(model: ModelShape, shape: CacheShape) -> KvLayout | None:
    """The layout; None for a model that keeps nothing. Raises SizingError."""
    if model.keeps_nothing:
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
        raise SizingError("layers with keys of different sizes: vLLM packs them by rules that are not modelled here")
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
    """Layers of several kinds with pages of one size share a pool; groups are padded to as many layers each."""
    fewest, most = min(kinds.values()), max(kinds.values())
    size = most if most < fewest * 1.5 else fewest
    groups = [
        LayerGroup(layers=size, blocks_per_request=_blocks_per_request(layer, shape))
        for layer, count in kinds.items()
        for _ in range(-(-count // size))
    ]
    return _layout(page * size, groups, shape)


def _hybrid(kinds: dict[Layer, int], shape: CacheShape) -> KvLayout:
    """Attention beside states: the attention block is made so long that its page holds a state."""
    states = [layer for layer in kinds if isinstance(layer, StateLayer)]
    others = [layer for layer in kinds if not isinstance(layer, StateLayer)]
    if len(states) != 1 or len(others) != 1:
        raise SizingError("several kinds of attention beside several kinds of states are not modelled here")
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
            # a window may begin in the middle of a block
            return -(-tokens // shape.block) + 1
        case Attention(chunk=int(chunk)):
            return -(-min(chunk + shape.in_flight, shape.max_model_len) // shape.block)
        case _:
            return -(-shape.max_model_len // shape.block)
