"""Tests of `make setup` with missing requirements: it reports them and the remedy within seconds, and starts
nothing.
"""

import fcntl
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpufleet.toolchain.folders import ROOT, Folders, find_folders
from scripts.setup import focus_validator, pulumi_cli, python_env
from scripts.setup.running import SetupError

UNREACHABLE = "http://127.0.0.1:9"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return the files of a clone that setup reads, in a path with a space."""
    folder = tmp_path / "a clone"
    for name in ("scripts", "gpufleet", "localcloud"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "uv.lock", "Makefile"):
        shutil.copy2(ROOT / name, folder / name)
    return folder


def begin(clone: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "scripts.setup"],
        cwd=clone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"HOME": str(clone.parent / "home"), "LANG": "C.UTF-8", **environment},
    )


def setup(clone: Path, **environment: str) -> tuple[int, str]:
    """Return the exit code and the output."""
    with begin(clone, **environment) as process:
        output, _ = process.communicate(timeout=180)
    return process.returncode, output


def test_missing_go_and_network_are_reported_before_the_start(clone: Path) -> None:
    code, output = setup(clone, PATH="/usr/bin:/bin", HTTPS_PROXY=UNREACHABLE, HTTP_PROXY=UNREACHABLE)
    assert code == 1
    assert "there is no `go` on PATH" in output
    assert "https://go.dev/dl" in output
    assert "Traceback" not in output
    assert not (clone / ".venv").exists()


def test_go_without_a_module_proxy_is_not_sufficient(clone: Path, tmp_path: Path) -> None:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text('#!/bin/sh\n[ "$1" = env ] && echo https://proxy.invalid || exit 1\n')
    go.chmod(0o755)
    code, output = setup(clone, PATH=f"{go.parent}:/usr/bin:/bin", HTTPS_PROXY=UNREACHABLE)
    assert code == 1
    assert "GOPROXY is 'https://proxy.invalid'" in output


def test_another_setup_is_reported_and_awaited(clone: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    lock = cache / ".setup.lock"
    lock.write_text("process 1 of /another/clone\n")
    environment = {"PATH": "/usr/bin:/bin", "GPUFLEET_CACHE": str(cache), "HTTPS_PROXY": UNREACHABLE}
    with lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with begin(clone, **environment) as process:
            assert process.stdout is not None
            assert any("waiting for another setup (process 1 of /another/clone)" in line for line in process.stdout)
            fcntl.flock(held, fcntl.LOCK_UN)
            process.communicate(timeout=180)
    assert process.returncode == 1


def test_with_a_read_only_home_the_cache_is_in_the_clone(clone: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("no folder, so nothing can be made below it")
    setup(clone, PATH="/usr/bin:/bin", HTTPS_PROXY=UNREACHABLE)
    assert (clone / ".local" / "cache" / ".setup.lock").is_file()


def test_the_activated_environment_provides_the_pulumi_cli(tmp_path: Path) -> None:
    folders = find_folders({"HOME": str(tmp_path)}, tmp_path)
    folders.python.parent.mkdir(parents=True)
    own_link = folders.python.with_name("pulumi")
    for version in ("1", "2", "2"):
        theirs = tmp_path / version / "pulumi"
        theirs.parent.mkdir(exist_ok=True)
        theirs.touch()
        pulumi_cli.link(theirs, folders)
        assert own_link.resolve() == theirs


def test_the_pinned_hashes_are_of_the_releases_that_are_used() -> None:
    assert f"uv=={python_env.UV_VERSION} \\" in python_env.UV_REQUIREMENTS.read_text()
    assert f"focus-validator=={focus_validator.VERSION} \\" in focus_validator.REQUIREMENTS.read_text()


def test_a_uv_with_another_hash_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compromised package index could return another file."""
    wheel = tmp_path / "index" / f"uv-{python_env.UV_VERSION}-py3-none-any.whl"
    wheel.parent.mkdir()
    info = f"uv-{python_env.UV_VERSION}.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {python_env.UV_VERSION}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    folders = Folders(root=tmp_path, cache=tmp_path / "cache")
    folders.cache.mkdir()
    with pytest.raises(SetupError, match="whose hash is not in .*PIP_INDEX_URL"):
        python_env.install_uv(folders)
    assert list(folders.cache.iterdir()) == []
