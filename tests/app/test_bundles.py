"""Bundles in a bucket: named by their digest, for a supported processor."""

import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from app.bundles import EXPORT, ROOT, make, publish
from app.errors import AppError, ErrorCode
from gpufleet.toolchain.folders import find_folders
from hosts.control import bundle


def test_bundle_is_stored_under_its_digest(tmp_path: Path) -> None:
    made = publish(str(tmp_path), "x86_64", "3.11", dependencies=False)
    body = (tmp_path / bundle.key(made.sha256)).read_bytes()
    assert (len(body), hashlib.sha256(body).hexdigest()) == (made.bytes, made.sha256)


def test_an_unknown_processor_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="choose x86_64 or aarch64") as error:
        publish(str(tmp_path), "riscv64", "3.11", dependencies=False)
    assert error.value.code is ErrorCode.WRONG_USE
    assert not list(tmp_path.iterdir())


def test_every_package_of_a_bundle_is_requested_by_its_hash() -> None:
    uv = find_folders(os.environ).tools / "uv"
    done = subprocess.run([uv, *EXPORT], cwd=ROOT, capture_output=True, text=True, timeout=180, check=True)
    wanted = [
        one for one in done.stdout.replace("\\\n", " ").splitlines() if one and not one.lstrip().startswith("#")
    ]
    assert len(wanted) > 50
    assert [one for one in wanted if "--hash=sha256:" not in one] == []


def test_a_package_with_another_hash_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compromised package index may return another file."""
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "boto3-1.0-py3-none-any.whl", "w") as file:
        file.writestr("boto3-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: boto3\nVersion: 1.0\n")
        file.writestr("boto3-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("boto3-1.0.dist-info/RECORD", "")
    uv = find_folders(os.environ).tools / "uv"
    stub = tmp_path / "bin" / "uv"
    stub.parent.mkdir()
    # the real installer with the real options; only the list of requirements differs
    stub.write_text(
        f"""#!/bin/sh
if [ "$1" = export ]; then for last; do :; done; printf 'boto3==1.0 --hash=sha256:{"0" * 64}\\n' >"$last"; exit; fi
exec '{uv}' "$@" --offline --no-index --find-links '{index}'
"""
    )
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:/usr/bin:/bin")
    with pytest.raises(AppError, match="(?i)hash mismatch"):
        make(tmp_path / "out.tar.gz", "x86_64", "3.11", dependencies=True)
    assert not (tmp_path / "out.tar.gz").exists()
