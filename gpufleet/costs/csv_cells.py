"""Cells of CSV that people open in a spreadsheet."""

from typing import Any, Final

_BEGINS_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def cell(value: Any) -> Any:
    """The value as a cell. Untrusted text (an owner, a price's source) that a spreadsheet would interpret as a
    formula gets a leading apostrophe, which is not shown. None is an empty field; numbers are unchanged.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or not value.startswith(_BEGINS_FORMULA) or _is_number(value):
        return value
    return f"'{value}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii() and "_" not in text
