"""A ledger in a bucket, and on another machine afterwards: the same rows, or a clear refusal."""

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import build
from cli.output import UserError
from ledger import operations, outbox, transfer
from ledger.database import writing
from ledger.schema import open_ledger

T0 = datetime(2026, 11, 20, 6, 0, tzinfo=UTC)
FLEET = "aws/dev/us-east-1"


def machine(folder: Path) -> Path:
    """A control host: its fleet document and its ledger."""
    folder.mkdir()
    whole = {
        "version": 1, "environment": "dev", "cloud": "aws", "region": "us-east-1", "account": "0",
        "generated_by": {"project": "p", "stack": "s", "revision": "1", "at": "2026-11-20T02:15:00Z"},
        "bucket": "s3://models", "prometheus_url": "http://127.0.0.1:9",
        "ledger_url": f"sqlite:///{folder}/ledger.db", "router": {"url": "http://127.0.0.1:9"}, "pools": [],
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
    with open_ledger(json.loads(document.read_text())["ledger_url"]).connect() as connection:
        return list(transfer.export(connection, T0))


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


def test_the_newest_backup_is_restored(tmp_path: Path) -> None:
    old, bucket = machine(tmp_path / "old"), str(tmp_path / "bucket")
    run("backup", "--fleet", str(old), "--place", bucket)
    fill(old)
    run("backup", "--fleet", str(old), "--place", bucket)
    new = machine(tmp_path / "new")
    run("restore", "--fleet", str(new), "--place", bucket)
    assert rows(new) == rows(old)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda data, pointer: data.write_bytes(data.read_bytes()[:-9]), "is damaged"),
        (lambda data, pointer: data.unlink(), "cannot be read"),
        (lambda data, pointer: pointer.write_text("{"), "is no pointer"),
        (lambda data, pointer: pointer.write_text('{"version": 2}'), "must be 1"),
        (lambda data, pointer: pointer.unlink(), "there is no backup yet"),
    ],
    ids=["cut", "gone", "broken-pointer", "newer", "none"],
)
def test_a_bad_backup_is_refused_and_nothing_is_written(
    tmp_path: Path, harm: Callable[[Path, Path], object], words: str
) -> None:
    old, bucket = machine(tmp_path / "old"), tmp_path / "bucket"
    fill(old)
    run("backup", "--fleet", str(old), "--place", str(bucket))
    (data,) = bucket.rglob("*.gz")
    (pointer,) = bucket.rglob("latest.json")
    harm(data, pointer)
    new = machine(tmp_path / "new")
    empty = rows(new)
    with pytest.raises(UserError, match=words):
        run("restore", "--fleet", str(new), "--place", str(bucket))
    assert rows(new) == empty


def test_what_was_written_is_an_export(tmp_path: Path) -> None:
    old, bucket = machine(tmp_path / "old"), tmp_path / "bucket"
    fill(old)
    run("backup", "--fleet", str(old), "--place", str(bucket))
    (data,) = bucket.rglob("*.gz")
    assert gzip.decompress(data.read_bytes()).decode().splitlines()[1:] == [line.strip() for line in rows(old)][1:]
