"""Kinds of values of the fleet document and of the settings: how they are written, and what is refused."""

from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from gpufleet.domain import durations


def _to_duration(value: Any) -> Any:
    # a bare number would be taken for seconds, and "90" is refused
    if isinstance(value, timedelta):
        return value
    return durations.parse(value if isinstance(value, str) else repr(value))


def _exact(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError("write money and shares as text or a whole number, since 0.1 is not exact")
    return value


def _finite(value: Decimal) -> Decimal:
    if not value.is_finite() or not 0 <= value < _TOO_MUCH:
        raise ValueError(f"must be a finite number, 0 or more and below {_TOO_MUCH:,}")
    return value


_TOO_MUCH: Final = 10**12
"""More than anybody pays: what is above has an exponent too many."""


def _known_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{value!r} is no time zone: write a name such as Europe/Berlin or UTC") from None
    return value


TimeZone = Annotated[str, AfterValidator(_known_zone)]
Duration = Annotated[timedelta, BeforeValidator(_to_duration), PlainSerializer(durations.render, return_type=str)]
ExactDecimal = Annotated[
    Decimal, BeforeValidator(_exact), AfterValidator(_finite), PlainSerializer(str, return_type=str)
]
Share = Annotated[float, Field(ge=0, le=1)]
ShareMoreThanZero = Annotated[float, Field(gt=0, le=1)]
MoreThanZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]


class Strict(BaseModel):
    """Refuses keys that it does not know, and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
