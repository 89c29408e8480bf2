"""What real engines reported in ten scripted runs, recorded once (tests/recorded/README.md)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.comparison import recording
from benchmarks.comparison.compare import violations
from benchmarks.comparison.player import Observation, release
from benchmarks.comparison.results import KINDS, check, compare, model, recorded
from serving import metrics
from serving.engines import CONTRACTS
from serving.engines.contract import Contract, EngineDrain, Refresh, StopMode
from serving.metrics import Metric

Observe = Callable[[str], list[Observation]]


def observed(kind: str) -> list[Observation]:
    return recording.read(recorded(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_pages_agree_with_the_contract(kind: str) -> None:
    observations = observed(kind)
    assert len({one.run for one in observations}) >= 10
    assert list(map(str, check(kind, observations))) == []


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_pages_agree_with_the_report_model(kind: str) -> None:
    assert list(map(str, compare(kind, observed(kind), model(kind)))) == []


@pytest.mark.slow
def test_recorded_pages_of_sglang_agree_with_the_simulated_engine(simulated: Observe) -> None:
    found = compare("sglang", observed("sglang"), simulated("sglang"))
    assert list(map(str, found)) == []


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    observations = observed("triton")
    recording.write(tmp_path / "runs.jsonl", observations)
    assert recording.read(tmp_path / "runs.jsonl") == observations


def _with(metric: Metric, **changes: Any) -> Contract:
    """SGLang's contract with a change of the series of one metric."""
    contract = CONTRACTS["sglang"]
    series = [replace(one, **changes) if one.measures is metric else one for one in contract.series]
    return replace(contract, series=tuple(series))


@pytest.mark.parametrize(
    ("contract", "expected"),
    [
        pytest.param(
            _with(metrics.LIVE_TOKENS, refresh=Refresh.REQUEST_END),
            "long stream, 200 tokens: sglang:realtime_tokens_total: real moved, expected constant until "
            "a request ends",
            id="live tokens at the end",
        ),
        pytest.param(
            _with(metrics.GENERATION_TOKENS, measures=metrics.LIVE_TOKENS, zero_while_busy=False),
            "long stream, 200 tokens: sglang:generation_tokens_total: real constant, expected moves while a "
            "request runs",
            id="a counter of ended requests as a live one",
        ),
        pytest.param(
            replace(CONTRACTS["sglang"], drain=EngineDrain(stop=StopMode.FINISHES)),
            "drain and restart, restarted: a new request: real 200, expected not 200",
            id="accepts no request while it drains",
        ),
        pytest.param(
            _with(metrics.REQUESTS_WAITING, name="sglang:queue_length"),
            "all, all: sglang:queue_length: real [], expected gauge",
            id="another name",
        ),
    ],
)
def test_a_wrong_claim_of_a_contract_is_found_with_both_values(contract: Contract, expected: str) -> None:
    found = violations(contract, release("sglang"), observed("sglang"))
    assert expected in list(map(str, found))


def test_a_difference_names_the_series_and_both_values() -> None:
    real = observed("vllm")
    wrong = [
        replace(one, page=one.page.replace("vllm:num_requests_waiting{", "vllm:num_requests_swapped{"))
        for one in model("vllm")
    ]
    found = [str(one) for one in compare("vllm", real, wrong)]
    assert "burst, queued: vllm:num_requests_waiting: real 4, expected absent" in found
