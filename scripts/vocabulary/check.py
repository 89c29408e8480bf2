"""Compares the files of a tree with the lists."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.vocabulary.lists import Allowed, Lists
from scripts.vocabulary.parts import IDENTIFIERS, Kind, Part, parts_of, words_of


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A banned word with its position. `word`: the entry of `banned.toml`; `found`: the identifier or the match."""

    path: str
    line: int
    kind: str
    word: str
    found: str
    use: str

    def __str__(self) -> str:
        kind = "identifier" if self.kind in IDENTIFIERS and self.kind != Kind.MODULE else self.kind
        return f"{self.path}:{self.line}: {kind} {self.found!r}: use {self.use}"


@dataclass(slots=True)
class Checked:
    """The findings of a tree, and the exceptions that were used."""

    findings: list[Finding] = field(default_factory=list[Finding])
    used: set[Allowed] = field(default_factory=set[Allowed])


def check_files(root: Path, paths: Iterable[str], lists: Lists) -> Checked:
    """Check files. `paths` are relative to the root. Raises SyntaxError, OSError."""
    checked = Checked()
    for path in paths:
        for part in parts_of(path, (root / path).read_text("utf-8")):
            for finding in _matches(path, part, lists):
                excused = [one for one in lists.allowed if one.covers(path, finding.word, part.text)]
                checked.used.update(excused)
                if not excused:
                    checked.findings.append(finding)
    checked.findings = sorted(set(checked.findings))
    return checked


def _matches(path: str, part: Part, lists: Lists) -> Iterator[Finding]:
    is_name = part.kind in IDENTIFIERS
    text = words_of(part.text) if is_name else part.text
    for banned in lists.banned:
        if part.kind in banned.where and (match := banned.pattern.search(text)):
            found = part.text if is_name else match[0]
            yield Finding(path, part.line, part.kind, banned.word, found, banned.use)


def unused(lists: Lists, used: set[Allowed]) -> list[str]:
    """Return a line for each exception that was not used."""
    return [
        f"allowed.toml: {one.files}: {one.word!r} is not found there any more: remove the entry"
        for one in lists.allowed
        if one not in used
    ]


def by_package(findings: Sequence[Finding]) -> dict[str, int]:
    """Return the number of findings by top-level package, the highest first. tests, `gpufleet` and `hosts` are split
    into subpackages.
    """
    counts: dict[str, int] = {}
    for finding in findings:
        package = package_of(finding.path)
        counts[package] = counts.get(package, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def package_of(path: str) -> str:
    """Return the package of a file, as `by_package` names it."""
    folders = path.split("/")[:-1]
    return "/".join(folders[: 2 if folders[:1] in (["tests"], ["gpufleet"], ["hosts"]) else 1]) or "."
