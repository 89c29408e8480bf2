"""A small real model, made on the spot: a Llama with random weights that vLLM loads, always the same.

Bytes depend on the arguments alone, so a model made twice has one digest. Standard library only (weights come from a
counter-mode hash, not from a generator whose stream may change between versions).
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import shake_256
from pathlib import Path
from typing import Any, Final

_SPECIAL: Final = ("<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WORD_LIST: Final = """
the quick brown fox jumps over lazy dog pack my box with five dozen jugs system user assistant you
are a helpful hello how today pool serves model answer question cloud price spot market drain ready
token machine weights and of to in is it for on that this be not from at by an or have was one all
would there their what so up out
"""
_CHAT_TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModelShape:
    """Sizes of the model. The default has 1.2 million parameters in 2.5 MB."""

    hidden: int = 192
    layers: int = 3
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 384
    vocabulary: int = 512
    context: int = 2048
    shards: int = 2
    """Number of safetensors files."""
    seed: int = 0


def make(folder: Path, shape: TinyModelShape | None = None) -> None:
    """Write config, tokenizer and weights into `folder`, which is made. Existing files are overwritten."""
    shape = shape or TinyModelShape()
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in _documents(shape).items():
        (folder / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    tensors = list(_tensors(shape))
    per_file = -(-len(tensors) // shape.shards)
    where: dict[str, str] = {}
    for number in range(shape.shards):
        name = f"model-{number + 1:05d}-of-{shape.shards:05d}.safetensors"
        part = tensors[number * per_file : (number + 1) * per_file]
        _write_shard(folder / name, part, shape.seed)
        where |= dict.fromkeys((tensor for tensor, _ in part), name)
    total = sum(2 * _count(size) for _, size in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


ADAPTER_RANK: Final = 8
"""The smallest common rank of adapters."""
_ADAPTED: Final = ("q_proj", "v_proj")


def make_adapter(folder: Path, shape: TinyModelShape | None = None, *, seed: int = 0) -> None:
    """Write a LoRA adapter of the model with that shape into `folder`, in the format of the library PEFT."""
    shape = shape or TinyModelShape()
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "r": ADAPTER_RANK,
        # large, so that answers of the adapter and of its model differ
        "lora_alpha": 64 * ADAPTER_RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(_ADAPTED),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    tensors: list[tuple[str, tuple[int, ...]]] = []
    for name, size in _tensors(shape):
        if name.split(".")[-2] in _ADAPTED:
            module = f"base_model.model.{name.removesuffix('.weight')}"
            tensors.append((f"{module}.lora_A.weight", (ADAPTER_RANK, size[1])))
            tensors.append((f"{module}.lora_B.weight", (size[0], ADAPTER_RANK)))
    _write_shard(folder / "adapter_model.safetensors", tensors, seed)


def _documents(shape: TinyModelShape) -> dict[str, Any]:
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": shape.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "vocab_size": shape.vocabulary,
            "bos_token_id": 1,
            "eos_token_id": 3,
            "pad_token_id": 1,
            "torch_dtype": "bfloat16",
        },
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 1},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": "<unk>",
            "model_max_length": shape.context,
            "chat_template": _CHAT_TEMPLATE,
        },
        "tokenizer.json": _tokenizer(shape),
    }


def _tokenizer(shape: TinyModelShape) -> dict[str, Any]:
    """Byte-level BPE over printable ASCII. Merges make each word from the left, so its prefixes are tokens.

    The tokenizer has as many tokens as the model: no sampled id decodes to nothing.
    """
    # "Ġ" and "Ċ" are how byte-level BPE spells space and newline
    alphabet = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
    tokens = dict.fromkeys((*_SPECIAL, *alphabet))
    merges: dict[tuple[str, str], None] = {}
    for word in _WORD_LIST.split():
        spelled = f"Ġ{word}"
        missing = [spelled[:end] for end in range(2, len(spelled) + 1) if spelled[:end] not in tokens]
        if len(tokens) + len(missing) > shape.vocabulary:
            break
        for end in range(2, len(spelled) + 1):
            merges[spelled[: end - 1], spelled[end - 1]] = None
            tokens[spelled[:end]] = None
    special = list(_SPECIAL) + [f" w{number}" for number in range(shape.vocabulary - len(tokens))]
    tokens |= dict.fromkeys(special[len(_SPECIAL) :])
    ids = {token: number for number, token in enumerate(tokens)}
    padding = set(special[len(_SPECIAL) :])
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": ids[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": token in _SPECIAL,
            }
            for token in special
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for token, number in ids.items() if token not in padding},
            "merges": [list(pair) for pair in merges],
        },
    }


def _tensors(shape: TinyModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (shape.hidden,)
        yield f"{prefix}.self_attn.q_proj.weight", (shape.heads * shape.head_dim, shape.hidden)
        yield f"{prefix}.self_attn.k_proj.weight", (shape.kv_heads * shape.head_dim, shape.hidden)
        yield f"{prefix}.self_attn.v_proj.weight", (shape.kv_heads * shape.head_dim, shape.hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (shape.hidden, shape.heads * shape.head_dim)
        yield f"{prefix}.post_attention_layernorm.weight", (shape.hidden,)
        yield f"{prefix}.mlp.gate_proj.weight", (shape.intermediate, shape.hidden)
        yield f"{prefix}.mlp.up_proj.weight", (shape.intermediate, shape.hidden)
        yield f"{prefix}.mlp.down_proj.weight", (shape.hidden, shape.intermediate)
    yield "model.norm.weight", (shape.hidden,)
    yield "lm_head.weight", (shape.vocabulary, shape.hidden)


def _count(size: tuple[int, ...]) -> int:
    count = 1
    for length in size:
        count *= length
    return count


def _write_shard(path: Path, tensors: list[tuple[str, tuple[int, ...]]], seed: int) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in tensors:
        begin, end = end, end + 2 * _count(size)
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, size in tensors:
            file.write(_norm(size) if len(size) == 1 else _weights(f"{seed}/{name}", _count(size)))


def _norm(size: tuple[int, ...]) -> bytes:
    """Ones in bfloat16."""
    return b"\x80\x3f" * _count(size)


def _weights(seed: str, count: int) -> bytes:
    """bfloat16 numbers between -1/8 and 1/8: random sign and mantissa, exponents 2^-4 to 2^-7."""
    noise = shake_256(seed.encode()).digest(2 * count)
    # sign from the top bit, then exponent 120..123 of which the lowest bit lives in the low byte
    high = bytes((b & 0x80) | 0x3C | (b & 0x01) for b in noise[1::2])
    mixed = bytearray(2 * count)
    mixed[0::2], mixed[1::2] = noise[0::2], high
    return bytes(mixed)
