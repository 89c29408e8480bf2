"""Exact money. A cost is kept as *dollar-seconds*: USD per hour times seconds, not yet divided by 3600.

Products and sums of finite decimals are finite decimals, so dollar-seconds are exact; the one division happens where
a figure is shown. `EXACT` traps every rounding, so a slip is an error instead of a wrong cent.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from decimal import (
    ROUND_FLOOR,
    ROUND_HALF_EVEN,
    Context,
    Decimal,
    DivisionByZero,
    FloatOperation,
    Inexact,
    InvalidOperation,
    Overflow,
    localcontext,
)
from typing import Final

EXACT: Final = Context(prec=100, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow, FloatOperation])
"""Adds and multiplies without any rounding; raises decimal.Inexact where a result would need one."""

_WIDE: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)
ZERO: Final = Decimal(0)
CENT: Final = Decimal("0.01")
NANO: Final = Decimal("0.000000001")
SECONDS_PER_HOUR: Final = 3600
HOURS_PER_MONTH: Final = 730
"""What a month means where a price per hour becomes one per month (365 days ÷ 12)."""


def seconds(duration: timedelta) -> Decimal:
    """A duration in seconds, exact to the microsecond."""
    micros = (duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds
    return Decimal(micros).scaleb(-6, EXACT)


def dollar_seconds(usd_per_hour: Decimal, duration: timedelta) -> Decimal:
    """What a price over a duration costs, in dollar-seconds. Raises ValueError for a negative duration."""
    if duration < timedelta(0):
        raise ValueError(f"a duration of {duration} cannot cost anything: its end lies before its start")
    return EXACT.multiply(usd_per_hour, seconds(duration))


def total(amounts: Iterable[Decimal]) -> Decimal:
    """The exact sum."""
    with localcontext(EXACT):
        return sum(amounts, ZERO)


def usd(amount: Decimal, step: Decimal = NANO) -> Decimal:
    """Dollar-seconds as USD, rounded once, half to even, to `step`."""
    return _WIDE.divide(amount, Decimal(SECONDS_PER_HOUR)).quantize(step, context=_WIDE)


def usd_per_million(amount: Decimal, tokens: int, step: Decimal = NANO) -> Decimal | None:
    """Dollar-seconds over tokens as USD per million. None without tokens: there is no such figure."""
    if tokens <= 0:
        return None
    with localcontext(_WIDE):
        return (amount * 1_000_000 / (SECONDS_PER_HOUR * Decimal(tokens))).quantize(step)


def rounded_parts(parts: Sequence[Decimal], whole: Decimal, step: Decimal = CENT) -> tuple[Decimal, ...]:
    """Parts (in USD) rounded to `step` so that they add up to `whole` rounded (the largest remainder method).

    Every part is rounded down and the steps that are then missing go to the largest remainders, the earlier part
    first where two are equal. Raises ValueError when the parts differ from the whole by a step for each part or more.
    """
    with localcontext(_WIDE):
        goal = whole.quantize(step)
        floors = [part.quantize(step, rounding=ROUND_FLOOR) for part in parts]
        missing = int((goal - sum(floors, ZERO)) / step)
        if not 0 <= missing <= len(parts):
            raise ValueError(f"{len(parts)} parts that sum up to {sum(parts, ZERO)} are no split of {whole}")
        by_remainder = sorted(range(len(parts)), key=lambda i: (floors[i] - parts[i], i))
        for index in by_remainder[:missing]:
            floors[index] += step
    return tuple(floors)


def split(amount: Decimal, weights: Sequence[Decimal], step: Decimal = NANO) -> tuple[Decimal, ...]:
    """`amount` split by weights, in steps, adding up to the amount exactly (any rest goes to the last with weight).

    Raises ValueError when no weight is above zero.
    """
    with localcontext(_WIDE):
        whole = sum(weights, ZERO)
        if whole <= 0 or min(weights) < 0:
            raise ValueError("nothing to split by: the weights must not be negative, and one must be above zero")
        parts = [(amount * weight / whole).quantize(step, rounding=ROUND_FLOOR) for weight in weights]
        last = max(index for index, weight in enumerate(weights) if weight > 0)
        parts[last] += amount - sum(parts, ZERO)
    return tuple(parts)
