"""Sizing compared with vLLM's own logs, and with published configurations of every attention type."""

from typing import Any

import pytest

from gpufleet.domain import catalogue
from serving.sizing import families
from serving.sizing.fit import GIB, FitRequest, ParallelSplit, fit, refusal, smallest_fit
from serving.sizing.memory import CacheShape, layout
from serving.sizing.model import ModelShape, SizingError, weigh
from serving.weights import Tensor
from tests.fixtures.model_shapes import BERT, DEEPSEEK_V3, LLAMA_8B, MAMBA2_27B, weights

LLAMA_70B = {
    **LLAMA_8B,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
QWEN3_235B = {
    **LLAMA_8B,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "sliding_window": None,
    "quantization_config": {"quant_method": "fp8"},
}
GPT_OSS_120B = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
}
GEMMA3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
}
MISTRAL_7B_V01 = {**LLAMA_8B, "model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 32768}
QWEN25_7B = {
    **LLAMA_8B,
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "use_sliding_window": False,
}
FALCON_7B = {
    "model_type": "falcon",
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "multi_query": True,
    "vocab_size": 65024,
    "max_position_embeddings": 2048,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
LLAMA4_SCOUT = {
    "model_type": "llama4",
    "text_config": {
        **LLAMA_8B,
        "model_type": "llama4_text",
        "num_hidden_layers": 48,
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "head_dim": 128,
        "attention_chunk_size": 8192,
        "max_position_embeddings": 10485760,
    },
}


def tokens_of(config: dict[str, Any], gib: float, context: int, **changes: Any) -> int:
    shape = CacheShape(max_model_len=context, **changes)
    plan = layout(families.read(config), shape)
    assert plan is not None
    return plan.tokens(int(gib * GIB))


@pytest.mark.parametrize(
    ("config", "tp", "bytes_per_token"),
    [
        pytest.param(LLAMA_8B, 1, 131_072, id="grouped queries"),
        pytest.param(LLAMA_70B, 8, 40_960, id="one key head per GPU"),
        pytest.param(LLAMA_70B, 16, 40_960, id="more GPUs than key heads: copies"),
        pytest.param(DEEPSEEK_V3, 1, 70_272, id="latent"),
        pytest.param(DEEPSEEK_V3, 8, 70_272, id="latent: the same on every GPU"),
        pytest.param(QWEN25_7B, 1, 28 * 2 * 4 * 128 * 2, id="a window that is switched off"),
        pytest.param(FALCON_7B, 1, 32 * 2 * 1 * 64 * 2, id="one key head by a switch"),
        pytest.param(GPT2, 1, 12 * 2 * 12 * 64 * 2, id="old field names"),
    ],
)
def test_bytes_per_token(config: dict[str, Any], tp: int, bytes_per_token: int) -> None:
    plan = layout(families.read(config), CacheShape(max_model_len=1024, tp=tp))
    assert plan is not None
    assert plan.bytes_per_block / plan.block == bytes_per_token


def test_latent_attention_in_fp8_caches_656_bytes_per_layer() -> None:
    plan = layout(families.read(DEEPSEEK_V3), CacheShape(max_model_len=1024, kv_bytes=1))
    assert plan is not None
    assert plan.bytes_per_block / plan.block == 61 * 656


@pytest.mark.parametrize(
    ("config", "full_gib", "window_gib"),
    [
        # one request of 128 K tokens; values of the formulas, with in-flight tokens counted once
        pytest.param(GPT_OSS_120B, 4.5, 0.29, id="gpt-oss-120b, every other layer slides"),
        pytest.param(GEMMA3_27B, 10.0, 3.7, id="Gemma-3-27B, five of six layers slide"),
    ],
)
def test_sliding_layers_cache_only_their_window(config: dict[str, Any], full_gib: float, window_gib: float) -> None:
    shape = CacheShape(max_model_len=131_072, concurrent_batches=1)
    model = families.read(config)
    plan = layout(model, shape)
    assert plan is not None
    one_request = plan.blocks_per_request * plan.bytes_per_block / GIB
    naive = len(model.layers) * plan.bytes_per_block / plan.groups[0].layers * (131_072 / 16) / GIB
    # padding of the last group may add the share of one layer
    assert one_request == pytest.approx(full_gib + window_gib, rel=0.06)
    assert one_request < naive / 1.8


def test_a_model_with_only_sliding_windows_fits_more_requests() -> None:
    slides = tokens_of(MISTRAL_7B_V01, 4, 32_768, concurrent_batches=1, batched_tokens=2048)
    full = tokens_of({**MISTRAL_7B_V01, "sliding_window": None}, 4, 32_768)
    assert slides > 4 * full


def test_chunks_of_llama_4() -> None:
    model = families.read(LLAMA4_SCOUT)
    kinds = [getattr(layer, "chunk", None) for layer in model.layers]
    assert kinds[:4] == [8192, 8192, 8192, None]
    plan = layout(model, CacheShape(max_model_len=1_000_000))
    assert plan is not None
    assert len(plan.groups) == 4


def test_a_state_does_not_grow_with_the_context() -> None:
    model = families.read(MAMBA2_27B)
    plans = [layout(model, CacheShape(max_model_len=length)) for length in (1000, 100_000)]
    sizes = [plan.blocks_per_request * plan.bytes_per_block for plan in plans if plan is not None]
    # 64 layers: 80 heads × 64 × 128 in 32 bits and (5120 + 256) channels × 3 in 16
    assert sizes == [64 * (80 * 64 * 128 * 4 + (5120 + 256) * 3 * 2)] * 2


def test_an_encoder_has_no_cache() -> None:
    model = families.read(BERT)
    assert layout(model, CacheShape(max_model_len=512)) is None
    assert fit(model, weights(0.2), catalogue.gpu("T4"), FitRequest(context=512)).fits


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param({"hidden_size": 1}, "model_type", id="no family"),
        pytest.param({**LLAMA_8B, "model_type": "novel_attention"}, "novel_attention", id="an unknown family"),
        pytest.param({**LLAMA_8B, "num_hidden_layers": None}, "num_hidden_layers", id="a field is missing"),
        pytest.param({**LLAMA_8B, "num_attention_heads": "many"}, "num_attention_heads", id="a text"),
        pytest.param({**GPT_OSS_120B, "layer_types": ["wave_attention"] * 36}, "wave_attention", id="a layer type"),
        pytest.param({**GPT_OSS_120B, "layer_types": ["full_attention"]}, "1 layer types", id="too few layer types"),
        pytest.param({**LLAMA_8B, "num_hidden_layers": 10**12}, "10000000000", id="layers beyond all memory"),
        pytest.param({**LLAMA_8B, "num_key_value_heads": 0}, "key heads", id="no key heads"),
        pytest.param({**LLAMA_8B, "layer_types": 7}, "the wrong type", id="a number for a list"),
        pytest.param(
            {
                **LLAMA_8B,
                "model_type": "nemotron_h",
                "hybrid_override_pattern": "M*?",
                "mamba_num_heads": 8,
                "mamba_head_dim": 8,
                "ssm_state_size": 8,
            },
            "hybrid_override_pattern",
            id="a letter of the pattern",
        ),
        pytest.param(
            {**LLAMA_8B, "model_type": "nemotron_h", "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8},
            "hybrid_override_pattern",
            id="no pattern",
        ),
    ],
)
def test_unknown_or_invalid_model_configurations_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(SizingError, match=message):
        families.read(config)


def test_weights_are_exact_and_split_by_type() -> None:
    tensors = [
        Tensor(name="model.embed_tokens.weight", dtype="BF16", shape=(1000, 64), size=128_000),
        Tensor(name="model.layers.0.self_attn.q_proj.weight", dtype="BF16", shape=(64, 64), size=8192),
        Tensor(name="model.layers.0.self_attn.k_proj.weight", dtype="BF16", shape=(16, 64), size=2048),
        Tensor(name="model.layers.0.self_attn.v_proj.weight", dtype="BF16", shape=(16, 64), size=2048),
        Tensor(name="model.layers.0.input_layernorm.weight", dtype="BF16", shape=(64,), size=128),
        Tensor(name="model.layers.0.mlp.gate.weight", dtype="BF16", shape=(8, 64), size=1024),
    ]
    found = weigh(tensors)
    assert found.total == sum(tensor.size for tensor in tensors)
    assert found.parameters == found.total // 2
    assert found.per_gpu(tp=1, pp=1, kv_heads=2) == found.total
    # four GPUs, two key heads: keys and values are only halved
    assert found.per_gpu(tp=4, pp=1, kv_heads=2) == (128_000 + 8192) // 4 + 4096 // 2 + 128 + 1024


@pytest.mark.parametrize(
    "name",
    [
        "vision_tower.vision_model.encoder.layers.0.self_attn.k_proj.weight",
        "model.visual.blocks.0.attn.qkv.weight",
        "multi_modal_projector.linear_1.weight",
    ],
)
def test_encoders_of_images_are_counted_fully_on_every_gpu(name: str) -> None:
    text = [
        Tensor(name="language_model.model.embed_tokens.weight", dtype="BF16", shape=(1000, 64), size=128_000),
        Tensor(name="language_model.model.layers.0.self_attn.k_proj.weight", dtype="BF16", shape=(16, 64), size=2048),
    ]
    alone = weigh(text)
    found = weigh([*text, Tensor(name=name, dtype="BF16", shape=(64, 64), size=8192)])
    assert found.total == alone.total + 8192
    assert found.parameters == alone.parameters + 4096
    assert found.quantizable == alone.quantizable
    for tp, pp in ((1, 1), (4, 1), (2, 2)):
        assert found.per_gpu(tp=tp, pp=pp, kv_heads=2) == alone.per_gpu(tp=tp, pp=pp, kv_heads=2) + 8192


@pytest.mark.parametrize(
    ("config", "gib", "gpu", "wanted", "fits"),
    [
        pytest.param(LLAMA_8B, 14.96, "L4", FitRequest(context=8192), True, id="8B in 16 bits on an L4"),
        pytest.param(LLAMA_8B, 14.96, "L4", FitRequest(context=131_072), False, id="not with its whole context"),
        pytest.param(LLAMA_8B, 14.96, "T4", FitRequest(context=2048), False, id="not on 16 GB"),
        pytest.param(
            LLAMA_8B, 14.96, "H100-80GB", FitRequest(context=8192, concurrency=32), True, id="32 at once on an H100"
        ),
        pytest.param(LLAMA_70B, 131.4, "H100-80GB", FitRequest(context=8192), False, id="70B on one H100"),
        pytest.param(
            LLAMA_70B, 131.4, "H200-141GB", FitRequest(context=8192), False, id="70B in 16 bits on one H200"
        ),
        pytest.param(
            LLAMA_70B,
            131.4,
            "H200-141GB",
            FitRequest(context=8192, weights_fp8=True),
            True,
            id="70B in FP8 on one H200",
        ),
        pytest.param(
            LLAMA_8B, 14.96, "A100-80GB", FitRequest(context=8192, kv_fp8=True), False, id="no FP8 on an A100"
        ),
        pytest.param(
            QWEN3_235B, 221, "A100-80GB", FitRequest(context=8192), False, id="no FP8 checkpoint on an A100"
        ),
    ],
)
def test_models_fit_on_gpus_with_enough_memory(
    config: dict[str, Any], gib: float, gpu: str, wanted: FitRequest, fits: bool
) -> None:
    answer = fit(families.read(config), weights(gib), catalogue.gpu(gpu), wanted)
    assert answer.fits is fits, answer.reason
    assert answer.reason


def test_the_fewest_gpus_that_suffice() -> None:
    model, heavy = families.read(LLAMA_70B), weights(131.4)
    answer = smallest_fit(model, heavy, catalogue.gpu("H100-80GB"), 8, FitRequest(context=8192, concurrency=4))
    assert (answer.split.tp, answer.fits) == (4, True)
    assert "--tensor-parallel-size" in answer.options.arguments()
    alone = smallest_fit(model, heavy, catalogue.gpu("L4"), 1, FitRequest(context=8192))
    assert not alone.fits
    assert "too little" in alone.reason


def test_attention_heads_must_divide_evenly() -> None:
    answer = fit(
        families.read(QWEN25_7B),
        weights(15),
        catalogue.gpu("H100-80GB"),
        FitRequest(context=1024),
        ParallelSplit(tp=8),
    )
    assert not answer.fits
    assert "28 attention heads" in answer.reason


def test_a_t4_computes_in_fp16_with_a_note() -> None:
    model = families.read({**LLAMA_8B, "num_hidden_layers": 8})
    answer = fit(model, weights(4), catalogue.gpu("T4"), FitRequest(context=2048))
    assert answer.fits
    assert answer.options.dtype == "half"
    assert "no BF16" in answer.notes[0]


def test_a_context_above_the_models_maximum_is_refused() -> None:
    model: ModelShape = families.read(GPT2)
    with pytest.raises(SizingError, match="longer than the model's 1024"):
        fit(model, weights(0.5), catalogue.gpu("L4"), FitRequest(context=4096))


@pytest.mark.parametrize(
    ("gpu", "fp8", "fp16_tflops"),
    [
        # values that are often wrong: INT8 or sparse figures instead of dense FP8 or 16-bit ones
        pytest.param("A100-80GB", None, 312, id="A100 has no FP8; 624 is INT8"),
        pytest.param("L4", 242.5, 121, id="L4: 121 is not its FP8, 485 is sparse"),
        pytest.param("H100-80GB", 1979, 989.5, id="H100: 1,979 is not a 16-bit figure, 3,958 is sparse"),
        pytest.param("L40S", 733, 362.05, id="L40S: 1,466 is sparse"),
        pytest.param("A10G", None, 70, id="an A10G is not an A10 (125)"),
        pytest.param("T4", None, 65, id="T4"),
    ],
)
def test_gpu_speeds_do_not_repeat_common_errors(gpu: str, fp8: float | None, fp16_tflops: float) -> None:
    found = catalogue.gpu(gpu)
    assert (found.fp8_dense_tflops, found.fp16_dense_tflops) == (fp8, fp16_tflops)
    assert found.fp8 is (fp8 is not None)


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(catalogue.UnknownMachineError):
        catalogue.gpu("RTX-PRO-4500")


def of_library(method: str, **fields: Any) -> dict[str, Any]:
    return {**LLAMA_8B, "quantization_config": {"quant_method": method, **fields}}


def group(kind: str, bits: int) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind}}}}


@pytest.mark.parametrize(
    ("config", "gpu", "refused"),
    [
        pytest.param(of_library("compressed-tensors", **group("float", 8)), "A100-80GB", "no FP8", id="FP8, A100"),
        pytest.param(of_library("compressed-tensors", **group("float", 8)), "L4", None, id="FP8, L4"),
        pytest.param(of_library("compressed-tensors", **group("int", 8)), "A100-80GB", None, id="INT8, A100"),
        pytest.param(of_library("compressed-tensors", **group("int", 4)), "T4", None, id="INT4, T4"),
        pytest.param(of_library("compressed-tensors", **group("float", 4)), "A100-80GB", "nvfp4", id="FP4, A100"),
        pytest.param(of_library("modelopt", quant_algo="FP8"), "A100-80GB", "no FP8", id="ModelOpt FP8, A100"),
        pytest.param(
            of_library("modelopt", quant_algo="NVFP4"), "A100-80GB", "modelopt_fp4", id="ModelOpt FP4, A100"
        ),
        pytest.param(of_library("fp8"), "A100-40GB", "no FP8", id="plain FP8, A100"),
        pytest.param(of_library("awq", bits=4), "T4", None, id="AWQ, T4"),
    ],
)
def test_number_formats_of_quantization_libraries_are_read(
    config: dict[str, Any], gpu: str, refused: str | None
) -> None:
    reason = refusal(families.read(config), catalogue.gpu(gpu), FitRequest(context=1))
    assert reason is None if refused is None else refused in str(reason)


def test_refusals_name_the_gpu() -> None:
    model = families.read(QWEN3_235B)
    assert refusal(model, catalogue.gpu("H100-80GB"), FitRequest(context=1)) is None
    assert "A10G has no FP8" in str(refusal(model, catalogue.gpu("A10G"), FitRequest(context=1)))
