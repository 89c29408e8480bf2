"""`python -m scripts.licences`: compares the licence of every locked package with the list of allowed licences.

Licences come from the metadata of installed packages: `License-Expression` (PEP 639), a `License` that is an SPDX
expression, or classifiers. `scripts/licences.toml` has the list, the exceptions, and licences that are missing in the
metadata.
"""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final, cast

from license_expression import ExpressionError, LicenseSymbol, get_spdx_licensing

from scripts.audit import normalized

ROOT: Final = Path(__file__).parents[1]
LIST: Final = Path(__file__).with_name("licences.toml")
OURS: Final = "gpu-fleet"
CLASSIFIERS: Final = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""SPDX names of classifiers. Two classifiers have no version; all versions of these licences are permissive, so the
most common one is used.
"""


class ListError(ValueError):
    """The list of licences is invalid. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The list of allowed licences."""

    licences: frozenset[str]
    exceptions: Mapping[str, str]
    """Maps a package to an additional licence that is allowed for it."""
    declared: Mapping[str, str]
    """Maps a package to its licence, if the metadata do not contain it."""


def read_list(path: Path = LIST) -> Allowed:
    """Read the list. Raises ListError, OSError."""
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
        exceptions: dict[str, str] = {}
        for name, entry in raw["exceptions"].items():
            if not entry["reason"].strip():
                raise ListError(f"{path.name}: exceptions.{name}: has no reason")
            exceptions[name] = entry["licence"]
        return Allowed(frozenset(raw["allowed"]), exceptions, dict(raw["declared"]))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ListError(f"{path.name}: is not a list of licences: {error}") from error


def locked(lock: str) -> Mapping[str, str]:
    """Return the versions of every package in uv.lock except this project, by name."""
    found: dict[str, str] = {}
    for one in tomllib.loads(lock)["package"]:
        if (name := str(one["name"])) != OURS:
            found[name] = ", ".join(filter(None, (found.get(name), str(one["version"]))))
    return found


@cache
def installed() -> Mapping[str, str]:
    """Return the licence in the metadata of every package of this environment, by name. "" if there is none."""
    return {normalized(found.name): stated(cast(Message, found.metadata)) for found in distributions()}


def stated(metadata: Message) -> str:
    """Return an SPDX expression from metadata, or "" if there is none."""
    for field in ("License-Expression", "License"):
        text = str(metadata.get(field) or "").strip()
        if text and "\n" not in text and (found := spdx(text)):
            return found
    ends = [str(line).rsplit(" :: ", 1)[-1] for line in metadata.get_all("Classifier", []) if "License ::" in line]
    return " AND ".join(dict.fromkeys(CLASSIFIERS[end] for end in ends if end in CLASSIFIERS))


def spdx(text: str) -> str:
    """Return the expression in SPDX notation, or "" for any other text."""
    try:
        parsed = _LICENSING.parse(text, validate=True, strict=True)
    except ExpressionError:
        return ""
    return "" if parsed is None else parsed.render()


def is_allowed(expression: str, licences: frozenset[str]) -> bool:
    """Return whether the list allows an expression: one side of OR, both sides of AND."""
    return _holds(_LICENSING.parse(expression, validate=True, strict=True), licences)


def _holds(node: Any, licences: frozenset[str]) -> bool:
    if isinstance(node, _LICENSING.OR):
        return any(_holds(part, licences) for part in node.args)
    if isinstance(node, _LICENSING.AND):
        return all(_holds(part, licences) for part in node.args)
    return isinstance(node, LicenseSymbol) and node.key in licences


def findings(packages: Mapping[str, str], found: Mapping[str, str], allowed: Allowed) -> list[str]:
    """Return a line for each package whose licence is unknown or not allowed: name, version, licence, remedy."""
    lines: list[str] = []
    for name, version in sorted(packages.items()):
        licence = licence_of(name, found, allowed)
        if not licence:
            why = "its metadata names no licence" if name in found else "it is not installed here"
            remedy = f"read it in its sources and write {name} into [declared] of scripts/licences.toml"
            lines.append(f"{name} {version}: unknown licence ({why}): {remedy}")
        elif not is_allowed(licence, allowed.licences | {allowed.exceptions.get(name, "")}):
            remedy = (
                "use another package, or let a code owner add an exception with a reason to scripts/licences.toml"
            )
            lines.append(f"{name} {version}: {licence} is not allowed: {remedy}")
    unused = sorted((allowed.exceptions.keys() | allowed.declared.keys()) - packages.keys())
    return lines + [f"{name}: is in scripts/licences.toml and not in uv.lock: remove it there" for name in unused]


def licence_of(name: str, found: Mapping[str, str], allowed: Allowed) -> str:
    """Return the SPDX expression of one package, or "" if it is unknown."""
    return found.get(name) or allowed.declared.get(name, "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code. 0: all licences are allowed. 1: one is not. 2: the list cannot be read."""
    del arguments
    try:
        packages = locked((ROOT / "uv.lock").read_text("utf-8"))
        lines = findings(packages, installed(), read_list())
    except (ListError, OSError, ExpressionError) as error:
        print(f"licences: failed: {error}", file=sys.stderr)
        return 2
    for line in lines:
        print(line)
    print(f"licences: {len(lines)} findings in {len(packages)} packages", file=sys.stderr)
    return 1 if lines else 0


_LICENSING: Final = get_spdx_licensing()

if __name__ == "__main__":
    sys.exit(main())
