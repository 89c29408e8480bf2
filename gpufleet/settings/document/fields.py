"""Field types of the fleet document and the settings: parsing, validation and serialization."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, Final, get_type_hints
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from gpufleet.domain import durations
from gpufleet.settings.expected import text_form


def _to_duration(value: Any) -> Any:
    # Pydantic would read a bare number as seconds; refuse it, like "90".
    if isinstance(value, timedelta):
        return value
    return durations.parse(str(value))


def _exact(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError("write money and shares as text or a whole number, because 0.1 is not exact")
    return value


def _finite(value: Decimal) -> Decimal:
    if not value.is_finite() or not 0 <= value < _TOO_MUCH:
        raise ValueError(f"must be a finite number, 0 or more and below {_TOO_MUCH:,}")
    return value


_TOO_MUCH: Final = 10**12
"""Above any real amount: a larger number has a wrong exponent."""


def _known_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{value!r} is not a time zone: write a name such as Europe/Berlin or UTC") from None
    return value


TimeZone = Annotated[str, AfterValidator(_known_zone)]
Duration = Annotated[timedelta, BeforeValidator(_to_duration), PlainSerializer(durations.render, return_type=str)]
ExactDecimal = Annotated[
    Decimal, BeforeValidator(_exact), AfterValidator(_finite), PlainSerializer(str, return_type=str)
]
Share = Annotated[float, Field(ge=0, le=1)]
ShareMoreThanZero = Annotated[float, Field(gt=0, le=1)]
MoreThanZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[
    str, text_form(r"^[a-z][a-z0-9-]{0,30}$", "up to 31 lowercase letters, digits and '-', beginning with a letter")
]

TimeOfDay = Annotated[str, text_form(r"^([01]\d|2[0-3]):[0-5]\d$", "a time as HH:MM, from 00:00 to 23:59")]


class Strict(BaseModel):
    """An immutable model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class InPlace:
    """Makes pydantic read a frozen dataclass of the domain, which does not depend on pydantic. Refuses unknown keys.

    `limits`: field -> type with stricter validation. `hidden`: fields that always keep their default.
    """

    def __init__(self, hidden: tuple[str, ...] = (), **limits: Any) -> None:
        self._hidden, self._limits = hidden, limits

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        types = {name: _WRITTEN_AS.get(kind, kind) for name, kind in get_type_hints(source).items()} | self._limits
        found: list[core_schema.DataclassField] = []
        for each in fields(source):
            schema = handler.generate_schema(types[each.name])
            default: Any = each.default if each.default_factory is MISSING else each.default_factory()
            if default is not MISSING:
                schema = core_schema.with_default_schema(schema, default=default)
            hidden = each.name in self._hidden
            found.append(
                core_schema.dataclass_field(
                    each.name, schema, kw_only=True, init=not hidden, serialization_exclude=hidden
                )
            )
        return core_schema.dataclass_schema(
            source,
            core_schema.dataclass_args_schema(source.__name__, found),
            [each["name"] for each in found],
            config={"extra_fields_behavior": "forbid"},
            frozen=True,
            slots=True,
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        found = handler(schema)
        properties = {name: form for name, form in found["properties"].items() if name not in self._hidden}
        return {**found, "properties": properties, "additionalProperties": False}


_DurationOrNone = Duration | None
_WRITTEN_AS: Final[Mapping[Any, Any]] = {
    timedelta: Duration,
    timedelta | None: _DurationOrNone,
    Decimal: ExactDecimal,
    int: Annotated[int, Field(ge=0)],
}
"""Domain type -> field type, for fields without an entry in `limits`."""
