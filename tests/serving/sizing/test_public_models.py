"""Sizing of public configurations: bytes per token by formula, and known facts about required GPUs."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.domain import catalogue
from serving.sizing import families
from serving.sizing.fit import GIB, FitRequest, smallest_fit
from serving.sizing.memory import CacheShape, layout
from serving.sizing.model import Attention, LatentAttention, SizingError, StateLayer, Weights
from tests.fixtures.public_models import CONFIGS

KIB = 1024
BYTES_PER_TOKEN = {
    # layers × (keys + values) × key heads × head size × 2 bytes, calculated by hand
    "meta-llama/Llama-2-7b-hf": 512 * KIB,
    "meta-llama/Llama-2-70b-hf": 320 * KIB,
    "meta-llama/Llama-3.1-8B-Instruct": 128 * KIB,
    "meta-llama/Llama-3.1-70B-Instruct": 320 * KIB,
    "meta-llama/Llama-3.1-405B-Instruct": 504 * KIB,
    "meta-llama/Llama-3.2-1B": 32 * KIB,
    "meta-llama/Llama-3.2-3B": 112 * KIB,
    "mistralai/Mistral-7B-v0.1": 128 * KIB,
    "mistralai/Mistral-7B-Instruct-v0.3": 128 * KIB,
    "mistralai/Mistral-Nemo-Instruct-2407": 160 * KIB,
    "mistralai/Mistral-Small-24B-Instruct-2501": 160 * KIB,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 128 * KIB,
    "Qwen/Qwen2.5-0.5B-Instruct": 12 * KIB,
    "Qwen/Qwen2.5-1.5B-Instruct": 28 * KIB,
    "Qwen/Qwen2.5-3B-Instruct": 36 * KIB,
    "Qwen/Qwen2.5-7B-Instruct": 56 * KIB,
    "Qwen/Qwen2.5-14B-Instruct": 192 * KIB,
    "Qwen/Qwen2.5-32B-Instruct": 256 * KIB,
    "Qwen/Qwen2.5-72B-Instruct": 320 * KIB,
    "Qwen/Qwen3-8B": 144 * KIB,
    "Qwen/Qwen3-14B": 160 * KIB,
    "Qwen/Qwen3-32B": 256 * KIB,
    "Qwen/Qwen3-30B-A3B": 96 * KIB,
    "Qwen/Qwen3-235B-A22B-FP8": 188 * KIB,
    "google/gemma-2-9b-it": 336 * KIB,
    "google/gemma-3-4b-it": 136 * KIB,
    "google/gemma-3-27b-it": 496 * KIB,
    "llava-hf/llava-1.5-7b-hf": 512 * KIB,
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": 160 * KIB,
    "Qwen/Qwen2-VL-7B-Instruct": 56 * KIB,
    "Qwen/Qwen2.5-VL-72B-Instruct": 320 * KIB,
    "Qwen/Qwen3-VL-8B-Instruct": 144 * KIB,
    "microsoft/Phi-3-mini-4k-instruct": 384 * KIB,
    "microsoft/phi-4": 200 * KIB,
    "openai/gpt-oss-20b": 48 * KIB,
    "openai/gpt-oss-120b": 72 * KIB,
    # one latent of 512 + 64 numbers per layer
    "deepseek-ai/DeepSeek-V2-Lite": 27 * 576 * 2,
    "deepseek-ai/DeepSeek-V3": 70_272,
    "moonshotai/Kimi-K2-Instruct": 70_272,
    "tiiuae/falcon-7b": 8 * KIB,
    "tiiuae/falcon-40b": 120 * KIB,
    "databricks/dbrx-instruct": 160 * KIB,
    "LGAI-EXAONE/EXAONE-4.0-32B": 256 * KIB,
    # 28 layers with two attention layers each
    "meituan-longcat/LongCat-Flash-Chat": 56 * 576 * 2,
    "bigcode/starcoder2-15b": 80 * KIB,
    "openai-community/gpt2": 36 * KIB,
    "ibm-granite/granite-3.1-8b-instruct": 160 * KIB,
    "allenai/OLMo-2-1124-7B": 512 * KIB,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 192 * KIB,
    # memory that does not grow with the tokens
    "BAAI/bge-large-en-v1.5": 0,
    "state-spaces/mamba2-2.7b": 0,
}


def test_every_configuration_has_an_expected_value() -> None:
    assert BYTES_PER_TOKEN.keys() == CONFIGS.keys()
    assert len(CONFIGS) >= 30


@pytest.mark.parametrize("name", CONFIGS)
def test_bytes_per_token_of_public_models(name: str) -> None:
    found = 0
    for layer in families.read(CONFIGS[name]).layers:
        match layer:
            case Attention():
                found += layer.page_bytes(block=1, kv_bytes=2, tp=1)
            case LatentAttention():
                found += layer.page_bytes(block=1, kv_bytes=2)
            case StateLayer():
                assert layer.bytes_per_sequence(1) > 0
    assert found == BYTES_PER_TOKEN[name]


@pytest.mark.parametrize(
    ("name", "gib", "tp", "logged"),
    [
        # available memory and tokens in logs of vLLM: its issues 10517 and 21348, issue 1739 of LMCache, notes on one
        # A100 40 GB and on a desktop GPU. The log rounds the memory to 0.01 GiB
        pytest.param("meta-llama/Llama-3.1-8B-Instruct", 3.81, 1, 31_232, id="Llama-3.1-8B, RTX 3090"),
        pytest.param("meta-llama/Llama-3.1-8B-Instruct", 2.89, 1, 23_648, id="Llama-3.1-8B, longer context"),
        pytest.param("meta-llama/Llama-3.1-8B-Instruct", 19.92, 1, 163_168, id="Llama-3.1-8B, A100 40 GB"),
        pytest.param("Qwen/Qwen2.5-1.5B-Instruct", 0.56, 1, 20_992, id="Qwen2.5-1.5B"),
        pytest.param("Qwen/Qwen3-14B", 6.51, 1, 42_656, id="Qwen3-14B"),
        pytest.param("Qwen/Qwen3-235B-A22B-FP8", 8.11, 4, 178_880, id="Qwen3-235B-A22B-FP8 on 4 H100"),
    ],
)
def test_tokens_are_those_that_vllm_logged(name: str, gib: float, tp: int, logged: int) -> None:
    plan = layout(families.read(CONFIGS[name]), CacheShape(max_model_len=8192, tp=tp))
    assert plan is not None
    assert plan.tokens(int(gib * GIB)) == pytest.approx(logged, rel=0.0115)


@pytest.mark.parametrize("name", CONFIGS)
def test_request_memory_grows_with_length_and_two_gpus_at_most_halve_it(name: str) -> None:
    model = families.read(CONFIGS[name])
    if model.has_no_cache:
        return
    sizes: list[int] = []
    for context in (256, 1024):
        for tp in (2, 1):
            plan = layout(model, CacheShape(max_model_len=context, tp=tp, batched_tokens=512))
            assert plan is not None
            sizes.append(plan.blocks_per_request * plan.bytes_per_block)
    short_two, short_one, long_two, long_one = sizes
    assert short_one <= long_one
    assert short_two <= long_two
    assert short_one <= 2 * short_two
    assert long_one <= 2 * long_two


@pytest.mark.parametrize(
    ("name", "gib", "gpu", "gpus"),
    [
        # published size of the safetensors files, and the fewest GPUs of a machine that serves 8,192 tokens
        # (or the model's maximum); the ids give statements of model cards and vLLM's recipes
        pytest.param("meta-llama/Llama-3.1-8B-Instruct", 14.96, "L4", 1, id="8B on one L4"),
        pytest.param("meta-llama/Llama-3.1-8B-Instruct", 14.96, "T4", 2, id="8B on two T4"),
        pytest.param("Qwen/Qwen2.5-0.5B-Instruct", 0.92, "T4", 1, id="0.5B on one T4"),
        pytest.param("Qwen/Qwen2.5-7B-Instruct", 14.19, "A10G", 1, id="7B on one A10G"),
        pytest.param("microsoft/phi-4", 27.31, "L40S", 1, id="14B on one L40S"),
        pytest.param("mistralai/Mistral-Small-24B-Instruct-2501", 43.91, "A100-80GB", 1, id="24B on one A100 80 GB"),
        pytest.param("mistralai/Mistral-Small-24B-Instruct-2501", 43.91, "L40S", 2, id="24B on two L40S"),
        pytest.param("Qwen/Qwen3-32B", 61.02, "H100-80GB", 1, id="32B on one H100"),
        pytest.param("Qwen/Qwen3-32B", 61.02, "L4", 4, id="32B on four L4"),
        pytest.param("mistralai/Mixtral-8x7B-Instruct-v0.1", 86.99, "H100-80GB", 2, id="8x7B on two H100"),
        pytest.param("meta-llama/Llama-3.1-70B-Instruct", 131.42, "H100-80GB", 2, id="70B on two H100"),
        pytest.param("meta-llama/Llama-3.1-70B-Instruct", 131.42, "A10G", 8, id="70B on eight A10G"),
        pytest.param("meta-llama/Llama-3.1-405B-Instruct", 755.96, "H100-80GB", None, id="405B not on eight H100"),
        pytest.param("meta-llama/Llama-3.1-405B-Instruct", 755.96, "H200-141GB", 8, id="405B on eight H200"),
        pytest.param(
            "openai/gpt-oss-120b", 60.77, "H100-80GB", 1, id="gpt-oss-120b on one 80 GB GPU: its model card"
        ),
        pytest.param("openai/gpt-oss-20b", 12.82, "L4", 1, id="gpt-oss-20b on one L4"),
        pytest.param("Qwen/Qwen3-235B-A22B-FP8", 220.2, "H100-80GB", 4, id="235B in FP8 on four H100"),
        pytest.param("Qwen/Qwen3-235B-A22B-FP8", 220.2, "A100-80GB", None, id="no FP8 on A100"),
        pytest.param("deepseek-ai/DeepSeek-V3", 641.3, "H100-80GB", None, id="V3 not on eight H100"),
        pytest.param("deepseek-ai/DeepSeek-V3", 641.3, "H200-141GB", 8, id="V3 on eight H200: its model card"),
        pytest.param("tiiuae/falcon-7b", 13.45, "L4", 1, id="71 heads: one GPU"),
        pytest.param("BAAI/bge-large-en-v1.5", 1.25, "T4", 1, id="an encoder"),
        pytest.param("state-spaces/mamba2-2.7b", 5.04, "L4", 1, id="states"),
    ],
)
def test_the_fewest_gpus_that_serve_a_public_model(name: str, gib: float, gpu: str, gpus: int | None) -> None:
    model = families.read(CONFIGS[name])
    size = int(gib * GIB)
    heavy = Weights(split=size, copied=0, key_value=0, ends=0, quantizable=size, parameters=size // 2)
    request = FitRequest(context=min(8192, model.max_context))
    answer = smallest_fit(model, heavy, catalogue.gpu(gpu), 8, request)
    assert (answer.split.gpus if answer.fits else None) == gpus, answer.reason
    if not answer.fits:
        assert "too little" in answer.reason or "no FP8" in answer.reason


def test_a_default_next_to_the_multi_query_switch_has_no_effect() -> None:
    falcon = CONFIGS["tiiuae/falcon-7b"]
    assert families.read({**falcon, "num_kv_heads": 71}) == families.read(falcon)


def test_a_text_pattern_of_local_layers_is_read() -> None:
    layers = families.read(CONFIGS["LGAI-EXAONE/EXAONE-4.0-32B"]).layers
    windows = [layer.window for layer in layers if isinstance(layer, Attention)]
    assert windows == [4096, 4096, 4096, None] * 16


def test_five_of_six_layers_of_gemma_3_use_sliding_windows_by_default() -> None:
    windows = [getattr(layer, "window", 0) for layer in families.read(CONFIGS["google/gemma-3-4b-it"]).layers]
    assert windows == ([1024] * 5 + [None]) * 5 + [1024] * 4


@pytest.mark.parametrize("name", CONFIGS)
def test_a_note_lists_parts_of_multimodal_models_that_are_not_estimated(name: str) -> None:
    sees = "vision_config" in CONFIGS[name]
    model = families.read(CONFIGS[name])
    assert model.multimodal is sees
    heavy = Weights(split=GIB, copied=0, key_value=0, ends=0, quantizable=GIB, parameters=GIB // 2)
    answer = smallest_fit(model, heavy, catalogue.gpu("H200-141GB"), 1, FitRequest(context=512))
    assert any("--language-model-only" in note for note in answer.notes) is sees


_JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.just(10**30), st.floats(), st.text(max_size=5),
    st.lists(st.sampled_from([1, "full_attention", None]), max_size=3),
    st.dictionaries(st.sampled_from(["a", "model_type", "kv_n_heads"]), st.integers(), max_size=2),
)  # fmt: skip
_PATTERNS = (
    "layer_types", "sliding_window", "attention_chunk_size", "sliding_window_pattern", "quantization_config",
    "head_dim", "v_head_dim", "max_window_layers", "index_head_dim", "multi_query", "attn_config", "ffn_config",
)  # fmt: skip


@settings(max_examples=50)
@given(data=st.data(), name=st.sampled_from(sorted(CONFIGS)))
def test_a_config_with_random_values_is_read_or_refused_with_a_message(data: st.DataObject, name: str) -> None:
    config = dict(CONFIGS[name])
    changed = st.sampled_from(sorted({*config, *_PATTERNS, "text_config"}))
    config |= data.draw(st.dictionaries(changed, _JUNK, min_size=1, max_size=3))
    with contextlib.suppress(SizingError):
        families.read(config)


def test_uneven_heads_use_pipeline_stages() -> None:
    """28 heads on 8 GPUs: four GPUs share each layer, in two pipeline stages."""
    model = families.read(CONFIGS["Qwen/Qwen2.5-7B-Instruct"])
    size = 60 * GIB
    heavy = Weights(split=size, copied=0, key_value=0, ends=0, quantizable=size, parameters=size // 2)
    answer = smallest_fit(model, heavy, catalogue.gpu("T4"), 8, FitRequest(context=1024))
    assert (answer.split.tp, answer.split.pp) == (4, 2)
    assert "--pipeline-parallel-size" in answer.options.arguments()
