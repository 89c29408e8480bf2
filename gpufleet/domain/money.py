"""Exact arithmetic with money. A cost is stored in *dollar-seconds*: USD per hour times seconds, not divided by 3600.

Products and sums of finite decimals are finite decimals, so dollar-seconds are exact. The only division happens when
a figure is shown. `EXACT` traps all rounding, so a mistake raises an error instead of producing a wrong cent.
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
"""Adds and multiplies without rounding; raises decimal.Inexact if a result would need rounding."""

_WIDE: Final = Context(prec=100, rounding=ROUND_HALF_EVEN)
ZERO: Final = Decimal(0)
CENT: Final = Decimal("0.01")
NANO: Final = Decimal("0.000000001")
SECONDS_PER_HOUR: Final = 3600
HOURS_PER_MONTH: Final = 730
"""Hours in a month, for converting a price per hour to a price per month (365 days ÷ 12)."""


def seconds(duration: timedelta) -> Decimal:
    """Return a duration in seconds, exact to the microsecond."""
    micros = (duration.days * 86_400 + duration.seconds) * 1_000_000 + duration.microseconds
    return Decimal(micros).scaleb(-6, EXACT)


def dollar_seconds(usd_per_hour: Decimal, duration: timedelta) -> Decimal:
    """Return the cost of a price over a duration, in dollar-seconds. Raises ValueError for a negative duration."""
    if duration < timedelta(0):
        raise ValueError(f"a duration must not be negative, got {duration}: its end is before its start")
    return EXACT.multiply(usd_per_hour, seconds(duration))


def total(amounts: Iterable[Decimal]) -> Decimal:
    """Return the exact sum."""
    with localcontext(EXACT):
        return sum(amounts, ZERO)


def usd(amount: Decimal, step: Decimal = NANO) -> Decimal:
    """Convert dollar-seconds to USD; round once to `step`, half to even."""
    return _WIDE.divide(amount, Decimal(SECONDS_PER_HOUR)).quantize(step, context=_WIDE)


def per_hour(amount: Decimal, duration: timedelta, step: Decimal = NANO) -> Decimal | None:
    """Convert dollar-seconds over a duration to USD per hour. None without a duration: the figure is undefined."""
    if duration <= timedelta(0):
        return None
    return _WIDE.divide(amount, seconds(duration)).quantize(step, context=_WIDE)


def usd_per_million(amount: Decimal, tokens: int, step: Decimal = NANO) -> Decimal | None:
    """Convert dollar-seconds for `tokens` to USD per million tokens. None without tokens: the figure is undefined."""
    if tokens <= 0:
        return None
    with localcontext(_WIDE):
        return (amount * 1_000_000 / (SECONDS_PER_HOUR * Decimal(tokens))).quantize(step)


def rounded_parts(parts: Sequence[Decimal], whole: Decimal, step: Decimal = CENT) -> tuple[Decimal, ...]:
    """Round parts (in USD) to `step` so that their sum is `whole` rounded to `step` (largest remainder method).

    Each part is rounded down. The missing steps go to the parts with the largest remainders; of equal ones, the first
    wins. Raises ValueError if the sum of the parts differs from the whole by one step per part or more.
    """
    with localcontext(_WIDE):
        goal = whole.quantize(step)
        floors = [part.quantize(step, rounding=ROUND_FLOOR) for part in parts]
        missing = int((goal - sum(floors, ZERO)) / step)
        if not 0 <= missing <= len(parts):
            raise ValueError(f"{len(parts)} parts with the sum {sum(parts, ZERO)} cannot be rounded to {whole}")
        by_remainder = sorted(range(len(parts)), key=lambda i: (floors[i] - parts[i], i))
        for index in by_remainder[:missing]:
            floors[index] += step
    return tuple(floors)


def split(amount: Decimal, weights: Sequence[Decimal], step: Decimal = NANO) -> tuple[Decimal, ...]:
    """Split `amount` by weights, in steps. The parts sum to the amount exactly; the last part with weight gets the
    remainder.

    Raises ValueError if a weight is negative, or if none is above zero.
    """
    with localcontext(_WIDE):
        whole = sum(weights, ZERO)
        if whole <= 0 or min(weights) < 0:
            raise ValueError("the amount cannot be split: weights must be 0 or more, and at least one above 0")
        parts = [(amount * weight / whole).quantize(step, rounding=ROUND_FLOOR) for weight in weights]
        last = max(index for index, weight in enumerate(weights) if weight > 0)
        parts[last] += amount - sum(parts, ZERO)
    return tuple(parts)
