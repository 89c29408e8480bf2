"""Real engines report what their contracts state, and what their simulators report."""

from collections.abc import Callable

import pytest

from benchmarks.comparison.player import Observation
from benchmarks.comparison.results import KINDS, SIMULATED, check, compare, model

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(2400)]
Observe = Callable[[str], list[Observation]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_engine_reports_what_its_contract_states(kind: str, real: Observe) -> None:
    observations = real(kind)
    assert len({one.run for one in observations}) >= 10
    assert list(map(str, check(kind, observations))) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_model_of_an_engine_reports_as_the_real_one(kind: str, real: Observe) -> None:
    assert list(map(str, compare(kind, real(kind), model(kind)))) == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "triton"])
def test_the_simulated_engine_reports_as_the_real_one(kind: str, real: Observe, simulated: Observe) -> None:
    assert kind in SIMULATED
    assert list(map(str, compare(kind, real(kind), simulated(kind)))) == []
