"""Tests that setup compares every installation with a hash from this repository before use."""

import hashlib
import io
import os
import re
import shutil
import tarfile
import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from gpufleet.toolchain.folders import PULUMI_VERSION, ROOT, Folders, find_folders
from scripts.setup import axe_core, go_build, language_host, pulumi_cli
from scripts.setup.pulumi_cli import Release
from scripts.setup.running import SetupError

SCRIPT = f"#!/bin/sh\necho v{PULUMI_VERSION}\n"


@contextmanager
def serving(folder: Path) -> Generator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def archive(folder: Path, *names: str) -> Path:
    path = folder / "release.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(SCRIPT), 0o755
            packed.addfile(entry, io.BytesIO(SCRIPT.encode()))
    return path


def fetched(tmp_path: Path, path: Path, sha256: str = "") -> list[str]:
    into = tmp_path / "into"
    into.mkdir()
    with serving(path.parent) as place:
        digest = sha256 or hashlib.sha256(path.read_bytes()).hexdigest()
        pulumi_cli.download(Release(f"{place}/{path.name}", digest), into)
    return sorted(one.name for one in (into / "bin").iterdir())


def test_a_release_with_the_right_hash_is_unpacked(tmp_path: Path) -> None:
    path = archive(tmp_path, "pulumi/pulumi", "pulumi/pulumi-language-python")
    assert fetched(tmp_path, path) == ["pulumi", "pulumi-language-python"]
    assert os.access(tmp_path / "into" / "bin" / "pulumi", os.X_OK)


def test_a_release_with_another_hash_is_not_unpacked_and_both_are_named(tmp_path: Path) -> None:
    path = archive(tmp_path, "pulumi/pulumi")
    with pytest.raises(SetupError, match=rf"has SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()}.*{'0' * 64}"):
        fetched(tmp_path, path, "0" * 64)
    assert [one.name for one in (tmp_path / "into").iterdir()] == ["release.tar.gz"]


def climbing(folder: Path) -> Path:
    return archive(folder, "pulumi/pulumi", "../../climbed")


def without_pulumi(folder: Path) -> Path:
    return archive(folder, "pulumi/other")


def no_archive(folder: Path) -> Path:
    path = folder / "release.tar.gz"
    path.write_bytes(b"no archive")
    return path


@pytest.mark.parametrize("make", [climbing, without_pulumi, no_archive], ids=lambda value: value.__name__)
def test_an_archive_that_cannot_be_used_is_refused_with_a_remedy(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    with pytest.raises(SetupError, match="put `pulumi`"):
        fetched(tmp_path, make(tmp_path))
    assert not (tmp_path.parent / "climbed").exists()


def test_a_release_that_is_not_there_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    with serving(tmp_path) as place, pytest.raises(SetupError, match="(?s)404.*put `pulumi`"):
        pulumi_cli.download(Release(f"{place}/gone.tar.gz", "0" * 64), tmp_path / "into")


@pytest.mark.parametrize(
    ("system", "machine", "known"),
    [
        ("linux", "x86_64", True),
        ("linux", "aarch64", True),
        ("darwin", "arm64", True),
        ("darwin", "x86_64", True),
        ("linux", "riscv64", False),
        ("win32", "AMD64", False),
    ],
)
def test_only_systems_with_a_committed_hash_get_a_release(system: str, machine: str, known: bool) -> None:
    release = pulumi_cli.release_of(system, machine)
    assert (release is not None) is known
    assert release is None or (f"/v{PULUMI_VERSION}/" in release.url and re.fullmatch("[0-9a-f]{64}", release.sha256))


def test_the_go_modules_are_of_the_pinned_version_and_all_have_a_hash() -> None:
    module = go_build.MODULES / "pulumi"
    wanted = dict(re.findall(r"^\t(\S+) (v\S+)", (module / "go.mod").read_text(), re.MULTILINE))
    assert (
        wanted["github.com/pulumi/pulumi/pkg/v3"] == wanted["github.com/pulumi/pulumi/sdk/v3"] == f"v{PULUMI_VERSION}"
    )
    hashed = {tuple(line.split()[:2]) for line in (module / "go.sum").read_text().splitlines()}
    assert set(wanted.items()) <= hashed


@pytest.mark.skipif(shutil.which("go") is None, reason="there is no `go` on PATH")
def test_a_go_module_with_another_hash_is_not_built(tmp_path: Path) -> None:
    module = tmp_path / "module"
    shutil.copytree(go_build.MODULES / "actionlint", module)
    sums = (module / "go.sum").read_text()
    name = "github.com/rhysd/actionlint v1.7.12 h1:"
    assert name in sums
    (module / "go.sum").write_text(re.sub(re.escape(name) + r"\S+", f"{name}{'A' * 43}=", sums))
    out = tmp_path / "actionlint"
    with pytest.raises(SetupError, match="checksum mismatch"):
        go_build.build(
            module,
            ["go", "build", "-o", str(out), "github.com/rhysd/actionlint/cmd/actionlint"],
            doing="building it",
            log=tmp_path / "log",
            limit_s=120,
            environment=go_build.environment_of(find_folders(os.environ)),
        )
    assert not out.exists()


def test_a_go_build_ignores_options_that_weaken_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFLAGS", "-mod=mod -insecure")
    monkeypatch.setenv("GOINSECURE", "*")
    environment = go_build.environment_of(find_folders(os.environ))
    assert environment["GOFLAGS"] == "-mod=readonly"
    assert "GOINSECURE" not in environment


def test_a_language_host_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    """A compromised package index could return another file."""
    root = tmp_path / "clone"
    root.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, root / name)
    for source in language_host.SOURCES:
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy2
        (root / source).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / source, root / source)
    lock = (ROOT / "uv.lock").read_text()
    (root / "uv.lock").write_text(re.sub(r"sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", lock))
    cache = tmp_path / "cache"
    folders = Folders(root=root, cache=cache)
    (folders.pulumi_folder / "bin").mkdir(parents=True)
    (cache / "uv").symlink_to(find_folders(os.environ).cache / "uv")
    with pytest.raises(SetupError, match="(?i)hash"):
        language_host.install(folders)
    assert not list((folders.pulumi_folder / "bin").iterdir())


def install_axe_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: str = "package/axe.min.js") -> Path:
    """Install from a package with `SCRIPT` as this member, by a fake npm. Returns the path of the script."""
    package, npm = archive(tmp_path, member), tmp_path / "npm"
    npm.write_text(f'#!/bin/sh\nfor last; do :; done\ncp {package} "$last/axe-core-{axe_core.VERSION}.tgz"\n')
    npm.chmod(0o755)
    monkeypatch.setattr(axe_core.shutil, "which", lambda _: str(npm))
    folders = Folders(root=tmp_path, cache=tmp_path / "cache")
    folders.cache.mkdir()
    try:
        axe_core.install(folders)
    finally:
        assert not list(folders.cache.glob(".*")), "nothing temporary is left"
    return axe_core.place(folders)


def test_axe_core_with_the_pinned_hash_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axe_core, "SHA256", hashlib.sha256(SCRIPT.encode()).hexdigest())
    assert install_axe_core(tmp_path, monkeypatch).read_text() == SCRIPT


@pytest.mark.parametrize(
    ("member", "message"),
    [
        pytest.param("package/axe.min.js", f"expected {axe_core.SHA256}: it is not used", id="another hash"),
        pytest.param("package/axe.js", "package/axe.min.js cannot be read", id="another file"),
    ],
)
def test_another_axe_core_is_not_installed(
    member: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SetupError, match=re.escape(message)):
        install_axe_core(tmp_path, monkeypatch, member)
    assert not axe_core.place(Folders(root=tmp_path, cache=tmp_path / "cache")).exists()


def test_axe_core_without_npm_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axe_core.shutil, "which", lambda _: None)
    with pytest.raises(SetupError, match=r"no `npm` on PATH.*install Node\.js"):
        axe_core.install(Folders(root=tmp_path, cache=tmp_path))


def test_every_locked_package_comes_from_pypi_with_a_hash() -> None:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    others = [one for one in packages if one["name"] not in ("gpu-fleet", "gpu-fleet-localcloud")]
    assert {one["source"]["registry"] for one in others} == {"https://pypi.org/simple"}
    for one in others:
        files = [*one.get("wheels", []), *([one["sdist"]] if "sdist" in one else [])]
        assert files and all(file["hash"].startswith("sha256:") for file in files), one["name"]
        assert all(file["url"].startswith("https://files.pythonhosted.org/") for file in files), one["name"]


def test_the_build_backend_is_locked_too() -> None:
    """Otherwise each build would download the newest version in the index."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = {re.split(r"[<>=\[ ]", one)[0] for one in project["dependency-groups"]["dev"]}
    assert {"hatchling", "editables"} <= names
    assert project["tool"]["uv"]["no-build-isolation-package"] == ["gpu-fleet", "gpu-fleet-localcloud"]
