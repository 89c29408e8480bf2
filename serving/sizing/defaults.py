"""Default values for the language model's part of a multimodal config.

Such a config has only the fields that differ from its family's class in transformers, which vLLM fills in; a text
model's own config has all fields. The values are those of transformers 5.19, which vLLM 0.32 uses.
"""

from collections.abc import Mapping
from typing import Any, Final


def _of(  # noqa: PLR0913 - a row of a table
    vocabulary: int,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    kv_heads: int | None,
    context: int,
    **more: Any,
) -> Mapping[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": context,
        **more,
    }


_WINDOW_OFF: Final[Mapping[str, Any]] = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}

DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "cohere2": _of(256_000, 8192, 22_528, 40, 64, None, 8192, sliding_window=4096),
    "gemma": _of(256_000, 3072, 24_576, 28, 16, 16, 8192, head_dim=256),
    "gemma2": _of(256_000, 2304, 9216, 26, 8, 4, 8192, head_dim=256, sliding_window=4096),
    "gemma3_text": _of(262_208, 2304, 9216, 26, 8, 4, 131_072, head_dim=256, sliding_window=4096),
    "llama": _of(32_000, 4096, 11_008, 32, 32, None, 2048),
    "llama4_text": _of(
        202_048, 5120, 8192, 48, 40, 8, 131_072, head_dim=128, attention_chunk_size=8192, num_local_experts=16,
        num_experts_per_tok=1,
    ),
    "mistral": _of(32_000, 4096, 14_336, 32, 32, 8, 131_072, sliding_window=4096),
    "phi3": _of(32_064, 3072, 8192, 32, 32, None, 4096),
    "qwen2": _of(151_936, 4096, 22_016, 32, 32, 32, 32_768, **_WINDOW_OFF),
    "qwen3": _of(151_936, 4096, 22_016, 32, 32, 32, 32_768, head_dim=128, **_WINDOW_OFF),
}  # fmt: skip
"""Defaults by family of the language model."""
