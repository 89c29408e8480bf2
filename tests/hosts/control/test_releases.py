"""Releases with real folders, archives and ledger; only the services are fakes."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from hosts.control import bundle
from hosts.control.releases import ReleaseError
from tests.fixtures.control.releases import NOW, Host, make_host

UNKNOWN = "0" * 64


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return make_host(tmp_path / "machine")


def test_another_release_becomes_the_current_one(host: Host) -> None:
    host.upgrade("two")
    assert host.machine.log == ["try two", "stop", "start two"]
    chosen = host.releases.chosen()
    assert chosen is not None
    assert (chosen.current, chosen.previous) == (host.digests["two"], host.digests["one"])
    assert host.machine.facts() == ["one", "two"]


def test_the_current_release_is_left_alone(host: Host) -> None:
    host.upgrade("one")
    assert host.machine.log == []


def test_only_the_rollback_target_is_kept(host: Host) -> None:
    host.upgrade("two")
    host.upgrade("three")
    assert host.staged == {"two", "three"}


def test_an_unhealthy_release_is_rolled_back(host: Host) -> None:
    host.machine.breaks.add("two")
    with pytest.raises(ReleaseError, match=r"rolled back.*console: does not answer"):
        host.upgrade("two")
    assert (host.linked, host.machine.running) == ("one", "one")
    chosen = host.releases.chosen()
    assert chosen is not None and chosen.current == host.digests["one"]
    assert host.machine.facts() == ["one", "two", "one"], "what was recorded meanwhile is kept: same tables"


def test_a_rollback_restores_changed_tables(host: Host) -> None:
    host.machine.breaks.add("two")
    host.machine.migrates.add("two")
    with pytest.raises(ReleaseError, match="rolled back"):
        host.upgrade("two")
    assert host.machine.schema() == "first"
    assert host.machine.facts() == ["one", "one"], "the ledger as it was when the services had stopped"


@pytest.mark.parametrize("end", ["-wal", "-shm"])
def test_a_restored_ledger_has_no_side_files_of_the_other(host: Host, end: str) -> None:
    host.machine.breaks.add("two")
    host.machine.migrates.add("two")
    host.machine.leaves = end
    with pytest.raises(ReleaseError, match="rolled back"):
        host.upgrade("two")
    assert not host.releases.places.ledger.with_name(f"ledger.db{end}").exists()


def test_a_release_that_fails_its_test_changes_nothing(host: Host) -> None:
    host.machine.refuses.add("two")
    with pytest.raises(ReleaseError, match="its tables are newer"):
        host.upgrade("two")
    assert host.machine.log == ["try two"]
    assert (host.linked, host.machine.running) == ("one", "one")


def test_rollback_and_upgrade_again(host: Host) -> None:
    host.upgrade("two")
    assert host.releases.rollback(NOW + timedelta(hours=1)) == host.digests["one"]
    assert (host.linked, host.machine.running) == ("one", "one")
    assert host.releases.rollback(NOW + timedelta(hours=2)) == host.digests["two"]
    assert (host.linked, host.machine.running) == ("two", "two")


def test_there_is_no_rollback_before_the_first_upgrade(host: Host) -> None:
    with pytest.raises(ReleaseError, match="there is no previous release"):
        host.releases.rollback(NOW)


def test_an_unhealthy_rollback_is_reverted(host: Host) -> None:
    host.upgrade("two")
    host.machine.breaks.add("one")
    with pytest.raises(ReleaseError, match="was rolled back"):
        host.releases.rollback(NOW)
    assert (host.linked, host.machine.running) == ("two", "two")
    chosen = host.releases.chosen()
    assert chosen is not None and chosen.current == host.digests["two"]


def test_a_missing_bundle_is_an_error(host: Host) -> None:
    with pytest.raises(ReleaseError, match="cannot be staged"):
        host.releases.upgrade(UNKNOWN, NOW)
    assert host.machine.log == [] and host.staged == {"one"}


def test_a_bundle_with_other_bytes_is_not_unpacked(host: Host) -> None:
    host.machine.bundles[UNKNOWN] = host.machine.bundles[host.digests["two"]]
    with pytest.raises(ReleaseError, match="it is not used"):
        host.releases.upgrade(UNKNOWN, NOW)
    assert host.machine.log == [] and host.staged == {"one"}


def test_an_interrupted_stage_is_repeated(host: Host) -> None:
    half = host.releases.places.release(host.digests["two"]).with_name(f"{host.digests['two']}.part")
    (half / "lib").mkdir(parents=True)
    (half / "lib" / "old.py").write_text("")
    folder = host.releases.stage(host.digests["two"])
    assert not half.exists() and not (folder / "lib" / "old.py").exists()


@pytest.mark.parametrize(
    "name",
    [
        "../../../var/lib/gpu-fleet/evil",
        "a" * 63,
        "a" * 65,
        "A" * 64,
        "a" * 64 + "\n",
        "",
        7,
        ["a" * 64],
    ],
)
@pytest.mark.parametrize("note", ["change", "chosen"])
def test_a_note_without_a_valid_digest_is_refused(host: Host, name: object, note: str) -> None:
    places = host.releases.places
    evil = places.data / "evil" / "bin"
    evil.mkdir(parents=True)
    (evil / "gpufleet").write_text("#!/bin/sh\n")
    one = host.digests["one"]
    bodies = {
        "change": (places.change, {"version": 1, "before": one, "to": name, "schema": None, "wrong": None}),
        "chosen": (places.chosen, {"version": 1, "current": name, "previous": one, "at": NOW.isoformat()}),
    }
    path, body = bodies[note]
    path.write_text(json.dumps(body))
    with pytest.raises(ReleaseError, match="cannot be used"):
        host.releases.recover(NOW) if note == "change" else host.releases.chosen()
    assert (host.linked, host.machine.log) == ("one", [])


def test_only_a_digest_can_be_staged_or_linked(host: Host) -> None:
    for call in (host.releases.stage, host.releases.link):
        with pytest.raises(ReleaseError, match="is not a sha256"):
            call("../evil")


def _another_file(folder: Path) -> None:
    (folder / "lib" / "sitecustomize.py").write_text("")


def _another_text(folder: Path) -> None:
    (folder / "bin" / "gpufleet").write_text("#!/bin/sh\nid\n")


def _a_link(folder: Path) -> None:
    evil = folder.parent.parent / "evil"
    folder.rename(evil)
    folder.symlink_to(evil)


def _another_bundle(folder: Path) -> None:
    (folder / bundle.KEPT).write_bytes(b"")


def _no_bundle(folder: Path) -> None:
    (folder / bundle.KEPT).unlink()


@pytest.mark.parametrize("change", [_another_file, _another_text, _a_link, _another_bundle, _no_bundle])
def test_a_staged_release_is_verified_before_it_is_used(host: Host, change: Callable[[Path], None]) -> None:
    folder = host.releases.stage(host.digests["two"])
    change(folder)
    found = host.releases.stage(host.digests["two"])
    assert not found.is_symlink() and bundle.is_unpacked(host.digests["two"], found)
    assert host.machine.name(found) == "two"


def test_a_complete_release_is_not_fetched_again(host: Host) -> None:
    host.releases.stage(host.digests["two"])
    host.machine.bundles.clear()
    assert host.machine.name(host.releases.stage(host.digests["two"])) == "two"


@pytest.mark.parametrize("name", ["change.lock", "change.json", "release.json", ".release.json.part"])
def test_no_file_of_root_is_opened_through_a_link(host: Host, name: str, tmp_path: Path) -> None:
    outside = tmp_path / "shadow"
    outside.write_text("x" * 1000)
    path = host.releases.places.host / name
    path.unlink(missing_ok=True)
    path.symlink_to(outside)
    with suppress(ReleaseError):
        host.releases.recover(NOW)
    with suppress(ReleaseError):
        host.releases.choose(host.digests["one"], None, NOW)
        host.releases.chosen()
    assert outside.read_text() == "x" * 1000


def test_the_chosen_release_must_be_readable(host: Host) -> None:
    host.releases.places.chosen.write_text("{}")
    with pytest.raises(ReleaseError, match="cannot be used"):
        host.releases.chosen()
