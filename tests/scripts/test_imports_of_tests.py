"""Test modules share code in `tests/fixtures` and do not import each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.toolchain.folders import ROOT


def imported(source: str) -> Iterator[str]:
    """The modules of `tests` that a module imports; for `from a import b`, both `a` and `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name for name in found if name.startswith(("tests.", ".")))


def imported_test_modules(source: str) -> list[str]:
    names = {name for name in imported(source) if any(part.startswith("test_") for part in name.split("."))}
    modules = {name for name in names if name.rpartition(".")[2].startswith("test_")}
    return sorted(modules)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from tests.app.test_feed import Fed", ["tests.app.test_feed"]),
        ("import tests.app.test_feed", ["tests.app.test_feed"]),
        ("def f():\n    from tests.app import test_feed", ["tests.app.test_feed"]),
        ("from .test_feed import Fed", [".test_feed"]),
        ("from . import test_feed", ["..test_feed"]),
        ("from tests.fixtures.logs import RecordedLog\nimport test_of_a_library", []),
    ],
)
def test_imports_of_test_modules_are_found(source: str, found: list[str]) -> None:
    assert imported_test_modules(source) == found


def test_no_test_module_imports_another() -> None:
    files = sorted(path for path in (ROOT / "tests").rglob("*.py"))
    assert len(files) > 300
    found = {_name(path): names for path in files if (names := imported_test_modules(path.read_text("utf-8")))}
    assert not found, "move what they share to tests/fixtures"


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
