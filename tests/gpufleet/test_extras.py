"""Extras: the base imports none of their packages, and a missing one is named with the command that installs it."""

import re
import subprocess
import sys
import tomllib

import pytest

from gpufleet import extras
from gpufleet.ledger.schema import LedgerError, open_ledger
from gpufleet.toolchain.folders import ROOT

COMMANDS = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # an import of one of them fails
from cli.commands import build
from policies import pack
from stacks import reading
build()
"""


def test_commands_and_rules_import_no_package_of_an_extra() -> None:
    names = sorted(extras.EXTRAS)
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, *names], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_package_of_an_extra_is_known() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    brought = {
        (re.split(r"[\[<>=]", package)[0], extra)
        for extra, packages in project["optional-dependencies"].items()
        for package in packages
        if extra != "all"
    }
    named = {(module.replace("_", "-"), extra) for module, extra in extras.EXTRAS.items()}
    assert named == {(name.replace("mlflow-skinny", "mlflow"), extra) for name, extra in brought}
    (every,) = project["optional-dependencies"]["all"]
    assert set(every.removeprefix("gpu-fleet[").removesuffix("]").split(",")) == set(extras.EXTRAS.values())


def test_an_installed_package_is_not_missing() -> None:
    assert extras.missing("matplotlib") is None


def test_a_postgresql_ledger_without_its_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LedgerError) as error:
        open_ledger("postgresql://ledger@127.0.0.1/ledger")
    assert str(error.value) == (
        "postgresql://ledger@127.0.0.1/ledger: psycopg is not installed; install the extra postgres:"
        " uv tool install 'gpu-fleet[postgres]'"
    )
