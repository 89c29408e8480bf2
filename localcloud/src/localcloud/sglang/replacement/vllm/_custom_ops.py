"""Rotary position embedding in PyTorch. SGLang 0.5.23 takes it from vLLM's kernels where it has none of its own."""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
from typing import Any


def rotary_embedding(  # noqa: PLR0913 - vLLM's signature
    positions: Any, query: Any, key: Any, head_size: int, cos_sin_cache: Any, is_neox: bool = True
) -> None:
    """Rotate each pair of components of the query and of the key (None: without a key) by its position, in place.

    `cos_sin_cache` has a row for each position: cosines, then sines. `is_neox`: a pair is one component of the first
    half and one of the second half; otherwise two neighbours.
    """
    cosine, sine = cos_sin_cache[positions.flatten()].float().unsqueeze(1).chunk(2, dim=-1)
    half = cosine.shape[-1]
    for states in (query, key):
        if states is None:
            continue
        heads = states.view(positions.numel(), -1, head_size)
        parts = (slice(0, half), slice(half, 2 * half)) if is_neox else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        left, right = (heads[..., part] for part in parts)
        new_left, new_right = left * cosine - right * sine, right * cosine + left * sine
        left.copy_(new_left)
        right.copy_(new_right)
