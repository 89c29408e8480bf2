"""Exact money: products and sums without rounding, one division at the end, splits that add up."""

import csv
from datetime import timedelta
from decimal import Decimal, FloatOperation, Inexact
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import money

CORPUS = list(csv.DictReader((Path(__file__).parent.parent / "data/vllm_cost_meter.csv").read_text().splitlines()))
LONG = timedelta(seconds=10**12)
"""So long that the tokens of any run are a whole number to twelve digits and more."""


def test_the_corpus_is_whole() -> None:
    assert [sum(row["table"] == name for row in CORPUS) for name in ("v1", "v2")] == [140, 32]


def test_every_published_cost_is_reproduced_to_twelve_digits() -> None:
    for row in CORPUS:
        amount = money.dollar_seconds(Decimal(row["usd_per_hour"]), LONG)
        tokens = int(Decimal(row["output_tokens_per_second"]) * 10**12)
        found = money.usd_per_million(amount, tokens, Decimal("1e-18"))
        expected = Decimal(row["usd_per_million_output_tokens"])
        assert found is not None
        assert abs(found / expected - 1) < Decimal("1e-12"), row


def test_a_negative_duration_cannot_cost() -> None:
    with pytest.raises(ValueError, match="end lies before its start"):
        money.dollar_seconds(Decimal(1), timedelta(microseconds=-1))


def test_rounding_is_an_error_while_summing() -> None:
    with pytest.raises(Inexact):
        money.EXACT.divide(Decimal(1), Decimal(3))
    with pytest.raises(FloatOperation):
        money.EXACT.create_decimal(0.1)


def test_without_tokens_there_is_no_ratio() -> None:
    assert money.usd_per_million(Decimal(5), 0) is None


USD = st.decimals(0, 10**6, places=9)


@given(st.lists(USD, min_size=1, max_size=30))
def test_rounded_parts_add_up_to_the_rounded_whole(parts: list[Decimal]) -> None:
    whole = sum(parts, Decimal(0))
    found = money.rounded_parts(parts, whole)
    assert sum(found) == whole.quantize(money.CENT)
    for exact, rounded in zip(parts, found, strict=True):
        assert abs(exact - rounded) < money.CENT


def test_the_largest_remainder_gets_the_cent() -> None:
    parts = [Decimal(text) for text in ("0.333", "0.333", "0.334")]
    assert [str(part) for part in money.rounded_parts(parts, Decimal(1))] == ["0.33", "0.33", "0.34"]


def test_parts_of_something_else_are_refused() -> None:
    with pytest.raises(ValueError, match="no split"):
        money.rounded_parts([Decimal(1), Decimal(1)], Decimal(3))


@given(amount=USD, weights=st.lists(st.integers(0, 10**9).map(Decimal), min_size=1, max_size=9))
def test_a_split_adds_up_and_gives_nothing_to_no_weight(amount: Decimal, weights: list[Decimal]) -> None:
    if not any(weights):
        with pytest.raises(ValueError, match="nothing to split by"):
            money.split(amount, weights)
        return
    parts = money.split(amount, weights)
    assert sum(parts) == amount
    assert all(part == 0 for part, weight in zip(parts, weights, strict=True) if not weight)
    assert all(part >= 0 for part in parts)


@given(seconds=st.integers(0, 10**9), micros=st.integers(0, 999_999), price=st.decimals(0, 1000, places=9))
def test_cost_is_linear_in_time(seconds: int, micros: int, price: Decimal) -> None:
    one, other = timedelta(seconds=seconds), timedelta(microseconds=micros)
    parts = [money.dollar_seconds(price, one), money.dollar_seconds(price, other)]
    assert money.total(parts) == money.dollar_seconds(price, one + other)
