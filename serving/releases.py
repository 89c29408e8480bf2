"""Releases of engines and exporters, and ranges of them. Values only, standard library only."""

import re
from dataclasses import dataclass
from typing import Final, Self

_VERSION: Final = re.compile(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(?![\d.]*\d{10})")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A release of a program. Suffixes (`rc1`, `.post1`, `+cu129`) do not change the meaning of numbers: ignored."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the version in a text such as `0.32.0`, `v0.5.23.post1` or `1.2.0rc3`.

        Raises:
            ValueError: the text is not a version.
        """
        match = _VERSION.match(text.strip())
        if match is None:
            raise ValueError(f"version: expected numbers such as 0.32.0, got {text[:40]!r}")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """A range of releases: from `since` (included) to `before` (excluded). None: no limit on that side."""

    since: Version | None = None
    before: Version | None = None

    def __contains__(self, version: Version) -> bool:
        return (self.since is None or version >= self.since) and (self.before is None or version < self.before)

    def __str__(self) -> str:
        since = "" if self.since is None else f"{self.since} or later"
        before = "" if self.before is None else f"before {self.before}"
        return ", ".join(part for part in (since, before) if part) or "all"


def versions(since: str | None = None, before: str | None = None) -> Versions:
    """Return a range of releases from two texts. Raises ValueError."""
    return Versions(
        since=None if since is None else Version.parse(since),
        before=None if before is None else Version.parse(before),
    )
