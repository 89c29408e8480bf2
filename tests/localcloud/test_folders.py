"""The location of the cache, and which installed programs are accepted."""

from pathlib import Path

import pytest

from gpufleet.toolchain.folders import find_folders
from gpufleet.toolchain.pulumi_cli import find_pulumi
from gpufleet.toolchain.tools import Tool, find_tool


@pytest.mark.parametrize(
    ("environment", "cache"),
    [
        pytest.param({"GPUFLEET_CACHE": "{t}/a b", "XDG_CACHE_HOME": "{t}/x", "HOME": "{t}"}, "a b", id="named"),
        pytest.param({"XDG_CACHE_HOME": "{t}/x", "HOME": "{t}"}, "x/gpu-fleet", id="XDG"),
        pytest.param({"HOME": "{t}/h"}, "h/.cache/gpu-fleet", id="home"),
        pytest.param({"HOME": "/proc/nowhere"}, "clone/.local/cache", id="home cannot be written"),
        pytest.param({"GPUFLEET_CACHE": "/proc/nowhere"}, "clone/.local/cache", id="named, cannot be written"),
    ],
)
def test_cache_is_the_first_writable_folder(tmp_path: Path, environment: dict[str, str], cache: str) -> None:
    named = {name: value.format(t=tmp_path) for name, value in environment.items()}
    assert find_folders(named, tmp_path / "clone").cache == tmp_path / cache


def program(folder: Path, name: str, output: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\necho '{output}'\n")
    file.chmod(0o755)
    return file


@pytest.mark.parametrize(
    ("output", "found"),
    [
        pytest.param("thing, version 2.42.0+ds", (2, 42), id="just new enough"),
        pytest.param("thing version 10.1", (10, 1), id="ten is more than two"),
        pytest.param("thing, version 1.8.2", None, id="too old"),
        pytest.param("nonsense", None, id="output without a version"),
    ],
)
def test_tool_is_accepted_by_its_version(tmp_path: Path, output: str, found: tuple[int, int] | None) -> None:
    program(tmp_path, "gpu-fleet-test-tool", output)
    tool = Tool(
        name="gpu-fleet-test-tool", package="p", purpose="tests", version_argument="--version", at_least=(2, 42)
    )
    result = find_tool(tool, {"PATH": f"/nowhere:{tmp_path}"})
    assert (result.version if result else None) == found


@pytest.mark.parametrize(
    ("on_path", "in_cache", "wins"),
    [
        pytest.param("v3.259.0", "v3.259.0", "path", id="PATH first"),
        pytest.param("v3.100.0", "v3.259.0", "cache", id="another version on PATH is passed over"),
        pytest.param(None, "v3.259.0", "cache", id="only the cache has it"),
        pytest.param("v3.100.0", "half built", None, id="a half-built cache does not count"),
        pytest.param(None, None, None, id="nowhere"),
    ],
)
def test_which_pulumi_is_used(tmp_path: Path, on_path: str | None, in_cache: str | None, wins: str | None) -> None:
    folders = find_folders({"GPUFLEET_CACHE": str(tmp_path / "cache")}, tmp_path)
    files = {
        "path": program(tmp_path / "bin", "pulumi", on_path) if on_path else None,
        "cache": program(folders.pulumi_folder / "bin", "pulumi", in_cache) if in_cache else None,
    }
    program(tmp_path / "bin", "pulumi-language-python", "")
    found = find_pulumi(folders, {"PATH": f"{tmp_path / 'bin'}:/usr/bin"})
    assert found == (files[wins] if wins else None)


def test_pulumi_on_path_without_its_language_host_is_skipped(tmp_path: Path) -> None:
    folders = find_folders({"GPUFLEET_CACHE": str(tmp_path / "cache")}, tmp_path)
    program(tmp_path / "bin", "pulumi", "v3.259.0")
    ours = program(folders.pulumi_folder / "bin", "pulumi", "v3.259.0")
    assert find_pulumi(folders, {"PATH": f"{tmp_path / 'bin'}:/usr/bin"}) == ours
