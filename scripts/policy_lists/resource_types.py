"""Collects the resource types that the program creates, and the components that contain them."""

import ast
import importlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pulumi
from pulumi.type_token import get_type_token

from scripts.policy_lists.matrix import ROOT
from scripts.policy_lists.program import STACK, Program

PACKAGES: Final = ("components", "stacks")
"""Packages of the program."""
OF_ENGINE: Final = (STACK, "pulumi:providers:aws", "pulumi:providers:gcp")
"""Resources that the engine adds to every plan: the stack, and the provider that the stack's configuration
describes.
"""


class IncompleteError(Exception):
    """The matrix of settings does not cover the whole program. The message contains what is missing."""


def of(program: Program) -> dict[str, list[str]]:
    """Return for each type the types of its parent components, as a URN joins them. Empty: the parent is the stack.

    Raises IncompleteError if code could create a resource that no stack of the matrix created.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for kind in OF_ENGINE:
        found[kind].add("")
    for resource in program.resources:
        found[resource.type].add(resource.urn.split("::")[2].rpartition("$")[0])
    missed = sorted({*_never_run(program), *_never_made(set(found))})
    if missed:
        raise IncompleteError(
            "no settings of scripts/policy_lists/matrix.py reach this; add some:\n  " + "\n  ".join(missed)
        )
    return {kind: sorted(within) for kind, within in found.items()}


def _never_run(program: Program) -> Iterator[str]:
    """Yield constructor calls that no stack of the matrix executed. Another call may have created the same type."""
    for path, node, made in _classes():
        if isinstance(node, ast.Call) and not any(
            (path, line) in program.lines for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        ):
            yield f"{path}:{node.lineno}: {made.__name__}"


def _never_made(types: set[str]) -> Iterator[str]:
    """Yield provider types that the code refers to in any form, such as in a variable, and that no stack contains."""
    for path, node, made in _classes():
        kind = get_type_token(made)
        if kind is not None and kind not in types:
            yield f"{path}:{node.lineno}: {kind}"


def _classes() -> Iterator[tuple[str, ast.expr, type[pulumi.Resource]]]:
    """Yield every expression in the code that calls or names a resource class: file, expression, class."""
    for file in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        if file.name == "__main__.py":
            continue  # it runs the program and creates no resource itself
        module = importlib.import_module(_module(file))
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            named = node.func if isinstance(node, ast.Call) else node
            made = _resolved(named, vars(module))
            if isinstance(node, ast.expr) and isinstance(made, type) and issubclass(made, pulumi.Resource):
                yield str(file.relative_to(ROOT)), node, made


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _resolved(node: ast.AST, names: dict[str, Any]) -> Any:
    """Return the object that a name, or an attribute of one, refers to in a module. None for other expressions."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_resolved(node.value, names), node.attr, None)
    return None
