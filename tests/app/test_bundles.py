"""A bundle in a bucket: under its own digest, for a processor that is known."""

import hashlib
from pathlib import Path

import pytest

from app.bundles import publish
from app.errors import AppError, Code
from control import bundle


def test_a_bundle_lies_under_its_digest(tmp_path: Path) -> None:
    made = publish(str(tmp_path), "x86_64", "3.11", dependencies=False)
    body = (tmp_path / bundle.key(made.sha256)).read_bytes()
    assert (len(body), hashlib.sha256(body).hexdigest()) == (made.bytes, made.sha256)


def test_an_unknown_processor_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="choose x86_64 or aarch64") as error:
        publish(str(tmp_path), "riscv64", "3.11", dependencies=False)
    assert error.value.code is Code.WRONG_USE
    assert not list(tmp_path.iterdir())
