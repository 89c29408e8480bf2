"""Unit costs at the edges of a window, where only one of two counters was read."""

from decimal import Decimal

import pytest

from gpufleet.costs.allocation import UseState
from gpufleet.costs.figures import Figure
from gpufleet.costs.render import without_tokens
from gpufleet.ledger.counters import Tokens


def test_only_tokens_with_a_known_cost_divide_the_cost() -> None:
    figure = Figure()
    figure.amounts[UseState.USED] = Decimal(3600)
    figure.without_cost = Tokens(prompt=7, cached=2, generation=3)
    assert figure.unit_costs().blended is None
    assert without_tokens(figure) == "tokens without a known cost"
    whole = Figure()
    whole.include(figure)
    whole.tokens += Tokens(prompt=15, generation=5)
    assert whole.served == Tokens(prompt=22, cached=2, generation=8)
    assert whole.unit_costs().blended == Decimal(50_000)


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
