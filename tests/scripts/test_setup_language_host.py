"""Tests that setup copies every file of this repository that the language host imports, because the host has its own
environment.
"""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.toolchain.folders import ROOT, find_folders
from scripts.setup.language_host import LOCALCLOUD, SOURCES, constraints
from scripts.setup.python_env import uv_environment, uv_of

OURS = ("gpufleet", "localcloud", "serving")


def sources() -> set[Path]:
    found: set[Path] = set()
    for source in SOURCES:
        path = ROOT / source
        found |= set(path.rglob("*.py")) if path.is_dir() else {path}
    return found


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def needed(name: str) -> set[Path]:
    """Return the files of a module and of its parent packages. If the name is not a module, return the files of its
    package.
    """
    parts = name.split(".")
    top = ROOT / LOCALCLOUD if parts[0] == "localcloud" else ROOT
    packages = [top.joinpath(*parts[:length], "__init__.py") for length in range(1, len(parts) + 1)]
    module = top.joinpath(*parts).with_suffix(".py")
    return {path for path in (*packages, module) if path.is_file()}


def test_setup_copies_every_module_that_the_language_host_imports() -> None:
    known = sources()
    for file in sorted(known):
        for name in imports(file):
            if name.partition(".")[0] in OURS:
                assert needed(name) <= known, f"{file.relative_to(ROOT)} imports {name}"


def test_constraints_hold_pinned_packages_and_no_path_of_this_repository() -> None:
    folders = find_folders(os.environ)
    uv = uv_of(folders)
    if not uv.is_file():
        pytest.skip("needs uv, which `make setup` installs")
    lines = constraints(str(uv), folders, uv_environment(folders)).splitlines()
    packages = [line for line in lines if not line.startswith(" ")]
    assert any(line.startswith("pulumi==") for line in packages)
    assert [line for line in packages if "==" not in line] == []
