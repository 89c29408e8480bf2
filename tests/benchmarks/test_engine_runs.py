"""200 runs of each engine, by its documented reports: no wrong verdict, and tokens that are exact or flagged."""

import pytest

from benchmarks.bench_engines import KINDS, RUNS, score
from benchmarks.engine_runs import Behaviour, runs
from serving.engines import EngineKind


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_run_of_an_engine_is_judged_wrong(kind: EngineKind) -> None:
    found = score(kind, RUNS, seed=20261126)
    assert found.examples == []
    assert found.wrong_idle + found.early_idle + found.late_busy + found.never_known + found.wrong_tokens == 0
    assert found.exact_tokens > 0
    assert found.runs == RUNS
    assert found.runs / len(Behaviour) >= 20
    if kind is EngineKind.TRITON:
        # the runs show the difference between a wrong rule and a right one
        assert found.naive_wrong_idle > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_the_same_for_a_seed(kind: EngineKind) -> None:
    first, second = (next(iter(runs(kind, 1, seed=3))) for _ in range(2))
    assert first == second
