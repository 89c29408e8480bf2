"""Finds names with two meanings: classes and packages with the same name, and modules that differ by a plural s.

Each distribution is checked separately. Implementations for each cloud, such as `components/aws/bucket.py` and
`components/gcp/bucket.py`, share their names on purpose and count once.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path, PurePosixPath
from typing import Final

from scripts.vocabulary.lists import AllowedName, Lists

_NOT_THE_PRODUCT: Final = ("tests", "scripts", "benchmarks", "typings")
_APART: Final = ("localcloud/src/localcloud/provider/", "localcloud/")
"""Paths that are compared only among themselves: another distribution, and its classes that have names of Pulumi
resource types.
"""
_CLOUDS: Final = {"aws": "*", "gcp": "*"}


def duplicates(root: Path, paths: Iterable[str], lists: Lists) -> list[str]:
    """Return a line for each name that the product defines twice, and for each unused exception."""
    found = _Names()
    for _, group in groupby(sorted(filter(_is_product, paths), key=_distribution), key=_distribution):
        found.add(root, list(group))
    return [
        *_reported("class", found.classes, lists.classes, "rename all but one, or"),
        *_reported("package", found.packages, lists.packages, "rename all but one, or"),
        *_reported("siblings", found.siblings, lists.siblings, "name each for what it does, or"),
    ]


@dataclass(slots=True)
class _Names:
    """Names that are defined more than once, with their locations."""

    classes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    packages: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    siblings: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, root: Path, paths: Sequence[str]) -> None:
        """Add the names of files. `paths` belong to one distribution."""
        modules = {path.removesuffix("/__init__.py").removesuffix(".py"): path for path in paths}
        packages = [str(PurePosixPath(path).parent) for path in paths if path.endswith("/__init__.py")]
        _merge(self.classes, _repeated((name, path) for path in paths for name in _classes(root / path)))
        _merge(self.packages, _repeated((PurePosixPath(one).name, one) for one in packages))
        _merge(self.siblings, {one: [one, f"{one}s"] for one in sorted(modules) if f"{one}s" in modules})


def _is_product(path: str) -> bool:
    return path.endswith(".py") and path.split("/")[0] not in _NOT_THE_PRODUCT


def _distribution(path: str) -> str:
    return next((part for part in _APART if path.startswith(part)), "")


def _classes(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def _repeated(names: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    found: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for name, place in names:
        anywhere = tuple(_CLOUDS.get(part, part) for part in place.split("/"))
        found.setdefault(name, {}).setdefault(anywhere, []).append(place)
    return {name: list(chain(*places.values())) for name, places in found.items() if len(places) > 1}


def _merge(into: dict[str, list[str]], found: Mapping[str, list[str]]) -> None:
    for name, places in found.items():
        into.setdefault(name, []).extend(places)


def _reported(
    kind: str, found: Mapping[str, Sequence[str]], allowed: Sequence[AllowedName], remedy: str
) -> Iterator[str]:
    names = {one.name for one in allowed}
    for name in sorted(found.keys() - names):
        advice = f"{remedy} add [[{kind}]] with a reason to allowed.toml"
        yield f"{kind} {name!r} is defined {len(found[name])} times ({', '.join(found[name])}): {advice}"
    for name in sorted(names - found.keys()):
        yield f"allowed.toml: {kind} {name!r} is not defined twice: remove the entry"
