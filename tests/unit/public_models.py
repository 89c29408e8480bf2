"""Fields of the `config.json` of public models that sizing reads, as published in each model's repository.

The key is the repository on huggingface.co. Only fields that matter are listed; values are those of the files.
"""

from typing import Any


def dense(  # noqa: PLR0913 - a row of a table
    family: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocabulary: int,
    context: int,
    **more: Any,
) -> dict[str, Any]:
    """A decoder by its usual fields."""
    return {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "torch_dtype": "bfloat16",
        **more,
    }


def _deepseek(family: str, layers: int, hidden: int, heads: int, context: int, **more: Any) -> dict[str, Any]:
    found = dense(family, layers, hidden, heads, heads, 18432, 129280, context, kv_lora_rank=512, qk_rope_head_dim=64)
    return {**found, "v_head_dim": 128, "qk_nope_head_dim": 128, **more}


_QWEN3 = {"head_dim": 128, "sliding_window": None, "use_sliding_window": False}
_QWEN25 = {"sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28}

CONFIGS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-2-7b-hf": dense("llama", 32, 4096, 32, 32, 11008, 32000, 4096),
    "meta-llama/Llama-2-70b-hf": dense("llama", 80, 8192, 64, 8, 28672, 32000, 4096),
    "meta-llama/Llama-3.1-8B-Instruct": dense("llama", 32, 4096, 32, 8, 14336, 128256, 131072),
    "meta-llama/Llama-3.1-70B-Instruct": dense("llama", 80, 8192, 64, 8, 28672, 128256, 131072),
    "meta-llama/Llama-3.1-405B-Instruct": dense("llama", 126, 16384, 128, 8, 53248, 128256, 131072),
    "meta-llama/Llama-3.2-1B": dense("llama", 16, 2048, 32, 8, 8192, 128256, 131072, head_dim=64),
    "meta-llama/Llama-3.2-3B": dense("llama", 28, 3072, 24, 8, 8192, 128256, 131072, head_dim=128),
    "mistralai/Mistral-7B-v0.1": dense("mistral", 32, 4096, 32, 8, 14336, 32000, 32768, sliding_window=4096),
    "mistralai/Mistral-7B-Instruct-v0.3": dense("mistral", 32, 4096, 32, 8, 14336, 32768, 32768, sliding_window=None),
    "mistralai/Mistral-Nemo-Instruct-2407": dense(
        "mistral", 40, 5120, 32, 8, 14336, 131072, 131072, head_dim=128, sliding_window=None
    ),
    "mistralai/Mistral-Small-24B-Instruct-2501": dense(
        "mistral", 40, 5120, 32, 8, 32768, 131072, 32768, head_dim=128, sliding_window=None
    ),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": dense(
        "mixtral", 32, 4096, 32, 8, 14336, 32000, 32768, num_local_experts=8, num_experts_per_tok=2
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": dense("qwen2", 24, 896, 14, 2, 4864, 151936, 32768, **_QWEN25),
    "Qwen/Qwen2.5-1.5B-Instruct": dense("qwen2", 28, 1536, 12, 2, 8960, 151936, 32768, **_QWEN25),
    "Qwen/Qwen2.5-3B-Instruct": dense("qwen2", 36, 2048, 16, 2, 11008, 151936, 32768, **_QWEN25),
    "Qwen/Qwen2.5-7B-Instruct": dense("qwen2", 28, 3584, 28, 4, 18944, 152064, 32768, **_QWEN25),
    "Qwen/Qwen2.5-14B-Instruct": dense("qwen2", 48, 5120, 40, 8, 13824, 152064, 32768, **_QWEN25),
    "Qwen/Qwen2.5-32B-Instruct": dense("qwen2", 64, 5120, 40, 8, 27648, 152064, 32768, **_QWEN25),
    "Qwen/Qwen2.5-72B-Instruct": dense("qwen2", 80, 8192, 64, 8, 29568, 152064, 32768, **_QWEN25),
    "Qwen/Qwen3-8B": dense("qwen3", 36, 4096, 32, 8, 12288, 151936, 40960, **_QWEN3),
    "Qwen/Qwen3-14B": dense("qwen3", 40, 5120, 40, 8, 17408, 151936, 40960, **_QWEN3),
    "Qwen/Qwen3-32B": dense("qwen3", 64, 5120, 64, 8, 25600, 151936, 40960, **_QWEN3),
    "Qwen/Qwen3-30B-A3B": dense(
        "qwen3_moe", 48, 2048, 32, 4, 6144, 151936, 40960, num_experts=128, num_experts_per_tok=8, **_QWEN3
    ),
    "Qwen/Qwen3-235B-A22B-FP8": dense(
        "qwen3_moe",
        *(94, 4096, 64, 4, 12288, 151936, 40960),
        num_experts=128,
        num_experts_per_tok=8,
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
        **_QWEN3,
    ),
    "google/gemma-2-9b-it": dense(
        "gemma2", 42, 3584, 16, 8, 14336, 256000, 8192, head_dim=256, sliding_window=4096
    ),
    # what is not in the text part of these files is what the family's class says
    "google/gemma-3-4b-it": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152},
    },
    "google/gemma-3-27b-it": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
            "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152},
    },
    "llava-hf/llava-1.5-7b-hf": {
        "model_type": "llava",
        "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
        "vision_config": {"hidden_size": 1024},
    },
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": {
        "model_type": "mistral3",
        "text_config": dense(
            "mistral", 40, 5120, 32, 8, 32768, 131072, 131072, head_dim=128, sliding_window=None
        ),
        "vision_config": {"hidden_size": 1024},
    },
    "Qwen/Qwen2-VL-7B-Instruct": dense(
        "qwen2_vl", 28, 3584, 28, 4, 18944, 152064, 32768, sliding_window=32768, use_sliding_window=False,
        max_window_layers=28, vision_config={"hidden_size": 3584},
    ),
    "Qwen/Qwen2.5-VL-72B-Instruct": dense(
        "qwen2_5_vl", 80, 8192, 64, 8, 29568, 152064, 128000, sliding_window=32768, use_sliding_window=False,
        max_window_layers=80, vision_config={"hidden_size": 1280},
    ),
    "Qwen/Qwen3-VL-8B-Instruct": {
        "model_type": "qwen3_vl",
        "text_config": dense("qwen3_vl_text", 36, 4096, 32, 8, 12288, 151936, 262144, head_dim=128),
        "vision_config": {"hidden_size": 1152},
    },
    "microsoft/Phi-3-mini-4k-instruct": dense("phi3", 32, 3072, 32, 32, 8192, 32064, 4096, sliding_window=2047),
    "microsoft/phi-4": dense("phi3", 40, 5120, 40, 10, 17920, 100352, 16384, sliding_window=None),
    "openai/gpt-oss-20b": dense(
        "gpt_oss", 24, 2880, 64, 8, 2880, 201088, 131072, head_dim=64, sliding_window=128,
        num_local_experts=32, num_experts_per_tok=4, quantization_config={"quant_method": "mxfp4"},
        layer_types=["sliding_attention", "full_attention"] * 12,
    ),
    "openai/gpt-oss-120b": dense(
        "gpt_oss", 36, 2880, 64, 8, 2880, 201088, 131072, head_dim=64, sliding_window=128,
        num_local_experts=128, num_experts_per_tok=4, quantization_config={"quant_method": "mxfp4"},
        layer_types=["sliding_attention", "full_attention"] * 18,
    ),
    "deepseek-ai/DeepSeek-V2-Lite": _deepseek("deepseek_v2", 27, 2048, 16, 163840, vocab_size=102400),
    "deepseek-ai/DeepSeek-V3": _deepseek(
        "deepseek_v3", 61, 7168, 128, 163840, n_routed_experts=256, num_experts_per_tok=8,
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
    "moonshotai/Kimi-K2-Instruct": _deepseek(
        "kimi_k2", 61, 7168, 64, 131072, vocab_size=163840, n_routed_experts=384, num_experts_per_tok=8,
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
    "tiiuae/falcon-7b": {
        "model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71,
        "multi_query": True, "vocab_size": 65024, "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
    },
    "tiiuae/falcon-40b": {
        "model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192, "num_attention_heads": 128,
        "num_kv_heads": 8, "new_decoder_architecture": True, "multi_query": True, "vocab_size": 65024,
        "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
    },
    "databricks/dbrx-instruct": {
        "model_type": "dbrx", "n_layers": 40, "d_model": 6144, "n_heads": 48, "max_seq_len": 32768,
        "vocab_size": 100352, "torch_dtype": "bfloat16", "attn_config": {"kv_n_heads": 8},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    },
    "LGAI-EXAONE/EXAONE-4.0-32B": dense(
        "exaone4", 64, 5120, 40, 8, 27392, 102400, 131072, head_dim=128, sliding_window=4096,
        sliding_window_pattern="LLLG",
    ),
    "meituan-longcat/LongCat-Flash-Chat": {
        "model_type": "longcat_flash", "num_layers": 28, "hidden_size": 6144, "num_attention_heads": 64,
        "ffn_hidden_size": 12288, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "vocab_size": 131072,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "n_routed_experts": 512,
    },
    "bigcode/starcoder2-15b": dense("starcoder2", 40, 6144, 48, 4, 24576, 49152, 16384, sliding_window=4096),
    "openai-community/gpt2": {
        "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
    },
    "ibm-granite/granite-3.1-8b-instruct": dense("granite", 40, 4096, 32, 8, 12800, 49155, 131072),
    "allenai/OLMo-2-1124-7B": dense("olmo2", 32, 4096, 32, 32, 11008, 100352, 4096),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": dense("llama", 24, 2048, 32, 32, 8192, 49152, 8192),
    "BAAI/bge-large-en-v1.5": {
        "model_type": "bert", "num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16,
        "intermediate_size": 4096, "vocab_size": 30522, "max_position_embeddings": 512, "torch_dtype": "float32",
    },
    "state-spaces/mamba2-2.7b": {
        "model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64, "num_heads": 80, "head_dim": 64,
        "state_size": 128, "n_groups": 1, "conv_kernel": 4, "vocab_size": 50288,
    },
}  # fmt: skip
