import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from serving import agent_archive


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for name, body in {
        "node/__init__.py": "",
        "node/__main__.py": "import sys\nfrom gpufleet.domain import words\nprint(words.HELLO, sys.argv[1])\n",
        "gpufleet/__init__.py": "",
        "gpufleet/domain/__init__.py": "",
        "gpufleet/domain/words.py": "HELLO = 'hello'\n",
        "gpufleet/settings/__init__.py": "import pydantic\n",
        "gpufleet/settings/document/fields.py": "import pydantic\n",
        "gpufleet/domain/__pycache__/words.cpython-311.pyc": "old",
        "serving/__init__.py": "",
        "clouds/__init__.py": "",
        "cli/main.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(body)
    return tmp_path


def names(packed: bytes) -> set[str]:
    return set(zipfile.ZipFile(io.BytesIO(packed)).namelist())


def test_the_packed_agent_runs(sources: Path) -> None:
    archive = sources / "agent.pyz"
    archive.write_bytes(agent_archive.build(sources))
    ran = subprocess.run(
        [sys.executable, "-I", archive, "boot"], capture_output=True, text=True, timeout=30, check=False, cwd="/"
    )
    assert (ran.stdout, ran.stderr) == ("hello boot\n", "")


def test_the_same_sources_give_the_same_bytes(sources: Path) -> None:
    first = agent_archive.build(sources)
    for path in sources.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    assert agent_archive.build(sources) == first


def test_a_changed_source_gives_other_bytes(sources: Path) -> None:
    first = agent_archive.build(sources)
    (sources / "gpufleet/domain/words.py").write_text("HELLO = 'good day'\n")
    assert agent_archive.build(sources) != first


def test_only_what_an_instance_needs_travels(sources: Path) -> None:
    assert names(agent_archive.build(sources)) == {
        "__main__.py",
        "node/__init__.py",
        "node/__main__.py",
        "gpufleet/__init__.py",
        "gpufleet/domain/__init__.py",
        "gpufleet/domain/words.py",
        "serving/__init__.py",
        "clouds/__init__.py",
    }


def test_without_an_agent_there_is_nothing_to_pack(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no node/__main__.py"):
        agent_archive.build(tmp_path)
