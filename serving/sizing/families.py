"""Reads `config.json`: the layers of a model, and what each layer caches. It rejects unknown families."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from serving.sizing.defaults import DEFAULTS
from serving.sizing.model import Attention, LatentAttention, Layer, ModelShape, SizingError, StateLayer

Config = Mapping[str, Any]

STANDARD: Final = frozenset(
    (
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "phi",
        "phi3",
        "phimoe",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gemma3",
        "gpt_oss",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "granite",
        "granitemoe",
        "cohere",
        "cohere2",
        "starcoder2",
        "stablelm",
        "gpt_neox",
        "gpt2",
        "gpt_bigcode",
        "opt",
        "falcon",
        "internlm2",
        "internlm3",
        "exaone",
        "exaone4",
        "glm",
        "glm4",
        "glm4_moe",
        "minimax_m2",
        "dbrx",
        "nemotron",
        "smollm3",
        "ernie4_5",
        "ernie4_5_moe",
        "seed_oss",
        "llama4_text",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "apertus",
        "arcee",
        "mistral3",
        "qwen2_vl",
        "qwen2_vl_text",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
        "qwen3_vl_text",
        "qwen3_vl_moe_text",
        "bloom",
        "mpt",
    )
)
"""Decoders in which every layer caches keys and values, as their fields describe."""
LATENT: Final = frozenset(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "longcat_flash"))
DRAFTING: Final = frozenset(
    ("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "ernie4_5_moe", "nemotron_h", "qwen3_next")
)
"""Families whose own draft layers (`num_nextn_predict_layers`) vLLM 0.32 can run."""
STATES: Final = frozenset(
    ("mamba", "mamba2", "bamba", "granitemoehybrid", "nemotron_h", "jamba", "qwen3_next", "falcon_h1")
)
ENCODERS: Final = frozenset(
    ("bert", "roberta", "xlm-roberta", "modernbert", "distilbert", "mpnet", "nomic_bert", "gte", "new")
)

_SENSES: Final = ("vision_config", "audio_config")
"""Parts of a config that describe vision or audio encoders, in addition to the language model."""
_MAX_LAYERS: Final = 10_000
_LARGEST: Final = 1 << 40
"""Maximum of any field. A larger value is an error, and counting to it would use all memory of this machine."""
_ALIASES: Final = {
    "hidden_size": ("n_embd", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "intermediate_size": ("ffn_dim", "n_inner", "ffn_hidden_size"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "max_sequence_length"),
}


def read(config: Config) -> ModelShape:
    """Return the model that a config describes. Raises SizingError that names the missing field or family."""
    try:
        return _read(config)
    except SizingError:
        raise
    except KeyError as error:
        raise SizingError(f"config.json: {error.args[0]!r} is missing or has an unknown value") from error
    except (TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise SizingError(f"config.json: a field has the wrong type: {error}") from error


def _read(config: Config) -> ModelShape:
    inner = _inner(config)
    family = str(inner.get("model_type") or config.get("model_type") or "")
    if not family:
        raise SizingError("config.json has no model_type")
    layers = _layers(family, inner)
    dtype = inner.get("torch_dtype") or inner.get("dtype") or config.get("torch_dtype") or config.get("dtype")
    quantization = cast("Config", config.get("quantization_config") or inner.get("quantization_config") or {})
    hidden = _number(inner, "hidden_size")
    # dbrx has these fields in a section of its own
    experts = {**cast("Config", inner.get("ffn_config") or {}), **inner}
    return ModelShape(
        family=family,
        hidden=hidden,
        intermediate=int(_field(experts, "intermediate_size") or 4 * hidden),
        heads=int(_field(inner, "num_attention_heads") or 1),
        vocabulary=_number(inner, "vocab_size"),
        max_context=_context(inner),
        dtype=str(dtype or "bfloat16").removeprefix("torch."),
        layers=layers,
        layer_count=_layer_count(inner),
        experts=int(_first(experts, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts") or 0),
        active_experts=int(
            _first(experts, "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k") or 0
        ),
        quantization=_quantization(quantization),
        draft_layers=_draft_layers(family, inner),
        multimodal=inner is not config or any(isinstance(config.get(name), Mapping) for name in _SENSES),
    )


def _quantization(config: Config) -> str | None:
    """Return the number format of quantized weights. For two libraries, further fields give the format."""
    method = config.get("quant_method")
    if method == "compressed-tensors":
        groups = cast("Mapping[str, Config]", config.get("config_groups") or {})
        kinds = [cast("Config", group.get("weights") or {}) for group in groups.values()]
        bits = {kind.get("num_bits") for kind in kinds if kind.get("type") == "float"}
        if 4 in bits:
            return "nvfp4"
        return "fp8" if 8 in bits else str(method)
    if method == "modelopt" and "FP4" in str(config.get("quant_algo") or "").upper():
        return "modelopt_fp4"
    return None if method is None else str(method)


def _inner(config: Config) -> Config:
    """Return the language model's section of a multimodal config."""
    for name in ("text_config", "llm_config", "language_config"):
        part = config.get(name)
        if isinstance(part, Mapping):
            fields = cast("Config", part)
            return {**DEFAULTS.get(str(fields.get("model_type")), {}), **fields}
    return config


def _layers(family: str, config: Config) -> tuple[Layer, ...]:
    if family in ENCODERS or config.get("is_decoder") is False and config.get("is_causal") is False:
        return ()
    if family in LATENT:
        return _latent(config)
    if family in STATES:
        return _mixed(family, config)
    if family in STANDARD:
        return _standard(family, config)
    raise SizingError(
        f"model_type {family!r} is not supported: add its layer types (full, sliding, latent, state) and their "
        "sizes to serving/sizing/families.py, and compare the result with vLLM's own number of blocks"
    )


def _standard(family: str, config: Config) -> tuple[Layer, ...]:
    count = _layer_count(config)
    kinds = [_kind(name) for name in config["layer_types"]] if config.get("layer_types") else _kinds(family, config)
    if len(kinds) != count:
        raise SizingError(f"config.json: {len(kinds)} layer types for {count} layers")
    window, chunk = config.get("sliding_window"), config.get("attention_chunk_size")
    return tuple(
        _attention(config, window=window if kind == "sliding" else None, chunk=chunk if kind == "chunked" else None)
        for kind in kinds
    )


def _kind(name: str) -> str:
    known = {
        "full_attention": "full",
        "attention": "full",
        "sliding_attention": "sliding",
        "chunked_attention": "chunked",
        "linear_attention": "state",
        "mamba": "state",
    }
    if name not in known:
        raise SizingError(f"config.json: layer type {name!r} is unknown; known types: {', '.join(known)}")
    return known[name]


_WINDOWS_BEFORE_FULL: Final = {"gemma3": 6, "gemma3_text": 6, "cohere2": 4, "exaone4": 4}
"""One layer in this number of layers attends to all tokens, if the config does not give the number."""


def _kinds(family: str, config: Config) -> list[str]:
    """Return the layer types when the config does not list them."""
    count, window = _layer_count(config), config.get("sliding_window")
    if family == "llama4_text":
        no_rope = cast("Sequence[int]", config.get("no_rope_layers") or [int((i + 1) % 4 != 0) for i in range(count)])
        return ["chunked" if rope else "full" for rope in no_rope]
    if family == "gpt_oss":
        return ["sliding" if i % 2 == 0 else "full" for i in range(count)]
    if family == "gemma2":
        return ["sliding" if i % 2 == 0 else "full" for i in range(count)]
    if window and family in _WINDOWS_BEFORE_FULL:
        every = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
        if isinstance(every, str):
            # EXAONE 4 gives a pattern: LLLG is three local layers, then a global one
            return ["full" if every[i % len(every)] == "G" else "sliding" for i in range(count)]
        pattern = int(every or _WINDOWS_BEFORE_FULL[family])
        return ["full" if (i + 1) % pattern == 0 else "sliding" for i in range(count)]
    if not window or config.get("use_sliding_window") is False:
        return ["full"] * count
    if family.startswith(("qwen2", "qwen3")):
        # the first layers attend to all tokens
        first = int(config.get("max_window_layers") or 0)
        return ["full" if i < first else "sliding" for i in range(count)]
    return ["sliding"] * count


def _attention(config: Config, *, window: int | None = None, chunk: int | None = None) -> Attention:
    heads = _number(config, "num_attention_heads")
    head_size = int(config.get("head_dim") or _number(config, "hidden_size") // heads)
    return Attention(
        kv_heads=_positive("the number of key heads", _kv_heads(config, heads)),
        head_size=_positive("head_dim", head_size),
        head_size_v=_positive("v_head_dim", config.get("v_head_dim") or head_size),
        window=None if window is None else _positive("sliding_window", window),
        chunk=None if chunk is None else _positive("attention_chunk_size", chunk),
    )


def _kv_heads(config: Config, heads: int) -> Any:
    # falcon and gpt_bigcode have a switch, which is valid unless falcon's newer layout is on; a config that a library
    # has rewritten has both fields, and then the number does not apply
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    # dbrx and mpt have it in a section of its own
    inside = cast("Config", config.get("attn_config") or {}).get("kv_n_heads")
    found = _first(config, "n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num")
    return found if found is not None else inside or heads


def _latent(config: Config) -> tuple[Layer, ...]:
    if config.get("kv_lora_rank") is None:
        return tuple(_attention(config) for _ in range(_layer_count(config)))
    index = int(config.get("index_head_dim") or 0)
    layer = LatentAttention(
        latent=_number(config, "kv_lora_rank"),
        rope=_number(config, "qk_rope_head_dim"),
        # the indexer stores one 8-bit key and a 32-bit scale per 128 values
        index=index + 4 * index // 128,
    )
    return (layer,) * _layer_count(config)


def _mixed(family: str, config: Config) -> tuple[Layer, ...]:
    readers: dict[str, Callable[[Config], StateLayer]] = {
        "mamba": _mamba1,
        "jamba": _mamba1,
        "qwen3_next": _delta_net,
    }
    state = readers.get(family, _mamba2)(config)
    found: list[Layer] = []
    for kind in _mixed_kinds(family, config):
        if kind in ("state", "both"):
            found.append(state)
        if kind in ("full", "both"):
            found.append(_attention(config))
    return tuple(found)


def _mixed_kinds(family: str, config: Config) -> list[str]:
    count = _layer_count(config)
    if family in ("mamba", "mamba2"):
        return ["state"] * count
    if family == "falcon_h1":
        return ["both"] * count
    if family == "nemotron_h":
        known = {"M": "state", "*": "full", "-": "nothing", "E": "nothing"}
        pattern = str(config["hybrid_override_pattern"])
        if unknown := sorted(set(pattern) - set(known)):
            raise SizingError(
                f"config.json: hybrid_override_pattern contains {unknown}; known letters: {', '.join(known)}"
            )
        return [known[letter] for letter in pattern]
    types = config.get("layer_types") or config.get("layers_block_type")
    if types:
        return [_kind(name) for name in types]
    if family == "qwen3_next":
        every = int(config.get("full_attention_interval") or 4)
        return ["full" if (i + 1) % every == 0 else "state" for i in range(count)]
    if family == "bamba":
        full = set(cast("Sequence[int]", config.get("attn_layer_indices") or ()))
        return ["full" if i in full else "state" for i in range(count)]
    period, offset = _number(config, "attn_layer_period"), _number(config, "attn_layer_offset")
    return ["full" if i % period == offset else "state" for i in range(count)]


def _mamba2(config: Config) -> StateLayer:
    heads = int(_first(config, "mamba_n_heads", "mamba_num_heads", "num_heads") or 0)
    head_size = int(_first(config, "mamba_d_head", "mamba_head_dim", "head_dim") or 0)
    size = int(_first(config, "mamba_d_state", "ssm_state_size", "state_size") or 0)
    groups = int(_first(config, "mamba_n_groups", "n_groups") or 1)
    kernel = int(_first(config, "mamba_d_conv", "conv_kernel") or 4)
    if not (heads and head_size and size):
        raise SizingError("config.json: the state's heads, head size or state size is missing")
    return StateLayer(
        conv_channels=heads * head_size + 2 * groups * size,
        conv_kernel=kernel,
        heads=heads,
        head_size=head_size,
        state_size=size,
        groups=groups,
    )


def _mamba1(config: Config) -> StateLayer:
    expand = int(_first(config, "mamba_expand", "expand") or 2)
    inner = int(config.get("intermediate_size") or 0) if config.get("model_type") == "mamba" else 0
    channels = inner or expand * _number(config, "hidden_size")
    return StateLayer(
        conv_channels=channels,
        conv_kernel=int(_first(config, "mamba_d_conv", "conv_kernel") or 4),
        heads=channels,
        head_size=1,
        state_size=int(_first(config, "mamba_d_state", "state_size") or 16),
    )


def _delta_net(config: Config) -> StateLayer:
    key = _number(config, "linear_num_key_heads") * _number(config, "linear_key_head_dim")
    value = _number(config, "linear_num_value_heads") * _number(config, "linear_value_head_dim")
    return StateLayer(
        conv_channels=2 * key + value,
        conv_kernel=_number(config, "linear_conv_kernel_dim"),
        heads=_number(config, "linear_num_value_heads"),
        head_size=_number(config, "linear_value_head_dim"),
        state_size=_number(config, "linear_key_head_dim"),
    )


def _layer_count(config: Config) -> int:
    if config.get("model_type") == "longcat_flash" and config.get("num_hidden_layers") is None:
        # each of its layers has two attention layers, and both cache
        found = 2 * _number(config, "num_layers")
    else:
        found = _number(config, "num_hidden_layers")
    if found > _MAX_LAYERS:
        raise SizingError(f"config.json: {found} layers, more than any model has")
    return found


def _draft_layers(family: str, config: Config) -> int:
    name = "num_nextn_predict_layers"
    if family not in DRAFTING or not config.get(name):
        return 0
    if (count := _positive(name, config[name])) > _MAX_LAYERS:
        raise SizingError(f"config.json: {name} is {count}, more than any model has")
    return count


def _context(config: Config) -> int:
    found = _field(config, "max_position_embeddings")
    # models with only states have no maximum context
    return int(found) if found is not None else 1 << 20


def _field(config: Config, name: str) -> Any:
    return _first(config, name, *_ALIASES.get(name, ()))


def _first(config: Config, *names: str) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _number(config: Config, name: str) -> int:
    return _positive(name, _field(config, name))


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
        raise SizingError(f"config.json: {name} is {value!r}, must be a positive whole number")
    return value
