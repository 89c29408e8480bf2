"""Exact arithmetic with money: products and sums without rounding, one final division, exact splits."""

import csv
from datetime import timedelta
from decimal import Decimal, FloatOperation, Inexact

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.domain import money
from gpufleet.toolchain.folders import ROOT

CORPUS = list(csv.DictReader((ROOT / "tests" / "data/vllm_cost_meter.csv").read_text().splitlines()))
LONG = timedelta(seconds=10**12)
"""Long enough that the tokens of any run are an integer with at least twelve digits."""


def test_the_corpus_is_complete() -> None:
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
    with pytest.raises(ValueError, match="its end is before its start"):
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


def test_parts_with_another_sum_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be rounded"):
        money.rounded_parts([Decimal(1), Decimal(1)], Decimal(3))


@given(amount=USD, weights=st.lists(st.integers(0, 10**9).map(Decimal), min_size=1, max_size=9))
def test_a_split_adds_up_and_gives_nothing_to_no_weight(amount: Decimal, weights: list[Decimal]) -> None:
    if not any(weights):
        with pytest.raises(ValueError, match="cannot be split"):
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


HUGE = Decimal("123456789012345678901234567890.123456789")
"""More digits than the default decimal context."""


def test_no_digit_of_a_huge_sum_is_lost_when_it_is_shown() -> None:
    assert money.usd(money.dollar_seconds(HUGE, timedelta(hours=1))) == HUGE
    assert money.usd_per_million(money.dollar_seconds(HUGE, timedelta(hours=1)), 1_000_000) == HUGE
    cents = Decimal("123456789012345678901234567890.12")
    assert money.rounded_parts([HUGE, money.ZERO], HUGE) == (cents, money.ZERO)
    first, *_ = money.split(HUGE, [Decimal(1), Decimal(1), Decimal(2)])
    assert first == Decimal("30864197253086419725308641972.530864197")


@pytest.mark.parametrize(
    ("amount", "step", "shown"),
    [
        pytest.param("18", "0.01", "0.00", id="half a cent to the even one below"),
        pytest.param("54", "0.01", "0.02", id="half a cent to the even one above"),
        pytest.param("5.4", "0.000000001", "0.001500000", id="nano-dollars"),
    ],
)
def test_a_sum_is_rounded_once_half_to_even(amount: str, step: str, shown: str) -> None:
    assert str(money.usd(Decimal(amount), Decimal(step))) == shown


def test_usd_per_million_by_hand() -> None:
    # 7,200 dollar-seconds are 2 USD; 2 USD for 500,000 tokens are 4 USD per million.
    assert str(money.usd_per_million(Decimal(7_200), 500_000)) == "4.000000000"
    assert money.usd_per_million(Decimal(7_200), 1) == 2_000_000
    assert money.usd_per_million(Decimal(7_200), -1) is None


def test_durations_count_days_seconds_and_microseconds() -> None:
    length = timedelta(days=2, seconds=3, microseconds=4)
    assert str(money.seconds(length)) == "172803.000004"
    assert money.dollar_seconds(Decimal("1.5"), timedelta(0)) == 0


def test_equal_remainders_give_the_cent_to_the_earlier_part() -> None:
    thirds = [Decimal(1) / 3] * 3
    assert [str(part) for part in money.rounded_parts(thirds, Decimal(1))] == ["0.34", "0.33", "0.33"]
    halves = [Decimal("0.005"), Decimal("0.015"), Decimal("-0.02")]
    assert [str(part) for part in money.rounded_parts(halves, Decimal(0))] == ["0.01", "0.01", "-0.02"]


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        pytest.param(["0.25", "0.25"], ["0.500000000", "0.500000000"], id="weights below one"),
        pytest.param(["1", "1", "1", "0"], ["0.333333333", "0.333333333", "0.333333334", "0"], id="rest to the last"),
        pytest.param(["3", "1"], ["0.750000000", "0.250000000"], id="by weight"),
    ],
)
def test_a_split_by_hand(weights: list[str], parts: list[str]) -> None:
    assert money.split(Decimal(1), [Decimal(w) for w in weights]) == tuple(Decimal(p) for p in parts)


@pytest.mark.parametrize("weights", [["-1", "3"], ["0", "0"]], ids=["negative", "all zero"])
def test_invalid_weights_are_refused(weights: list[str]) -> None:
    with pytest.raises(ValueError, match="^the amount cannot be split: weights must be 0 or more"):
        money.split(Decimal(1), [Decimal(w) for w in weights])


def test_parts_can_differ_from_the_whole_by_less_than_a_step_each() -> None:
    assert money.rounded_parts([Decimal("0.019"), Decimal("0.019")], Decimal("0.04")) == (Decimal("0.02"),) * 2
    with pytest.raises(ValueError, match="2 parts with the sum 0.02 cannot be rounded to 0.05"):
        money.rounded_parts([Decimal("0.01"), Decimal("0.01")], Decimal("0.05"))
    with pytest.raises(ValueError, match="cannot be rounded"):
        money.rounded_parts([Decimal("0.03")], Decimal("0.01"))
