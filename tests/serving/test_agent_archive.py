import ast
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.toolchain.folders import ROOT
from serving import agent_archive
from serving.engines import CONTRACTS

DATA = "gpufleet/domain/data/"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name in agent_archive.files(ROOT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python as on an instance: without this project's packages."""
    return subprocess.run(
        [sys.executable, "-I", "-S", *arguments], capture_output=True, text=True, timeout=180, check=False, cwd="/"
    )


def test_the_packed_agent_starts_without_other_packages(tmp_path: Path) -> None:
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(agent_archive.build(ROOT))
    ran = run(archive, "--help")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("usage: ")


def test_each_packed_module_can_be_imported_and_the_tables_are_read(tmp_path: Path) -> None:
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(agent_archive.build(ROOT))
    sources = (name.removesuffix("/__init__.py").removesuffix(".py") for name in agent_archive.files(ROOT))
    modules = [name.replace("/", ".") for name in sources if not name.endswith(".csv")]
    read = "print(len(gpufleet.domain.catalogue.machines('aws')) > 10)"
    ran = run("-c", f"import sys; sys.path.insert(0, {str(archive)!r})\nimport {', '.join(modules)}\n{read}")
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def test_the_list_matches_the_agents_imports() -> None:
    found, ahead = set[str](), ["hosts/__init__.py", "hosts/node/__init__.py", "hosts/node/__main__.py"]
    while ahead:
        if (name := ahead.pop()) not in found:
            found.add(name)
            ahead += imported(ROOT / name)
    # the catalogue reads its tables by package name
    tables = {f"{DATA}{name}" for name in ("__init__.py", "gpus.csv", "machines.csv")}
    folders = tuple(f"{folder}/" for folder in agent_archive.CONTRACTS)
    contracts = {name for name in found if name.startswith(folders)}
    assert list(agent_archive.FILES) == sorted((found | tables) - contracts)


def imported(path: Path) -> Iterator[str]:
    """Yield the files of this repository that a file imports, at module level or in functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for module in modules:
            yield from files_of(module.split("."))


def files_of(parts: list[str]) -> Iterator[str]:
    """Yield a module's file, and the `__init__.py` files of its packages."""
    for length in range(1, len(parts) + 1):
        place = "/".join(parts[:length])
        yield from (name for name in (f"{place}/__init__.py", f"{place}.py") if (ROOT / name).is_file())


def test_the_same_sources_give_the_same_bytes(sources: Path) -> None:
    first = agent_archive.build(sources)
    for path in sources.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    assert agent_archive.build(sources) == first == agent_archive.build(ROOT)


def test_a_changed_source_gives_other_bytes(sources: Path) -> None:
    first = agent_archive.build(sources)
    (sources / "hosts/node/page.py").write_text("HELLO = 'good day'\n")
    assert agent_archive.build(sources) != first


def test_only_listed_files_are_packed(sources: Path) -> None:
    (sources / "hosts/node/other.py").write_text("")
    names = zipfile.ZipFile(io.BytesIO(agent_archive.build(sources))).namelist()
    assert names == ["__main__.py", *agent_archive.files(sources)]


def test_the_packed_agent_knows_the_engines_of_its_folder(sources: Path, tmp_path: Path) -> None:
    vllm = (sources / "serving/engines/vllm.py").read_text()
    (sources / "serving/engines/other.py").write_text(vllm.replace('kind="vllm"', 'kind="other"'))
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(agent_archive.build(sources))
    show = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\nfrom serving.engines import CONTRACTS\nprint(*CONTRACTS)"
    )
    ran = run("-c", show)
    assert ran.stdout.split() == sorted([*CONTRACTS, "other"]), ran.stderr


def test_a_folder_without_an_agent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        agent_archive.build(tmp_path)
