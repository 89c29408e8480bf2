"""Compares the inputs of a new program with those of the old one, and both with the cloud."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from gpufleet.domain.parsed import is_list
from localcloud.documents import is_document
from localcloud.provider.wire import Properties, is_asset

ADD, DELETE, UPDATE = "ADD", "DELETE", "UPDATE"
_MISSING = object()
_PLAIN_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


def changed_keys(old: Properties, new: Properties) -> frozenset[str]:
    """Top-level inputs that differ."""
    return frozenset(k for k in old.keys() | new.keys() if k not in old or k not in new or not _same(old[k], new[k]))


def _same(old: Any, new: Any) -> bool:
    if is_asset(old) and is_asset(new):
        return old.get("hash") == new.get("hash")  # the same content at another path is not a change
    return old == new


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Each differing place as (path, ADD, DELETE or UPDATE)."""
    if is_asset(old) or is_asset(new) or type(old) is not type(new) or not isinstance(old, dict | list):
        if not _same(old, new):
            yield path, UPDATE
        return
    for place, before, after in _pairs(old, new, path):
        if before is _MISSING:
            yield place, ADD
        elif after is _MISSING:
            yield place, DELETE
        else:
            yield from differences(before, after, place)


def _pairs(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Each place inside two maps or two lists, with what either has there."""
    if is_document(old):
        for key in sorted(old.keys() | new.keys()):
            yield _step(path, key), old.get(key, _MISSING), new.get(key, _MISSING)
    else:
        for index, (before, after) in enumerate(itertools.zip_longest(old, new, fillvalue=_MISSING)):
            yield f"{path}[{index}]", before, after


def _step(path: str, key: str) -> str:
    if not _PLAIN_NAME.fullmatch(key):
        return f'{path}["{key}"]'
    return f"{path}.{key}" if path else key


def as_given(given: Any, live: Any) -> Any:
    """The live value in the form of the program's input.

    The cloud answers with more fields, other orders and other spellings than it was given. Only what the program
    said is compared: fields that it did not name are left out, order counts only where the sets differ, JSON texts
    are compared by meaning.
    """
    if is_document(given) and is_document(live):
        return {k: as_given(v, live[k]) for k, v in given.items() if k in live}
    if is_list(given) and is_list(live):
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
