"""Describes what a setting must be, for each kind of validation error of pydantic."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field
from pydantic_core import ErrorDetails

_FORMS: Final[dict[str, str]] = {}
"""Regular expression of a text -> the description of its form."""

_WHOLE: Final = "a whole number"
_NUMBER: Final = "a number"
_MONEY: Final = 'a number in quotes, such as "0.25", or a whole number'
_DATE: Final = "a date as YYYY-MM-DD, for example 2027-06-01"
_TIME: Final = "a time with its offset, for example 2026-12-01T11:30:00Z"
_EXPECTED: Final[Mapping[str, str]] = {
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "a finite number",
    "decimal_type": _MONEY,
    "decimal_parsing": _MONEY,
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text in quotes",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a map",
    "mapping_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
    "dataclass_type": "a map",
    "date_type": _DATE,
    "date_parsing": _DATE,
    "date_from_datetime_parsing": _DATE,
    "date_from_datetime_inexact": _DATE,
    "datetime_type": _TIME,
    "datetime_parsing": _TIME,
    "datetime_from_date_parsing": _TIME,
    "datetime_object_invalid": _TIME,
    "timezone_aware": _TIME,
    "greater_than": "a number above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "union_tag_invalid": "{expected_tags}",
}
"""Pydantic's kind of error -> the expectation; braces are filled from the error's context."""


def text_form(pattern: str, description: str) -> Any:
    """Return the metadata of a text field with this regular expression. Errors describe it by `description`."""
    _FORMS[pattern] = description
    return Field(pattern=pattern)


def forms() -> Mapping[str, str]:
    """Return the described regular expressions and their descriptions."""
    return dict(_FORMS)


def expectation(error: ErrorDetails) -> str | None:
    """Return what was expected, for example "a whole number"; None for errors with their own sentence."""
    context: Mapping[str, Any] = error.get("ctx", {})
    kind = error["type"]
    if kind == "string_pattern_mismatch":
        return _FORMS.get(context["pattern"], f"text in the form {context['pattern']}")
    if kind in {"too_short", "too_long"}:
        limit = context["min_length" if kind == "too_short" else "max_length"]
        entries = "1 entry" if limit == 1 else f"{limit} entries"
        return f"at {'least' if kind == 'too_short' else 'most'} {entries}"
    found = _EXPECTED.get(kind)
    if found is None:
        return None
    return found.format_map(
        {name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()}
    )
