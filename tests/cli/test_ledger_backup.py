"""A ledger in a bucket and restored on another machine: the same rows, or a clear error."""

import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.errors import AppError
from cli.commands import build
from gpufleet.ledger import operations, outbox, transfer
from gpufleet.ledger.database import writing
from gpufleet.ledger.schema import open_ledger
from gpufleet.toolchain.folders import ROOT as CLONE
from tests.fixtures import postgres

T0 = datetime(2026, 11, 20, 6, 0, tzinfo=UTC)
FLEET = "aws/dev/us-east-1"


def machine(folder: Path, ledger_url: str = "") -> Path:
    """A control host: its fleet document and its ledger, which is a file unless another database is given."""
    folder.mkdir()
    whole = {
        "version": 1, "environment": "dev", "cloud": "aws", "region": "us-east-1", "account": "0",
        "generated_by": {"project": "p", "stack": "s", "revision": "1", "at": "2026-11-20T02:15:00Z"},
        "bucket": "s3://models", "prometheus_url": "http://127.0.0.1:9",
        "ledger_url": ledger_url or f"sqlite:///{folder}/ledger.db", "router": {"url": "http://127.0.0.1:9"},
        "pools": [],
    }  # fmt: skip
    path = folder / "fleet.json"
    path.write_text(json.dumps(whole))
    return path


def fill(document: Path) -> None:
    engine = open_ledger(json.loads(document.read_text())["ledger_url"])
    operations.seed_target(engine, FLEET, "chat", 3, T0)
    with writing(engine) as connection:
        outbox.enqueue(connection, outbox.Message(key="k", channel="#c", text="🦊 …"), T0)


def rows(document: Path) -> list[str]:
    engine = open_ledger(json.loads(document.read_text())["ledger_url"])
    try:
        with engine.connect() as connection:
            return list(transfer.export(connection, T0))
    finally:
        engine.dispose()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build("ledger"), ["ledger", *arguments], catch_exceptions=False)


def test_a_ledger_comes_back_on_another_machine(tmp_path: Path) -> None:
    old, bucket = machine(tmp_path / "old"), str(tmp_path / "bucket")
    fill(old)
    assert run("backup", "--fleet", str(old), "--place", bucket).exit_code == 0
    new = machine(tmp_path / "new")
    assert run("restore", "--fleet", str(new), "--place", bucket).exit_code == 0
    assert rows(new) == rows(old)
    assert run("restore", "--fleet", str(new), "--place", bucket).exit_code == 0, "twice is once"
    assert rows(new) == rows(old)


@pytest.mark.slow
@pytest.mark.skipif(postgres.binaries() is None, reason="PostgreSQL is missing: apt-get install postgresql")
def test_file_ledger_is_restored_in_postgresql_and_back_in_a_file(tmp_path: Path) -> None:
    old, bucket, other = machine(tmp_path / "old"), str(tmp_path / "bucket"), str(tmp_path / "other")
    fill(old)
    assert run("backup", "--fleet", str(old), "--place", bucket).exit_code == 0
    with tempfile.TemporaryDirectory() as folder, postgres.running(Path(folder)) as url:
        new = machine(tmp_path / "new", url)
        for arguments in (("restore", "--place", bucket), ("verify",), ("backup", "--place", other)):
            # a separate process, as on another machine: it leaves no connection open here
            command = [sys.executable, "-m", "cli.main", "ledger", *arguments, "--fleet", str(new)]
            done = subprocess.run(command, cwd=CLONE, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
        assert rows(new) == rows(old)
    third = machine(tmp_path / "third")
    assert run("restore", "--fleet", str(third), "--place", other).exit_code == 0
    assert rows(third) == rows(old)


@pytest.mark.parametrize("command", ["verify", "export"])
def test_absent_ledger_is_neither_verified_nor_copied(tmp_path: Path, command: str) -> None:
    with pytest.raises(AppError, match="not on this machine: run this where the watchdogs run"):
        run(command, "--fleet", str(machine(tmp_path / "new")))


def test_a_machine_without_the_ledger_backs_nothing_up(tmp_path: Path) -> None:
    old, bucket = machine(tmp_path / "old"), str(tmp_path / "bucket")
    fill(old)
    run("backup", "--fleet", str(old), "--place", bucket)
    new = machine(tmp_path / "new")
    with pytest.raises(AppError, match="not on this machine: run this where the watchdogs run"):
        run("backup", "--fleet", str(new), "--place", bucket)
    run("restore", "--fleet", str(new), "--place", bucket)
    assert rows(new) == rows(old)


def test_the_newest_backup_is_restored(tmp_path: Path) -> None:
    old, bucket = machine(tmp_path / "old"), str(tmp_path / "bucket")
    rows(old)
    run("backup", "--fleet", str(old), "--place", bucket)
    fill(old)
    run("backup", "--fleet", str(old), "--place", bucket)
    new = machine(tmp_path / "new")
    run("restore", "--fleet", str(new), "--place", bucket)
    assert rows(new) == rows(old)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda data, pointer: data.write_bytes(data.read_bytes()[:-9]), "is damaged"),
        (lambda data, pointer: data.unlink(), "cannot be read"),
        (lambda data, pointer: pointer.write_text("{"), "is not a valid pointer"),
        (lambda data, pointer: pointer.write_text('{"version": 2}'), "must be 1"),
        (lambda data, pointer: pointer.write_text("[1]"), "is not a JSON object"),
        (
            lambda data, pointer: pointer.write_text('{"version": 1, "key": 5, "sha256": "", "at": ""}'),
            "is not a valid pointer",
        ),
        (lambda data, pointer: pointer.unlink(), "there is no backup yet"),
    ],
    ids=["cut", "gone", "broken-pointer", "newer", "a-list", "other-keys", "none"],
)
def test_a_bad_backup_is_refused_and_nothing_is_written(
    tmp_path: Path, harm: Callable[[Path, Path], object], message: str
) -> None:
    old, bucket = machine(tmp_path / "old"), tmp_path / "bucket"
    fill(old)
    run("backup", "--fleet", str(old), "--place", str(bucket))
    (data,) = bucket.rglob("*.gz")
    (pointer,) = bucket.rglob("latest.json")
    harm(data, pointer)
    new = machine(tmp_path / "new")
    empty = rows(new)
    with pytest.raises(AppError, match=message):
        run("restore", "--fleet", str(new), "--place", str(bucket))
    assert rows(new) == empty


def test_backup_is_an_export(tmp_path: Path) -> None:
    old, bucket = machine(tmp_path / "old"), tmp_path / "bucket"
    fill(old)
    run("backup", "--fleet", str(old), "--place", str(bucket))
    (data,) = bucket.rglob("*.gz")
    assert gzip.decompress(data.read_bytes()).decode().splitlines()[1:] == [line.strip() for line in rows(old)][1:]
