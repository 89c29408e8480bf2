"""Checks of all engine contracts: they are consistent, and they read the pages of real engines."""

import re
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from serving import metrics
from serving.engines import CONTRACTS
from serving.engines.contract import Contract, EngineEvidenceRule, EngineSeries, faults
from serving.engines.reading import read, relabelling, unknown
from serving.exposition import parse
from serving.metrics import Metric
from serving.releases import Version, versions
from tests.fixtures.relabelling import relabelled

PAGES: Final = Path("tests/recorded/engines")
HOUR: Final = timedelta(hours=1)


def page(name: str) -> str:
    return (PAGES / f"{name}.prom").read_text()


def every() -> list[object]:
    return [pytest.param(contract, id=contract.kind) for contract in CONTRACTS.values()]


@pytest.mark.parametrize("contract", every())
def test_a_contract_claims_only_what_its_numbers_support(contract: Contract) -> None:
    assert faults(contract) == []


def test_each_contract_has_the_name_of_its_module() -> None:
    assert {"vllm", "sglang", "trtllm", "triton", "lmdeploy", "dynamo", "tgi", "ollama"} <= set(CONTRACTS)
    for kind, contract in CONTRACTS.items():
        assert import_module(f"serving.engines.{kind}").CONTRACT is contract


@pytest.mark.parametrize(
    ("version", "covered", "release"),
    [
        pytest.param("0.32.0", True, "0.32.0", id="tested"),
        pytest.param("9.0", False, "newest", id="newer"),
        pytest.param("nightly", False, "newest", id="not a version"),
        pytest.param(None, False, "newest", id="unknown"),
    ],
)
def test_a_page_of_a_release_without_a_contract_is_read_as_the_newest(
    version: str | None, covered: bool, release: str
) -> None:
    contract = CONTRACTS["vllm"]
    assert contract.covers(version) is covered
    assert str(contract.release(version)) == (str(contract.newest) if release == "newest" else release)


@pytest.mark.parametrize("contract", every())
def test_a_contract_names_its_sources(contract: Contract) -> None:
    assert contract.sources
    assert all(len(source) > 10 for source in contract.sources)


AT_END: Final = EngineSeries(name="x_tokens_total", measures=metrics.GENERATION_TOKENS, zero_while_busy=True)
KEPT: Final = EngineSeries(name="x_running", measures=metrics.REQUESTS_RUNNING, kept_at_rest=True)
SLOW: Final = EngineSeries(name="x_running", measures=metrics.REQUESTS_RUNNING, lag=timedelta(seconds=30))


@pytest.mark.parametrize(
    ("series", "work", "idle", "fault"),
    [
        pytest.param((AT_END,), (), (metrics.GENERATION_TOKENS,), "add the numbers of the gate", id="counter at end"),
        pytest.param(
            (KEPT,), (metrics.REQUESTS_RUNNING,), (metrics.REQUESTS_RUNNING,), "above 0 at rest", id="stale"
        ),
        pytest.param((SLOW,), (), (metrics.REQUESTS_RUNNING,), "shorter than the lag", id="window"),
        pytest.param((SLOW,), (metrics.LIVE_TOKENS,), (metrics.REQUESTS_RUNNING,), "no series", id="no such number"),
    ],
)
def test_a_contract_that_claims_too_much_is_found(
    series: tuple[EngineSeries, ...], work: tuple[Metric, ...], idle: tuple[Metric, ...], fault: str
) -> None:
    evidence = EngineEvidenceRule(work=work, idle=idle)
    wrong = replace(CONTRACTS["vllm"], series=series, evidence=evidence)
    assert any(fault in one for one in faults(wrong))


RUNNING, WAITING, LIVE = metrics.REQUESTS_RUNNING, metrics.REQUESTS_WAITING, metrics.LIVE_TOKENS


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        pytest.param(
            "sglang-0.5.23-cpu",
            "sglang",
            {RUNNING: 0, WAITING: 0, LIVE: 1367, metrics.PROMPT_TOKENS: 109, metrics.GENERATION_TOKENS: 1268,
             metrics.OPEN_REQUESTS: 0, metrics.REQUEST_SUCCESS: 10},
            id="SGLang idle",
        ),
        pytest.param(
            "sglang-0.5.23-cpu-busy",
            "sglang",
            {RUNNING: 6, WAITING: 0, metrics.OPEN_REQUESTS: 6, LIVE: 675, metrics.GENERATION_TOKENS: 68},
            id="SGLang busy: its token counter lags far behind its live one",
        ),
        pytest.param(
            "sglang-0.5.23-cpu-queued",
            "sglang",
            {RUNNING: 20, WAITING: 40, metrics.OPEN_REQUESTS: 60},
            id="SGLang with a queue",
        ),
        pytest.param(
            "triton-2.51.0-busy",
            "triton",
            {metrics.OPEN_REQUESTS: 2, metrics.WORK_STEPS: 3},
            id="Triton busy, without the TensorRT-LLM backend",
        ),
    ],
)  # fmt: skip
def test_pages_of_real_engines_are_read(name: str, kind: str, expected: dict[Metric, float]) -> None:
    version = Version(0, 5, 23) if kind == "sglang" else Version(2, 51, 0)
    found = read(CONTRACTS[kind], version, parse(page(name)))
    assert {metric: found.values[metric] for metric in expected} == expected
    assert found.missing == ()


def test_triton_without_a_language_model_has_no_tokens_instead_of_zero() -> None:
    found = read(CONTRACTS["triton"], Version(2, 51, 0), parse(page("triton-2.51.0")))
    assert metrics.GENERATION_TOKENS not in found.values
    assert found.without_tokens == ("nv_llm_input_token_len_sum", "nv_llm_output_token_len_sum")


def test_ranks_that_repeat_the_first_one_are_not_added() -> None:
    text = "".join(f'sglang:num_running_reqs{{tp_rank="{rank}",dp_rank="{rank // 2}"}} 3\n' for rank in (0, 1))
    text += 'sglang:num_running_reqs{tp_rank="0",dp_rank="1"} 4\n'
    found = read(CONTRACTS["sglang"], Version(0, 5, 23), parse(text))
    assert found.values[RUNNING] == 7


ATTENTION_COPIES = "".join(
    f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}",moe_ep_rank="{tp}",pp_rank="0"}} {value}\n'
    f'sglang:realtime_tokens_total{{dp_rank="{dp}",tp_rank="{tp}",moe_ep_rank="{tp}",pp_rank="0",mode="decode"}} 9\n'
    for dp, tp, value in ((0, 0, 0), (1, 2, 3))
)
"""SGLang with `--enable-dp-attention --tp-size 4 --ep-size 4 --dp-size 2`: the second copy has the only requests."""


def test_copies_of_the_attention_layers_are_added() -> None:
    values = read(CONTRACTS["sglang"], Version(0, 5, 23), parse(ATTENTION_COPIES)).values
    assert (values[RUNNING], values[metrics.LIVE_TOKENS]) == (3, 18)
    scraped = list(relabelled(ATTENTION_COPIES, relabelling([CONTRACTS["sglang"]])))
    assert {sample.name for sample in scraped} == {RUNNING.name, metrics.LIVE_TOKENS.name}


@pytest.mark.parametrize("name", ["sglang-0.5.23-cpu", "sglang-0.5.23-cpu-busy", "sglang-0.5.23-cpu-queued"])
def test_a_page_with_underscores_for_colons_gets_the_same_canonical_names(name: str) -> None:
    """Prometheus asks for OpenMetrics. prometheus_client 0.22 and later then escape the colons of names."""
    rules = relabelling(CONTRACTS.values())
    escaped = re.sub(r"^sglang:(\w+)", r"sglang_\1", page(name), flags=re.MULTILINE)
    assert "sglang:" not in "".join(sample.name for sample in parse(escaped))
    canonical = [one for one in relabelled(page(name), rules) if one.name.startswith("gpufleet_")]
    assert len({one.name for one in canonical}) > 10
    assert [one for one in relabelled(escaped, rules) if one.name.startswith("gpufleet_")] == canonical


@pytest.mark.parametrize("endpoint", ["/generate", "/v1/chat/completions", "/v1/messages", "/v1/score", "/v1/rerank"])
def test_open_requests_of_all_pages_of_the_router_are_work(endpoint: str) -> None:
    text = f'sglang:http_requests_active{{endpoint="{endpoint}",method="POST"}} 1\n'
    text += 'sglang:http_requests_active{endpoint="/metrics",method="GET"} 1\n'
    assert read(CONTRACTS["sglang"], Version(0, 5, 23), parse(text)).values[metrics.OPEN_REQUESTS] == 1


def test_a_total_without_one_of_its_parts_is_missing() -> None:
    text = "lmdeploy:num_requests_waiting 2\n"
    found = read(CONTRACTS["lmdeploy"], Version(0, 16), parse(text))
    assert WAITING not in found.values
    assert "lmdeploy:num_api_requests_waiting" in found.missing


@pytest.mark.parametrize(
    ("kind", "version", "missing", "window", "expected"),
    [
        pytest.param("sglang", "0.5.23", (), HOUR, None, id="known"),
        pytest.param("sglang", "v0.5.23.post1+cu129", (), HOUR, None, id="suffixes"),
        pytest.param(None, "1.0", (), HOUR, "its engine is not known", id="engine"),
        pytest.param("sglang", None, (), HOUR, "the release of SGLang is not known", id="no release"),
        pytest.param("sglang", "main", (), HOUR, "expected numbers such as 0.32.0, got 'main'", id="text"),
        pytest.param("sglang", "9.0.0", (), HOUR, "SGLang 9.0.0: the contract covers", id="new release"),
        pytest.param("sglang", "0.5.23", ("sglang:x",), HOUR, "SGLang 0.5.23 does not report sglang:x", id="name"),
        pytest.param(
            "sglang",
            "0.5.23",
            (),
            timedelta(seconds=20),
            "over 60 s or more, the window is 20 s",
            id="window",
        ),
        pytest.param("ollama", "0.12.0", (), HOUR, "Ollama reports no metrics", id="no page"),
    ],
)
def test_numbers_without_a_contract_are_unknown(
    kind: str | None, version: str | None, missing: tuple[str, ...], window: timedelta, expected: str | None
) -> None:
    found = unknown(None if kind is None else CONTRACTS[kind], version, missing, window)
    assert found == expected or (expected is not None and found is not None and expected in found)


@pytest.mark.parametrize("text", ["", "latest", "1", "x1.2", "1.2.99999999999999999999"])
def test_texts_that_are_not_versions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="version: expected numbers"):
        Version.parse(text)


def test_a_range_includes_its_start_and_excludes_its_end() -> None:
    found = versions("0.5.8", "0.5.24")
    assert Version(0, 5, 8) in found
    assert Version(0, 5, 24) not in found
    assert str(found) == "0.5.8 or later, before 0.5.24"


def test_series_with_one_canonical_name_get_different_labels() -> None:
    rules = relabelling([CONTRACTS["lmdeploy"]])
    parts = [rule["replacement"] for rule in rules if rule["target_label"] == "part"]
    assert sorted(parts) == ["lmdeploy:num_api_requests_waiting", "lmdeploy:num_requests_waiting"]
