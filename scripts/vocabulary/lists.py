"""Reads `banned.toml` and `allowed.toml`."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from scripts.vocabulary.parts import GROUPS, Kind

BANNED: Final = Path(__file__).with_name("banned.toml")
ALLOWED: Final = Path(__file__).with_name("allowed.toml")
_BANNED_KEYS: Final = {"word", "forms", "pattern", "use", "where"}


class ListError(ValueError):
    """A list is invalid. The message contains the entry and the error."""


@dataclass(frozen=True, slots=True)
class Banned:
    """A word with its inflections, or a phrase."""

    word: str
    """The entry's name in messages and in `allowed.toml`."""
    pattern: re.Pattern[str]
    """Matches text. For identifiers, it matches their words joined with spaces."""
    use: str
    where: frozenset[Kind]


@dataclass(frozen=True, slots=True)
class Allowed:
    """An exception: `files` (a glob whose `*` also matches `/`) may use `word` (`*`: any). If `name` is set, the
    exception covers only this name.
    """

    files: str
    word: str
    name: str
    reason: str

    def covers(self, path: str, word: str, found: str) -> bool:
        """Return whether the exception applies. `found` is the identifier, or the line of text."""
        return self.word in (word, "*") and fnmatchcase(path, self.files) and self.name in found


@dataclass(frozen=True, slots=True)
class AllowedName:
    """A class, package or module name that is defined more than once."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lists:
    """Banned words and exceptions."""

    banned: Sequence[Banned]
    allowed: Sequence[Allowed] = ()
    classes: Sequence[AllowedName] = ()
    packages: Sequence[AllowedName] = ()
    siblings: Sequence[AllowedName] = ()
    """Pairs of modules whose names differ by a plural s: the singular's path without `.py`."""


def read_lists(banned: Path = BANNED, allowed: Path = ALLOWED) -> Lists:
    """Read both lists. Raises ListError, OSError."""
    exceptions = _load(allowed)
    return Lists(
        banned=tuple(_banned(banned.name, entry) for entry in _load(banned).get("banned", [])),
        allowed=tuple(_allowed(allowed.name, entry) for entry in exceptions.get("allowed", [])),
        classes=_names(allowed.name, exceptions, "class"),
        packages=_names(allowed.name, exceptions, "package"),
        siblings=_names(allowed.name, exceptions, "siblings"),
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ListError(f"{path.name}: {error}") from error


def _banned(file: str, entry: Mapping[str, Any]) -> Banned:
    word = _text(file, entry, "word", "an entry")
    if unknown := entry.keys() - _BANNED_KEYS:
        raise ListError(
            f"{file}: {word}: unknown key {min(unknown)!r}; known keys: {', '.join(sorted(_BANNED_KEYS))}"
        )
    forms = [word, *entry.get("forms", [])]
    pattern = entry.get("pattern") or rf"(?<![a-z])({'|'.join(map(re.escape, forms))})(?![a-z])"
    try:
        return Banned(
            word=word,
            pattern=re.compile(pattern, re.IGNORECASE),
            use=_text(file, entry, "use", word),
            where=_kinds(file, word, entry.get("where", ["identifier", "text"])),
        )
    except re.error as error:
        raise ListError(f"{file}: {word}: invalid pattern: {error}") from error


def _kinds(file: str, word: str, names: Sequence[str]) -> frozenset[Kind]:
    found: set[Kind] = set()
    for name in names:
        if name not in GROUPS and name not in list(Kind):
            raise ListError(f"{file}: {word}: where: unknown kind {name!r}; known: {', '.join([*GROUPS, *Kind])}")
        found |= GROUPS.get(name) or {Kind(name)}
    return frozenset(found)


def _allowed(file: str, entry: Mapping[str, Any]) -> Allowed:
    files = _text(file, entry, "files", "an [[allowed]] entry")
    return Allowed(
        files=files,
        word=_text(file, entry, "word", files),
        name=str(entry.get("name", "")),
        reason=_text(file, entry, "reason", files),
    )


def _names(file: str, raw: Mapping[str, Any], table: str) -> tuple[AllowedName, ...]:
    return tuple(
        AllowedName(_text(file, entry, "name", f"a [[{table}]] entry"), _text(file, entry, "reason", str(entry)))
        for entry in raw.get(table, [])
    )


def _text(file: str, entry: Mapping[str, Any], key: str, what: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ListError(f"{file}: {what}: expected a text for {key!r}, got {value!r}")
    return value
