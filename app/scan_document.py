"""Reads what `gpufleet scan --json` printed. The file may be from anywhere, so each value is checked."""

import json
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from app.errors import AppError, ErrorCode
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.parsed import is_list, is_map

_EXPECTED: Final = "--from: expected the output of `gpufleet scan --json`"
_LONGEST_VALUE: Final = 60
"""Maximum number of characters of a value in an error."""
_HIGHEST_USD: Final = 1_000_000
"""Of an hour, far above any instance."""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_null(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_usd_or_null(value: object) -> bool:
    try:
        return value is None or (isinstance(value, str) and 0 <= Decimal(value) <= _HIGHEST_USD)
    except InvalidOperation:
        return False


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


_Check = tuple[str, Callable[[object], bool]]
_TEXT: Final[_Check] = "a text", _is_text
_USD: Final[_Check] = "an amount in USD as text, or null", _is_usd_or_null
_CLOUD: Final[_Check] = " or ".join(Cloud), lambda value: value in [*Cloud]
_PLACE: Final[Mapping[str, _Check]] = {"cloud": _CLOUD, "account": _TEXT, "region": _TEXT, "machine_type": _TEXT}
_FIELDS: Final[Mapping[str, Mapping[str, _Check]]] = {
    "instances": {
        **_PLACE,
        "zone": _TEXT,
        "capacity_type": (" or ".join(CapacityType), lambda value: value in [*CapacityType]),
        "owner": ("a text or null", _is_text_or_null),
        "use": _TEXT,
        "usd_per_hour": _USD,
        "spot_usd_per_hour": _USD,
    },
    "capacity": {**_PLACE, "kind": _TEXT, "id": _TEXT, "place": _TEXT, "total": ("a whole number", _is_count)},
}
"""What a draft reads from each list of a scan."""


def read_scan(text: str) -> Mapping[str, Any]:
    """Parse the JSON document of `gpufleet scan --json`. Raises AppError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise AppError(f"{_EXPECTED}: {error}", ErrorCode.WRONG_USE) from error
    if not is_map(found) or not is_list(found.get("instances")):
        raise AppError(f"{_EXPECTED}: it has no list of instances", ErrorCode.WRONG_USE)
    for name, fields in _FIELDS.items():
        rows: object = found.get(name, [])
        if not is_list(rows):
            raise _unexpected(name, "a list", rows)
        for number, one in enumerate(rows):
            if not is_map(one):
                raise _unexpected(f"{name}.{number}", "an object", one)
            for key, (expected, is_valid) in fields.items():
                if key not in one:
                    raise AppError(f"{_EXPECTED}: {name}.{number}.{key} is missing", ErrorCode.WRONG_USE)
                if not is_valid(one[key]):
                    raise _unexpected(f"{name}.{number}.{key}", expected, one[key])
    return found


def _unexpected(where: str, expected: str, value: object) -> AppError:
    shown = json.dumps(value, ensure_ascii=False)
    shown = shown if len(shown) <= _LONGEST_VALUE else f"{shown[:_LONGEST_VALUE]}…"
    return AppError(f"{_EXPECTED}: {where} must be {expected}; got {shown}", ErrorCode.WRONG_USE)
