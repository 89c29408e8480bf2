"""Runs of each engine, by its documented reports: no wrong verdict, and tokens that are exact or flagged."""

from dataclasses import replace

import pytest
from localcloud.engine.reports import REPORTS

from benchmarks import bench_engines, engine_judging
from benchmarks.bench_engines import KINDS, RUNS, score
from benchmarks.engine_runs import Behaviour, runs
from serving.engines import CONTRACTS

FEW_RUNS = 50
"""For CI; `make test-long` plays all."""


def test_each_engine_with_numbers_has_a_report() -> None:
    assert set(KINDS) - set(REPORTS) == set(), "add modules with these names to localcloud/engine/reports/"


@pytest.mark.slow
@pytest.mark.parametrize("count", [FEW_RUNS, pytest.param(RUNS, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
def test_no_run_of_an_engine_is_judged_wrong(kind: str, count: int) -> None:
    found = score(kind, count, seed=20261126)
    assert found.examples == []
    assert found.wrong_idle + found.early_idle + found.late_busy + found.never_known + found.wrong_tokens == 0
    assert found.exact_tokens > 0
    assert found.runs == count
    assert RUNS / len(Behaviour) >= 20
    if kind == "triton":
        # the runs show the difference between a wrong rule and a right one
        assert found.naive_wrong_idle > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_the_same_for_a_seed(kind: str) -> None:
    first, second = (next(iter(runs(kind, 1, seed=3))) for _ in range(2))
    assert first == second


def test_a_name_that_the_report_never_shows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All verdicts are unknown then, and none is wrong."""
    contract = CONTRACTS["tgi"]
    wrong = replace(contract, series=(replace(contract.series[0], name="tgi_batch_size"), *contract.series[1:]))
    for module in (bench_engines, engine_judging):
        monkeypatch.setattr(module, "CONTRACTS", {**CONTRACTS, "tgi": wrong})
    (example,) = score("tgi", 1, seed=3).examples
    assert example.endswith("the report never shows tgi_batch_size")
