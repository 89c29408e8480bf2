"""The types of resources that the program makes, and within which of its components."""

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
"""Where the program is."""
OF_ENGINE: Final = (STACK, "pulumi:providers:aws", "pulumi:providers:gcp")
"""What the engine adds to every plan: the stack, and the provider that the stack's configuration describes."""


class IncompleteError(Exception):
    """The matrix of settings does not reach all of the program; names what it misses."""


def of(program: Program) -> dict[str, list[str]]:
    """Each type to the types of the components that make it, as a URN joins them; empty: the stack itself.

    Raises IncompleteError where code could make a resource that no stack of the matrix made.
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
    """Calls of a resource's class that no stack of the matrix reached: the same type may be made elsewhere."""
    for path, node, made in _classes():
        if isinstance(node, ast.Call) and not any(
            (path, line) in program.lines for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        ):
            yield f"{path}:{node.lineno}: {made.__name__}"


def _never_made(types: set[str]) -> Iterator[str]:
    """Types of providers that the code names in any way, a variable's value say, and that no stack had."""
    for path, node, made in _classes():
        kind = get_type_token(made)
        if kind is not None and kind not in types:
            yield f"{path}:{node.lineno}: {kind}"


def _classes() -> Iterator[tuple[str, ast.expr, type[pulumi.Resource]]]:
    """Every place of the code that calls or names a class of resources: file, expression, class."""
    for file in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        if file.name == "__main__.py":
            continue  # it runs the program, and makes nothing itself
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
    """What a name, or an attribute of one, stands for in a module; None for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_resolved(node.value, names), node.attr, None)
    return None
