"""Which models vLLM caches prefixes for, and how it can draft tokens."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpufleet.domain import catalogue
from serving.sizing import families
from serving.sizing.decoding import Drafter, prefix_caching, speculation
from serving.sizing.fit import Fit, FitRequest, fit
from serving.sizing.memory import CacheShape, layout
from serving.sizing.model import SizingError
from tests.fixtures.model_shapes import BERT, DEEPSEEK_V3, LLAMA_8B, MAMBA2_27B, weights

DRAFTING_V3 = {**DEEPSEEK_V3, "num_nextn_predict_layers": 1}


@pytest.mark.parametrize(
    ("config", "prefixes", "method", "tokens"),
    [
        pytest.param(LLAMA_8B, True, Drafter.NGRAM, 4, id="a decoder"),
        pytest.param(DRAFTING_V3, True, Drafter.MTP, 1, id="draft layers of its own"),
        pytest.param(DEEPSEEK_V3, True, Drafter.NGRAM, 4, id="the same family without them"),
        pytest.param({**LLAMA_8B, "num_nextn_predict_layers": 1}, True, Drafter.NGRAM, 4, id="a family without"),
        pytest.param(MAMBA2_27B, False, None, 0, id="states alone"),
        pytest.param(BERT, False, None, 0, id="an encoder"),
    ],
)
def test_which_decoding_features_vllm_supports_for_a_model(
    config: Any, prefixes: bool, method: Drafter | None, tokens: int
) -> None:
    model = families.read(config)
    assert prefix_caching(model).on is prefixes
    found = speculation(model)
    assert (found.method, found.tokens) == (method, tokens)
    assert found.reason
    text = found.config()
    assert (text is None) is (method is None)
    if text is not None:
        assert json.loads(text) | {"method": method, "num_speculative_tokens": tokens} == json.loads(text)


def _sized(config: Any, **request: Any) -> Fit:
    gpu = replace(catalogue.gpu("H200-141GB"), memory_mib=4_000_000)
    return fit(families.read(config), weights(15), gpu, FitRequest(context=512, **request))


def test_speculation_arguments_are_given_only_on_request() -> None:
    assert "--speculative-config" not in _sized(LLAMA_8B).options.arguments()
    arguments = _sized(LLAMA_8B, speculate=True).options.arguments()
    assert json.loads(arguments[arguments.index("--speculative-config") + 1])["method"] == "ngram"
    states = _sized(MAMBA2_27B, speculate=True)
    assert "--speculative-config" not in states.options.arguments()
    assert any("no speculative decoding" in note for note in states.notes)


def test_draft_layers_cache_their_own_keys_and_values() -> None:
    plain, drafts = _sized(DRAFTING_V3), _sized(DRAFTING_V3, speculate=True)
    assert plain.kv_layout == layout(families.read(DEEPSEEK_V3), CacheShape(max_model_len=512))
    one_more = families.read({**DEEPSEEK_V3, "num_hidden_layers": 62})
    assert drafts.kv_layout == layout(one_more, CacheShape(max_model_len=512))
    assert plain.concurrency is not None
    assert drafts.concurrency is not None
    assert drafts.concurrency < plain.concurrency


@pytest.mark.parametrize("count", [-1, 1.5, True, "1", 10**9], ids=str)
def test_an_invalid_number_of_draft_layers_is_refused(count: object) -> None:
    with pytest.raises(SizingError, match="num_nextn_predict_layers"):
        families.read({**DEEPSEEK_V3, "num_nextn_predict_layers": count})
