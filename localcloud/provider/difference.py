"""What a new program says against what the old one said, and what the cloud says against both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from localcloud.provider.wire import Properties

ADD, DELETE, UPDATE = "ADD", "DELETE", "UPDATE"
_PLAIN_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


def changed_keys(old: Properties, new: Properties) -> frozenset[str]:
    """Top-level inputs that differ."""
    return frozenset(k for k in old.keys() | new.keys() if k not in old or k not in new or old[k] != new[k])


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each differing place as (path, ADD, DELETE or UPDATE)."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            place = _step(path, key)
            if key not in old:
                yield place, ADD
            elif key not in new:
                yield place, DELETE
            else:
                yield from differences(old[key], new[key], place)
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            place = f"{path}[{index}]"
            if index >= len(old):
                yield place, ADD
            elif index >= len(new):
                yield place, DELETE
            else:
                yield from differences(old[index], new[index], place)
    elif old != new:
        yield path, UPDATE


def _step(path: str, key: str) -> str:
    if not _PLAIN_NAME.fullmatch(key):
        return f'{path}["{key}"]'
    return f"{path}.{key}" if path else key


def as_given(given: Any, live: Any) -> Any:
    """The live value in the form in which the program gave it.

    The cloud answers with more fields, other orders and other spellings than it was given. Only what the program
    said is compared: fields that it did not name are left out, order counts only where the sets differ, JSON texts
    are compared by meaning.
    """
    if isinstance(given, dict) and isinstance(live, dict):
        return {k: as_given(v, live[k]) for k, v in given.items() if k in live}
    if isinstance(given, list) and isinstance(live, list):
        return _list_as_given(given, live)
    if isinstance(given, str) and isinstance(live, str) and _same_json(given, live):
        return given
    return live


def _list_as_given(given: list[Any], live: list[Any]) -> list[Any]:
    rest = list(live)
    result: list[Any] = []
    for item in given:
        match = next((i for i, other in enumerate(rest) if as_given(item, other) == item), None)
        if match is not None:
            rest.pop(match)
            result.append(item)
    if len(result) == len(given) and not rest:
        return given
    if len(given) == len(live):
        return [as_given(g, other) for g, other in zip(given, live, strict=True)]
    sample = given[0] if given else None
    return result + [as_given(sample, other) if isinstance(sample, dict) else other for other in rest]


def _same_json(left: str, right: str) -> bool:
    if left == right:
        return True
    if left[:1] not in {"{", "["}:
        return False
    try:
        return json.loads(left) == json.loads(right)
    except ValueError:
        return False
