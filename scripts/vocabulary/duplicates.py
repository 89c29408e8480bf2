"""Finds names with two meanings: classes and packages of one name, and modules that differ by a plural s."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from scripts.vocabulary.lists import AllowedName, Lists

_NOT_THE_PRODUCT: Final = ("tests", "scripts", "benchmarks", "typings")


def duplicates(root: Path, paths: Iterable[str], lists: Lists) -> list[str]:
    """A line for each name that is used twice in the product, and for each exception that is not needed."""
    product = [path for path in paths if path.endswith(".py") and path.split("/")[0] not in _NOT_THE_PRODUCT]
    classes = _classes(root, product)
    packages = _packages(product)
    siblings = _siblings(product)
    return [
        *_reported("class", classes, lists.classes, "rename all but one, or"),
        *_reported("package", packages, lists.packages, "rename all but one, or"),
        *_reported("siblings", siblings, lists.siblings, "name each for what it does, or"),
    ]


def _classes(root: Path, product: Sequence[str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in product:
        for node in ast.parse((root / path).read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{path}:{node.lineno}")
    return {name: places for name, places in found.items() if len(places) > 1}


def _packages(product: Sequence[str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in map(PurePosixPath, product):
        if path.name == "__init__.py":
            found[path.parent.name].append(str(path.parent))
    return {name: sorted(places) for name, places in found.items() if len(places) > 1}


def _siblings(product: Sequence[str]) -> Mapping[str, list[str]]:
    stems = {path.removesuffix("/__init__.py").removesuffix(".py") for path in product}
    return {stem: [stem, f"{stem}s"] for stem in sorted(stems) if f"{stem}s" in stems}


def _reported(
    kind: str, found: Mapping[str, Sequence[str]], allowed: Sequence[AllowedName], remedy: str
) -> Iterator[str]:
    names = {one.name for one in allowed}
    for name in sorted(found.keys() - names):
        advice = f"{remedy} add [[{kind}]] with a reason to allowed.toml"
        yield f"{kind} {name!r} is defined {len(found[name])} times ({', '.join(found[name])}): {advice}"
    for name in sorted(names - found.keys()):
        yield f"allowed.toml: {kind} {name!r} is not defined twice: remove the entry"
