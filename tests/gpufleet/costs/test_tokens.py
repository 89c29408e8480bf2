"""Tokens from raw counters: resets, replicas, preemption, cuts of the window, order and repetition of readings."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from gpufleet.costs.samples import thin
from gpufleet.costs.tokens import EngineTokens, engine_tokens
from gpufleet.ledger.counters import MAX_GAP, Tokens
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import TokenReading, add_readings
from gpufleet.ledger.rollups import reading_spans, roll_up
from gpufleet.ledger.schema import open_ledger

T0 = datetime(2026, 11, 21, 6, 0, tzinfo=UTC)
FLEET = "aws/test/us-east-1"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def reading(
    second: float, prompt: int | None, began: float | None = 0, instance: str = "i-1", **more: int
) -> TokenReading:
    return TokenReading(
        environment=FLEET,
        instance_id=instance,
        engine=f"8000/{more.pop('rank', 0)}",
        model="chat",
        at=at(second),
        prompt=prompt,
        generation=more.get("generation", None if prompt is None else prompt // 2),
        cached=more.get("cached"),
        created_at=None if began is None else at(began),
    )


def write(ledger: Engine, readings: Sequence[TokenReading], fleet: str = FLEET) -> None:
    mine = [replace(one, environment=fleet) for one in readings]
    with writing(ledger) as connection:
        add_readings(connection, mine)
        roll_up(connection, mine)


def read(ledger: Engine, since: float, until: float, fleet: str = FLEET) -> list[EngineTokens]:
    with ledger.connect() as connection:
        return list(engine_tokens(reading_spans(connection, fleet, at(since), at(until)), at(since), at(until)))


def total(ledger: Engine, since: float, until: float, fleet: str = FLEET) -> Tokens:
    return sum((engine.tokens for engine in read(ledger, since, until, fleet)), Tokens())


@pytest.fixture(scope="module")
def shared() -> Engine:
    """One ledger for many examples, each with its own fleet names."""
    return open_ledger("sqlite://")


FLEETS = itertools.count()


@pytest.fixture
def ledger() -> Engine:
    return open_ledger("sqlite://")


@pytest.mark.parametrize(
    ("readings", "expected", "resets"),
    [
        pytest.param([reading(60, 10), reading(120, 30)], 30, 0, id="a young engine counts from zero"),
        pytest.param([reading(9000, 10), reading(9060, 30)], 20, 0, id="earlier tokens of an old engine are unknown"),
        pytest.param([reading(60, 10, None), reading(120, 30, None)], 20, 0, id="an engine of unknown age"),
        pytest.param([reading(60, 10), reading(120, 4)], 14, 1, id="a counter that decreases was reset"),
        pytest.param([reading(60, 10), reading(120, 40, 100)], 50, 1, id="a younger process was reset unobserved"),
        pytest.param([reading(60, 10), reading(120, 10)], 10, 0, id="an unchanged counter adds nothing"),
        pytest.param([reading(60, 10), reading(120, 10, rank=1)], 20, 0, id="data-parallel ranks are summed"),
        pytest.param([reading(60, 10), reading(65, 7, instance="i-2")], 17, 0, id="instances are summed"),
    ],
)
def test_tokens_from_readings(ledger: Engine, readings: list[TokenReading], expected: int, resets: int) -> None:
    write(ledger, readings)
    found = total(ledger, 0, 90_000)
    assert (found.prompt, found.resets) == (expected, resets)


def test_last_reading_before_a_preemption_counts(ledger: Engine) -> None:
    write(ledger, [reading(60, 10), reading(200, 90), reading(400, 50, 300, instance="i-2")])
    assert total(ledger, 0, 1_000).prompt == 140


def test_missing_readings_are_not_zero(ledger: Engine) -> None:
    write(ledger, [reading(60, 10), reading(120, None), reading(180, 30)])
    found = total(ledger, 0, 1_000)
    assert found.cached is None
    assert found.prompt == 10  # the tokens in the gap are unknown


def test_long_gap_is_exact_in_amount_and_marked_as_uncertain_in_time(ledger: Engine) -> None:
    write(ledger, [reading(60, 10), reading(60 + MAX_GAP.total_seconds() + 1, 500)])
    found = total(ledger, 0, 9_000)
    assert (found.prompt, found.late) == (500, 1)


def test_readings_that_prove_a_sum_are_listed(ledger: Engine) -> None:
    write(ledger, [reading(60, 10), reading(3000, 20), reading(4000, 30), reading(8000, 70)])
    (engine,) = read(ledger, 3500, 7300)
    assert engine.base is not None and engine.base.prompt == 20
    assert (engine.last.prompt, engine.tokens.prompt) == (30, 10)


@st.composite
def counters(draw: st.DrawFn) -> list[TokenReading]:
    """Draws readings of a few engines over about ten hours, with restarts."""
    found: list[TokenReading] = []
    for rank in range(draw(st.integers(1, 3))):
        second, value, began = float(draw(st.integers(0, 5_000))), 0, 0.0
        began = second - draw(st.sampled_from([5, 5_000]))
        for _ in range(draw(st.integers(1, 25))):
            if draw(st.integers(0, 5)) == 0:
                began, value = second, 0
            second += draw(st.sampled_from([0.5, 7, 60, 300, 2_000]))
            value += draw(st.integers(0, 1_000))
            found.append(reading(second, value, began, rank=rank, generation=value // 3, cached=value // 7))
    return found


CUTS = st.lists(st.one_of(st.integers(0, 40_000), st.integers(0, 11).map(lambda h: h * 3_600)), max_size=5)


@settings(max_examples=60, deadline=None)
@given(readings=counters(), cuts=CUTS, seed=st.integers(0, 99))
def test_order_repetition_cuts_and_batches_do_not_change_the_sum(
    shared: Engine, readings: list[TokenReading], cuts: list[int], seed: int
) -> None:
    once, often = f"once/{next(FLEETS)}", f"often/{next(FLEETS)}"
    write(shared, readings, once)
    shuffled = [*readings, *readings[::2]]
    random.Random(seed).shuffle(shuffled)
    for start in range(0, len(shuffled), 8):
        write(shared, shuffled[start : start + 8], often)
    whole = total(shared, 0, 60_000, once)
    assert total(shared, 0, 60_000, often) == whole
    edges = [0, *sorted(set(cuts) - {0}), 60_000]
    parts = [total(shared, start, end, once) for start, end in zip(edges, edges[1:], strict=False)]
    assert sum(parts, Tokens()) == whole


@settings(deadline=None)
@given(readings=counters())
def test_thinning_does_not_change_the_sum(shared: Engine, readings: list[TokenReading]) -> None:
    once, thinned = f"once/{next(FLEETS)}", f"thinned/{next(FLEETS)}"
    write(shared, readings, once)
    by_engine: dict[str, list[TokenReading]] = {}
    for one in readings:
        by_engine.setdefault(one.engine, []).append(one)
    write(shared, [kept for mine in by_engine.values() for kept in thin(mine)], thinned)
    whole, less = total(shared, 0, 60_000, once), total(shared, 0, 60_000, thinned)
    assert (less.prompt, less.cached, less.generation, less.resets) == (
        whole.prompt,
        whole.cached,
        whole.generation,
        whole.resets,
    )
