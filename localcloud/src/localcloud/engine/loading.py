"""Loads a model as an engine does: reads every byte and checks every safetensors header."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHUNK = 4 * 1024 * 1024
_LARGEST_HEADER = 100_000_000


class LoadError(RuntimeError):
    """The folder has no valid model; the message names the file and the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """The properties of a model that the simulation uses."""

    weight_bytes: int
    kv_bytes_per_token: int
    max_context: int
    vocabulary: tuple[str, ...]


def load(folder: Path) -> LoadedModel:
    """Read config, tokenizer and all weights. Raises LoadError."""
    config = _json(folder / "config.json")
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise LoadError(f"{folder}: no *.safetensors file")
    layers = int(config.get("num_hidden_layers", 2))
    heads = int(config.get("num_attention_heads", 4))
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or int(config.get("hidden_size", 128)) // heads)
    return LoadedModel(
        weight_bytes=sum(_read_shard(shard) for shard in shards),
        kv_bytes_per_token=layers * 2 * kv_heads * head_dim * 2,
        max_context=int(config.get("max_position_embeddings", 2048)),
        vocabulary=_vocabulary(folder / "tokenizer.json"),
    )


def check_adapter(folder: Path) -> None:
    """Read a LoRA adapter in the format of the library PEFT. Raises LoadError."""
    config = _json(folder / "adapter_config.json")
    if config.get("peft_type") != "LORA":
        raise LoadError(f"{folder}: adapter_config.json has the peft_type {config.get('peft_type')!r}, not LORA")
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        raise LoadError(f"{weights}: does not exist")
    _read_shard(weights)


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise LoadError(f"{path}: {error}") from error


def _read_shard(path: Path) -> int:
    """Bytes of tensors in a file, after reading all of it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
            raise LoadError(f"{path}: header of {length} bytes in a file of {size}")
        header = json.loads(file.read(length))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        if 8 + length + end != size:
            raise LoadError(f"{path}: tensors end at byte {8 + length + end}, the file at {size}")
        while file.read(_CHUNK):
            pass
    return end


def _vocabulary(path: Path) -> tuple[str, ...]:
    """The output tokens: whole ASCII words of the tokenizer's vocabulary, in a fixed order."""
    vocabulary: dict[str, int] = _json(path).get("model", {}).get("vocab", {}) if path.is_file() else {}
    tokens = sorted({w.lstrip("Ġ") for w in vocabulary if w.lstrip("Ġ").isascii() and w.lstrip("Ġ").isalpha()})
    whole = (w for w, after in zip(tokens, [*tokens[1:], ""], strict=True) if not after.startswith(w))
    return tuple(w for w in whole if len(w) > 2)[:256] or ("alpha", "beta", "gamma", "delta")
