"""API keys: stored only as SHA-256, in a secret file that only the router reads."""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(r"(?P<hash>[0-9a-f]{64})\s+(?P<name>[A-Za-z0-9._-]{1,64})(?P<rest>(\s+\S+)*)")
_CLASS: Final = re.compile(r"class=([a-z][a-z0-9-]{0,30})")
_LIMIT: Final = re.compile(r"per-10s=([1-9]\d{0,8})")


_MODELS: Final = re.compile(
    r"models=([A-Za-z0-9][A-Za-z0-9._/:@+-]{0,127}(?:,[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,127})*)"
)
_KNOWN: Final = "class=CLASS, per-10s=N and models=MODEL,MODEL"


class KeysError(ValueError):
    """A line of the file is invalid. The message names the line number, never its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A client."""

    sha256: str
    name: str
    """Name of the key in logs and metering."""
    user_class: str | None = None
    requests_per_10s: int | None = None
    models: tuple[str, ...] = ()
    """Models that the key may use; empty: all models."""


def digest(key: str) -> str:
    """Return the form in which the file stores a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """Read `SHA256 NAME [class=CLASS] [per-10s=N] [models=MODEL,…]` lines; `#` starts a comment. Raises KeysError."""
    keys: list[ApiKey] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not (stripped := line.partition("#")[0].strip()):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:
            raise KeysError(
                f"line {number}: write SHA256 NAME, then optionally {_KNOWN} (the hash in lower-case hex)"
            )
        keys.append(_key(number, match))
    if len({key.sha256 for key in keys}) != len(keys):
        raise KeysError("the file contains the same key twice")
    return tuple(keys)


def _key(number: int, match: re.Match[str]) -> ApiKey:
    user_class: str | None = None
    limit: int | None = None
    models: tuple[str, ...] = ()
    for word in match["rest"].split():
        if found := _CLASS.fullmatch(word):
            user_class = found[1]
        elif found := _LIMIT.fullmatch(word):
            limit = int(found[1])
        elif found := _MODELS.fullmatch(word):
            models = tuple(found[1].split(","))
        else:
            raise KeysError(f"line {number}: after the name only {_KNOWN} are allowed")
    return ApiKey(
        sha256=match["hash"], name=match["name"], user_class=user_class, requests_per_10s=limit, models=models
    )
