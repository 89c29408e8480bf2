"""Unit costs at the edges of a window, where only one of two counters was read."""

from decimal import Decimal

import pytest

from gpufleet.costs.allocation import UseState
from gpufleet.costs.figures import Figure
from gpufleet.ledger.counters import Tokens


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (Tokens(prompt=10, cached=10, generation=0), (None, None, "100000.000000000")),
        (Tokens(prompt=0, cached=5, generation=10), (None, "100000.000000000", "100000.000000000")),
        (Tokens(prompt=5, cached=10, generation=5), (None, "200000.000000000", "100000.000000000")),
    ],
    ids=["all of it cached, no output yet", "cached reported before prompt", "more cached than prompt"],
)
def test_unit_costs_with_incomplete_counters_do_not_fail(tokens: Tokens, expected: tuple[str | None, ...]) -> None:
    figure = Figure(tokens=tokens)
    figure.amounts[UseState.USED] = Decimal(3600)
    unit = figure.unit_costs()
    assert (unit.input, unit.output, unit.blended) == tuple(v if v is None else Decimal(v) for v in expected)
