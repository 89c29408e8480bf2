"""Contract test of the port `HostMachine`: the control host's own machine, and `FakeMachine`.

The parts that need systemd and a complete release are tested in `tests/e2e/test_control_host.py`.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.control_host import LiveMachine
from hosts.control import bundle
from hosts.control.paths import HostPaths
from hosts.control.releases import HostMachine, ReleaseError
from hosts.control.settings import ControlSettings
from tests.fixtures.control.releases import FakeMachine


@dataclass(kw_only=True)
class Host:
    """A control host without a ledger and without releases."""

    machine: HostMachine
    places: HostPaths
    offer: Callable[[str, Path], object]
    """Put a bundle with that digest into the bucket."""

    def write_ledger(self, version: str) -> None:
        with closing(sqlite3.connect(self.places.ledger)) as ledger:
            ledger.execute("create table alembic_version (version_num text)")
            ledger.execute("insert into alembic_version values (?)", [version])
            ledger.commit()


@pytest.fixture(params=["fake", "real"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("GPUFLEET_LOCAL_ADDRESS", "127.0.0.1")
    places = HostPaths(root=tmp_path / "host")
    places.ledger.parent.mkdir(parents=True)
    if request.param == "fake":
        fake = FakeMachine(places=places)
        return Host(machine=fake, places=places, offer=fake.bundles.__setitem__)
    bucket = tmp_path / "bucket"
    machine = LiveMachine(places=places, settings=ControlSettings(fleet="", bucket=str(bucket)))

    def offer(sha256: str, path: Path) -> None:
        target = bucket / bundle.key(sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())

    return Host(machine=machine, places=places, offer=offer)


def test_a_bundle_is_fetched_by_its_digest(host: Host, tmp_path: Path) -> None:
    (tmp_path / "bundle").write_bytes(b"content")
    host.offer("a" * 64, tmp_path / "bundle")
    host.machine.fetch("a" * 64, tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"content"
    with pytest.raises(OSError):  # noqa: PT011 - any subclass
        host.machine.fetch("b" * 64, tmp_path / "fetched")


def test_without_a_ledger_there_is_no_schema_and_nothing_to_save(host: Host) -> None:
    assert host.machine.schema() is None
    assert not host.places.ledger.exists(), "a look creates no ledger"
    with (host.places.root / "saved").open("w+b") as file:
        host.machine.save_ledger(file)
        file.seek(0)
        assert file.read() == b""


def test_a_ledger_is_saved_and_restored_with_its_schema(host: Host) -> None:
    host.write_ledger("first")
    assert host.machine.schema() == "first"
    with (host.places.root / "saved").open("w+b") as file:
        host.machine.save_ledger(file)
        host.places.ledger.unlink()
        host.write_ledger("next")
        assert host.machine.schema() == "next"
        host.places.ledger.with_name(f"{host.places.ledger.name}-wal").write_bytes(b"of a killed service")
        file.seek(0)
        host.machine.restore_ledger(file)
    assert host.machine.schema() == "first"
    assert not host.places.ledger.with_name(f"{host.places.ledger.name}-wal").exists()


def test_a_ledger_that_is_not_readable_is_a_release_error(host: Host) -> None:
    host.places.ledger.write_bytes(b"not a database" * 100)
    with pytest.raises(ReleaseError, match="ledger cannot be prepared"):
        host.machine.schema()
    with (host.places.root / "saved").open("w+b") as file, pytest.raises(ReleaseError):
        host.machine.save_ledger(file)
