"""The `filter` parameter of list calls: comparisons, joined by AND, OR or nothing (AND), with parentheses."""

import re
from collections.abc import Mapping
from typing import Any, Final

from localcloud.documents import is_document
from localcloud.gcp.errors import ApiError

_TOKEN: Final = re.compile(r"\s*(\(|\)|AND\b|OR\b|NOT\b|-(?=\()|(?:\"[^\"]*\"|[^\s()\"])+)")
_COMPARISON: Final = re.compile(r"([A-Za-z_][\w.\-\[\]]*)\s*(!=|>=|<=|=|:|>|<)\s*(.*)", re.S)
_WORD_FORM: Final = re.compile(r"([A-Za-z_][\w.\-]*)\s+(eq|ne)\s+(\S+)")


def matches(text: str | None, row: Mapping[str, Any]) -> bool:
    """Whether a resource matches. Raises ApiError for an invalid filter."""
    if not text or not text.strip():
        return True
    form = _WORD_FORM.fullmatch(text.strip())
    if form is not None:
        same = re.fullmatch(form[3].strip("'\""), _text(_field(row, form[1]))) is not None
        return same if form[2] == "eq" else not same
    joined = re.sub(r"\s*(!=|>=|<=|(?<![!<>])=|>(?!=)|<(?!=))\s*", r"\1", text)
    tokens = _split(joined)
    found, rest = _any(tokens, row)
    if rest:
        raise _bad(text)
    return found


def _split(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _bad(text)
        tokens.append(found[1])
        at = found.end()
    return tokens


def _any(tokens: list[str], row: Mapping[str, Any]) -> tuple[bool, list[str]]:
    result, tokens = _all(tokens, row)
    while tokens and tokens[0] == "OR":
        other, tokens = _all(tokens[1:], row)
        result = result or other
    return result, tokens


def _all(tokens: list[str], row: Mapping[str, Any]) -> tuple[bool, list[str]]:
    result, tokens = _one(tokens, row)
    while tokens and tokens[0] not in ("OR", ")"):
        other, tokens = _one(tokens[1:] if tokens[0] == "AND" else tokens, row)
        result = result and other
    return result, tokens


def _one(tokens: list[str], row: Mapping[str, Any]) -> tuple[bool, list[str]]:
    if not tokens:
        raise _bad("")
    first, rest = tokens[0], tokens[1:]
    if first in ("NOT", "-"):
        result, rest = _one(rest, row)
        return not result, rest
    if first == "(":
        result, rest = _any(rest, row)
        if not rest or rest[0] != ")":
            raise _bad(first)
        return result, rest[1:]
    return _compare(first, row), rest


def _compare(word: str, row: Mapping[str, Any]) -> bool:
    found = _COMPARISON.fullmatch(word)
    if found is None:
        raise _bad(word)
    value = _field(row, found[1])
    wanted = found[3].strip("\"'")
    match found[2]:
        case "=":
            return _like(wanted, _text(value)) if value is not None else False
        case "!=":
            return value is None or not _like(wanted, _text(value))
        case ":":
            return value is not None and (wanted == "*" or wanted in _text(value))
        case operator:
            return value is not None and _ordered(operator, _text(value), wanted)


def _ordered(operator: str, left: str, right: str) -> bool:
    pair: tuple[Any, Any] = (left, right)
    try:
        pair = float(left), float(right)
    except ValueError:
        pair = left, right
    return {
        ">": pair[0] > pair[1],
        "<": pair[0] < pair[1],
        ">=": pair[0] >= pair[1],
        "<=": pair[0] <= pair[1],
    }[operator]


def _like(wanted: str, text: str) -> bool:
    return re.fullmatch(re.escape(wanted).replace(r"\*", ".*"), text, re.S) is not None


def _field(row: Mapping[str, Any], path: str) -> Any:
    """A field by its path; keys of maps (labels) may contain dots."""
    at: Any = row
    for part in path.split("."):
        if not is_document(at) or part not in at:
            return None
        at = at[part]
    return at


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _bad(text: str) -> ApiError:
    return ApiError(400, "invalid", f"Invalid value for field 'filter': '{text}'. Invalid list filter expression.")
