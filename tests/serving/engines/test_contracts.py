"""Checks of all engine contracts: they are consistent, and they read the pages of real engines."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from serving import metrics
from serving.engines import CONTRACTS, EngineKind
from serving.engines.contract import Contract, EngineEvidenceRule, EngineSeries, Version, faults, versions
from serving.engines.reading import read, relabelling, unknown
from serving.exposition import parse
from serving.metrics import Metric

PAGES: Final = Path("tests/recorded/engines")
HOUR: Final = timedelta(hours=1)


def page(name: str) -> str:
    return (PAGES / f"{name}.prom").read_text()


def every() -> list[object]:
    return [pytest.param(contract, id=contract.kind) for contract in CONTRACTS.values()]


@pytest.mark.parametrize("contract", every())
def test_a_contract_claims_only_what_its_numbers_support(contract: Contract) -> None:
    assert faults(contract) == []


def test_every_engine_has_a_contract() -> None:
    assert set(CONTRACTS) == set(EngineKind)


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
        pytest.param(
            (AT_END,), (), (metrics.GENERATION_TOKENS,), "add the number of connections", id="counter at end"
        ),
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
    wrong = replace(CONTRACTS[EngineKind.VLLM], series=series, evidence=evidence)
    assert any(fault in one for one in faults(wrong))


RUNNING, WAITING, LIVE = metrics.REQUESTS_RUNNING, metrics.REQUESTS_WAITING, metrics.LIVE_TOKENS


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        pytest.param(
            "sglang-0.5.23-cpu",
            EngineKind.SGLANG,
            {RUNNING: 0, WAITING: 0, LIVE: 1367, metrics.PROMPT_TOKENS: 109, metrics.GENERATION_TOKENS: 1268,
             metrics.OPEN_REQUESTS: 0, metrics.REQUEST_SUCCESS: 10},
            id="SGLang idle",
        ),
        pytest.param(
            "sglang-0.5.23-cpu-busy",
            EngineKind.SGLANG,
            {RUNNING: 6, WAITING: 0, metrics.OPEN_REQUESTS: 6, LIVE: 675, metrics.GENERATION_TOKENS: 68},
            id="SGLang busy: its token counter lags far behind its live one",
        ),
        pytest.param(
            "sglang-0.5.23-cpu-queued",
            EngineKind.SGLANG,
            {RUNNING: 20, WAITING: 40, metrics.OPEN_REQUESTS: 60},
            id="SGLang with a queue",
        ),
        pytest.param(
            "triton-2.51.0-busy",
            EngineKind.TRITON,
            {metrics.OPEN_REQUESTS: 2, metrics.WORK_STEPS: 3},
            id="Triton busy, without the TensorRT-LLM backend",
        ),
    ],
)  # fmt: skip
def test_pages_of_real_engines_are_read(name: str, kind: EngineKind, expected: dict[Metric, float]) -> None:
    version = Version(0, 5, 23) if kind is EngineKind.SGLANG else Version(2, 51, 0)
    found = read(CONTRACTS[kind], version, parse(page(name)))
    assert {metric: found.values[metric] for metric in expected} == expected
    assert found.missing == ()


def test_triton_without_a_language_model_has_no_tokens_instead_of_zero() -> None:
    found = read(CONTRACTS[EngineKind.TRITON], Version(2, 51, 0), parse(page("triton-2.51.0")))
    assert metrics.GENERATION_TOKENS not in found.values
    assert found.without_tokens == ("nv_llm_input_token_len_sum", "nv_llm_output_token_len_sum")


def test_ranks_that_repeat_the_first_one_are_not_added() -> None:
    text = "".join(f'sglang:num_running_reqs{{tp_rank="{rank}",dp_rank="{rank // 2}"}} 3\n' for rank in (0, 1))
    text += 'sglang:num_running_reqs{tp_rank="0",dp_rank="1"} 4\n'
    found = read(CONTRACTS[EngineKind.SGLANG], Version(0, 5, 23), parse(text))
    assert found.values[RUNNING] == 7


def test_a_total_without_one_of_its_parts_is_missing() -> None:
    text = "lmdeploy:num_requests_waiting 2\n"
    found = read(CONTRACTS[EngineKind.LMDEPLOY], Version(0, 16), parse(text))
    assert WAITING not in found.values
    assert "lmdeploy:num_api_requests_waiting" in found.missing


@pytest.mark.parametrize(
    ("kind", "version", "missing", "window", "expected"),
    [
        pytest.param(EngineKind.SGLANG, "0.5.23", (), HOUR, None, id="known"),
        pytest.param(EngineKind.SGLANG, "v0.5.23.post1+cu129", (), HOUR, None, id="suffixes"),
        pytest.param(None, "1.0", (), HOUR, "its engine is not known", id="engine"),
        pytest.param(EngineKind.SGLANG, None, (), HOUR, "the release of SGLang is not known", id="no release"),
        pytest.param(EngineKind.SGLANG, "main", (), HOUR, "expected numbers such as 0.32.0, got 'main'", id="text"),
        pytest.param(EngineKind.SGLANG, "9.0.0", (), HOUR, "SGLang 9.0.0: the contract covers", id="new release"),
        pytest.param(
            EngineKind.SGLANG, "0.5.23", ("sglang:x",), HOUR, "SGLang 0.5.23 does not report sglang:x", id="name"
        ),
        pytest.param(
            EngineKind.SGLANG,
            "0.5.23",
            (),
            timedelta(seconds=20),
            "over 60 s or more, the window is 20 s",
            id="window",
        ),
        pytest.param(EngineKind.OLLAMA, "0.12.0", (), HOUR, "Ollama reports no metrics", id="no page"),
    ],
)
def test_numbers_without_a_contract_are_unknown(
    kind: EngineKind | None, version: str | None, missing: tuple[str, ...], window: timedelta, expected: str | None
) -> None:
    found = unknown(None if kind is None else CONTRACTS[kind], version, missing, window)
    assert found == expected or (expected is not None and found is not None and expected in found)


@pytest.mark.parametrize("text", ["", "latest", "1", "x1.2", "1.2.99999999999999999999"])
def test_texts_that_are_not_versions_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="engine version: expected numbers"):
        Version.parse(text)


def test_a_range_includes_its_start_and_excludes_its_end() -> None:
    found = versions("0.5.8", "0.5.24")
    assert Version(0, 5, 8) in found
    assert Version(0, 5, 24) not in found
    assert str(found) == "0.5.8 or later, before 0.5.24"


def test_series_with_one_canonical_name_get_different_labels() -> None:
    rules = relabelling([CONTRACTS[EngineKind.LMDEPLOY]])
    parts = [rule["replacement"] for rule in rules if rule["target_label"] == "part"]
    assert sorted(parts) == ["lmdeploy:num_api_requests_waiting", "lmdeploy:num_requests_waiting"]
