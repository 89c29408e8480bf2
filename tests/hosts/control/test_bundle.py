"""The bundle: complete, reproducible, and able to run without other parts of the project."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from app.errors import AppError
from cli import plugins
from cli.commands import build
from gpufleet.toolchain.folders import ROOT
from hosts.control import bundle


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bundle.Bundle:
    return bundle.build(ROOT, None, tmp_path_factory.mktemp("bundle") / bundle.ARCHIVE_NAME)


def test_the_digest_identifies_the_bundle(made: bundle.Bundle, tmp_path: Path) -> None:
    again = bundle.build(ROOT, None, tmp_path / "again.tar.gz")
    assert again.sha256 == made.sha256 == hashlib.sha256(made.path.read_bytes()).hexdigest()
    assert bundle.key(made.sha256) == f"control/bundles/{made.sha256}/gpufleet-control.tar.gz"


def test_the_bundle_contains_every_package_and_no_compiled_file(made: bundle.Bundle) -> None:
    with tarfile.open(made.path) as archive:
        names = archive.getnames()
    for package in bundle.package_names(ROOT):
        assert f"lib/{package}/__init__.py" in names
    assert "lib/gpufleet/ledger/migrations/env.py" in names
    assert not [name for name in names if "__pycache__" in name]
    assert made.files == len(names) - 2


def test_the_bundle_contains_no_emulated_cloud(made: bundle.Bundle) -> None:
    with tarfile.open(made.path) as archive:
        assert not [name for name in archive.getnames() if name.startswith("lib/localcloud")]


@pytest.fixture
def product_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate an installation of only the product."""

    def none(**_: str) -> tuple[()]:
        return ()

    monkeypatch.setattr(plugins, "entry_points", none)


@pytest.mark.parametrize("module", ["localcloud_not_here.commands", "localcloud.not_here"])
def test_metadata_without_its_package_counts_as_not_installed(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    found = EntryPoint(name="local", value=f"{module}:register", group=plugins.COMMANDS)
    monkeypatch.setattr(plugins, "entry_points", lambda **_: (found,))  # pyright: ignore[reportUnknownLambdaType]
    assert list(plugins.load(plugins.COMMANDS, "local")) == []


def test_a_plugin_that_lacks_another_module_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken_plugin.py").write_text("import a_module_that_is_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = EntryPoint(name="local", value="broken_plugin:register", group=plugins.COMMANDS)
    monkeypatch.setattr(plugins, "entry_points", lambda **_: (found,))  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        list(plugins.load(plugins.COMMANDS))


@pytest.mark.usefixtures("product_alone")
@pytest.mark.parametrize("arguments", [[], ["up", "--cloud", "gcp"], ["status", "--json"]], ids=" ".join)
def test_local_explains_how_to_install_the_embedded_cloud(arguments: list[str]) -> None:
    tree: Any = get_command(build())
    with pytest.raises(AppError, match="gpu-fleet-localcloud is not installed: run `make setup`"):
        tree.commands["local"].main(arguments, standalone_mode=False)


@pytest.mark.usefixtures("product_alone")
def test_doctor_checks_the_machine_without_the_embedded_cloud() -> None:
    done = CliRunner().invoke(build("doctor"), ["doctor", "--json"])
    assert done.exit_code in (0, 3)
    assert [finding["name"] for finding in json.loads(done.stdout)] == ["python", "environment", "pulumi"]


def test_a_bundle_runs_from_its_folder(made: bundle.Bundle, tmp_path: Path) -> None:
    """As on the machine: it runs through a link, and there is no clone."""
    with tarfile.open(made.path) as archive:
        archive.extractall(tmp_path / "release", filter="data")
    (tmp_path / "current").symlink_to(tmp_path / "release")
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [tmp_path / "current" / "bin" / "gpufleet", "host", "check"],
        cwd=tmp_path, env=environment | {"GPUFLEET_ROOT": str(tmp_path)}, capture_output=True, text=True, timeout=180,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "is this a control host?" in done.stderr, done.stderr
    assert not list((tmp_path / "release").rglob("__pycache__"))


def test_the_bundle_contains_packages_of_the_lock(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    (packages / "some").mkdir(parents=True)
    (packages / "some" / "code.py").write_text("")
    built = bundle.build(ROOT, packages, tmp_path / "with.tar.gz")
    with tarfile.open(built.path) as archive:
        assert "lib/some/code.py" in archive.getnames()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, "does not list the packages", id="no clone"),
        pytest.param("[tool]\n", "does not list the packages", id="another project"),
        pytest.param(
            '[tool.hatch.build.targets.wheel]\npackages = ["cli"]\n', "contains no files", id="a missing package"
        ),
    ],
)
def test_without_sources_there_is_no_bundle(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(bundle.BundleError, match=message):
        bundle.build(tmp_path, None, tmp_path / "out.tar.gz")
    assert not (tmp_path / "out.tar.gz").exists()
