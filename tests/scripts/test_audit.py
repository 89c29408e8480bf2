"""Tests of the dependency audit: a vulnerable version fails, and a missing database is reported."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from scripts import audit

LOCK = """
version = 1
[[package]]
name = "gpu-fleet"
version = "0.1.0"
source = { editable = "." }
[[package]]
name = "Jinja2"
version = "3.1.2"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "zope.interface"
version = "7.0"
source = { registry = "https://pypi.org/simple" }
"""
PACKAGES = audit.locked(LOCK)


def record(name: str, *events: dict[str, str], **more: Any) -> dict[str, Any]:
    affected = {
        "package": {"ecosystem": "PyPI", "name": name},
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
        "versions": more.pop("versions", []),
    }
    return {"id": "GHSA-1", "aliases": ["CVE-1"], "summary": "it\nruns code", "affected": [affected], **more}


@pytest.mark.parametrize(
    ("known", "bad"),
    [
        pytest.param(record("jinja2", {"introduced": "0"}, {"fixed": "3.1.3"}), True, id="before its fix"),
        pytest.param(record("jinja2", {"introduced": "0"}, {"fixed": "3.1.2"}), False, id="fixed"),
        pytest.param(record("jinja2", {"introduced": "3.1.2"}), True, id="never fixed"),
        pytest.param(record("jinja2", {"introduced": "3.2"}), False, id="of later versions"),
        pytest.param(record("jinja2", {"introduced": "0"}, {"last_affected": "3.1.2"}), True, id="the last one"),
        pytest.param(record("jinja2", {"introduced": "0"}, {"last_affected": "3.1.1"}), False, id="after it"),
        pytest.param(
            record("jinja2", {"introduced": "0"}, {"fixed": "2"}, {"introduced": "3"}, {"fixed": "3.1.4"}), True,
            id="a second range",
        ),
        pytest.param(
            record("jinja2", {"introduced": "0"}, {"fixed": "2"}, {"introduced": "3.1.4"}, {"fixed": "3.2"}), False,
            id="between two ranges",
        ),
        pytest.param(record("jinja2", versions=["3.1.2"]), True, id="listed"),
        pytest.param(record("Zope_Interface", {"introduced": "0"}), True, id="another way to write its name"),
        pytest.param(record("gpu-fleet", {"introduced": "0"}), False, id="our own name"),
        pytest.param(record("jinja2", versions=["3.1.2"], withdrawn="2026-01-01T00:00:00Z"), False, id="withdrawn"),
        pytest.param(record("jinja2", {"introduced": "0"}, {"fixed": "a8f3e"}), True, id="a fix without a version"),
    ],
)  # fmt: skip
def test_a_version_is_matched_by_lists_and_ranges(known: dict[str, Any], bad: bool) -> None:
    assert bool(audit.findings(PACKAGES, [known])) is bad


def test_the_lock_of_this_clone_is_read() -> None:
    packages = audit.locked(audit.LOCK.read_text("utf-8"))
    assert len(packages) > 100
    assert "gpu-fleet" not in packages


def run(folder: Path, *known: dict[str, Any], required: bool = False) -> int:
    (folder / "uv.lock").write_text(LOCK)
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for number, one in enumerate(known):
            archive.writestr(f"{number}.json", json.dumps(one))
    options = ["--required"] if required else []
    return audit.main(["--database", str(folder / "all.zip"), "--lock", str(folder / "uv.lock"), *options])


def test_a_vulnerable_version_fails_and_is_reported_with_its_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, record("jinja2", {"introduced": "0"}, {"fixed": "3.1.3"})) == 1
    assert capsys.readouterr().out == "jinja2 3.1.2: CVE-1, GHSA-1; fixed in 3.1.3: it runs code\n"
    assert run(tmp_path, record("jinja2", {"introduced": "4"})) == 0


def test_a_missing_database_is_reported_and_fails_if_required(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = ["--database", str(tmp_path / "none.zip")]
    assert audit.main(nowhere) == 0
    assert "audit: skipped: there is no database" in capsys.readouterr().err
    assert audit.main([*nowhere, "--required"]) == 2
    assert run(tmp_path) == 2, "an empty one is none"
    (tmp_path / "all.zip").write_text("<html>")
    assert audit.main(["--database", str(tmp_path / "all.zip")]) == 2
