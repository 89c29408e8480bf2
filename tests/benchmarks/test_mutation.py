"""Tests of the mutation benchmark: it counts mutmut's results, draws a repeatable sample, and does not count
survivors as killed.
"""

import pytest

from benchmarks import bench_mutation as bench
from benchmarks.bench_mutation import Verdict


def test_the_sample_does_not_depend_on_the_order_of_mutants() -> None:
    names = [f"gpufleet.domain.money.x_{n}" for n in range(2_000)]
    first = bench.drawn(names)
    assert first == bench.drawn(names[::-1])
    assert len(set(first)) == bench.DRAWN and set(first) <= set(names)
    assert bench.drawn(["b", "a"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, Verdict.SURVIVED), (1, Verdict.KILLED), (33, Verdict.UNTESTED), (36, Verdict.SLOW), (None, Verdict.UNCLEAR),
     (77, Verdict.UNCLEAR)],
)  # fmt: skip
def test_exit_codes(code: int | None, expected: Verdict) -> None:
    assert bench.verdict(code) is expected


def test_the_score_is_the_detected_share_of_tested_mutants() -> None:
    tried = {
        "gpufleet/domain/money.py": {"a": Verdict.KILLED, "b": Verdict.SLOW, "c": Verdict.SURVIVED},
        "gpufleet/costs/slots.py": {"d": Verdict.UNTESTED},
        "gpufleet/prices/book.py": {},
    }
    found = bench.table(
        tried, {"gpufleet/domain/money.py": 30, "gpufleet/costs/slots.py": 9, "gpufleet/prices/book.py": 4}
    )
    rows = {row[0]: (row[2], row[3], row[-1]) for row in found.rows}
    assert rows == {
        "gpufleet/domain/money.py": ("30", "3", "66.7%"),
        "gpufleet/costs/slots.py": ("9", "1", "0.0%"),
        "gpufleet/prices/book.py": ("4", "0", "none tried"),
        "together": ("43", "4", "50.0%"),
    }
    assert "Not killed: b, c, d." in found.notes
