"""Owners on a control host's volume: set once, migrated from release 0.1, never changed through a link."""

import fcntl
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hosts.control import layout
from hosts.control.layout import Ids
from hosts.control.paths import LEDGER_GROUP, HostPaths, User

OLD = 3900
"""The uid of release 0.1's only user."""
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users, which root alone may")


def numbers(first: int) -> Ids:
    users = {user: first + i for i, user in enumerate(User)}
    groups = {**{user: number + 100 for user, number in users.items()}, LEDGER_GROUP: first + 50}
    return Ids(users=users | {"root": 0}, groups=groups | {"root": 0})


IDS = numbers(4000)


def owner(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid, found.st_mode & 0o7777


def volume_of_release_0_1(root: Path) -> HostPaths:
    """Create a volume as release 0.1 leaves it: its user owns all files; the ledger has a WAL without checkpoint."""
    places = HostPaths(root=root)
    for name in ("router", "prometheus/chunks_head", "alertmanager", "monitoring/grafana"):
        (places.data / name).mkdir(parents=True)
    for name in ("router/router.json", "prometheus/chunks_head/000001", "alertmanager/silences"):
        (places.data / name).write_text(name)
    (places.data / "monitoring/prometheus.yml").write_text("old")
    for name, text in {"release.json": "{}", "console.token": "t" * 48, "secrets.env": "PGPASSWORD=p"}.items():
        (places.data / name).write_text(text)
    ledger = sqlite3.connect(places.data / "ledger.db")
    ledger.execute("pragma journal_mode = wal")
    ledger.execute("create table facts (what text)")
    ledger.execute("insert into facts values ('kept')")
    ledger.commit()
    # As after a power loss: the last transactions are only in the WAL.
    log = (places.data / "ledger.db-wal").read_bytes()
    bare = (places.data / "ledger.db").read_bytes()
    ledger.close()
    (places.data / "ledger.db-wal").write_bytes(log)
    (places.data / "ledger.db").write_bytes(bare)
    if os.geteuid() == 0:
        for path in (places.data, *places.data.rglob("*")):
            os.chown(path, OLD, OLD)
    return places


def ids_here() -> Ids | None:
    return IDS if os.geteuid() == 0 else None


def is_taken_over(places: HostPaths) -> None:
    assert sorted(path.name for path in places.data.iterdir()) == sorted(
        ["host", "ledger", "ledger.db", "monitoring", *(user.folder for user in User)]
    )
    assert places.token.read_text() == "t" * 48
    assert (places.host / "secrets.env").read_text() == "PGPASSWORD=p"
    assert places.chosen.read_text() == "{}"
    for path in (places.ledger, places.ledger_link):
        with closing(sqlite3.connect(path)) as ledger:
            assert ledger.execute("select what from facts").fetchall() == [("kept",)]
    if os.geteuid() != 0:
        return
    assert owner(places.data) == (0, 0, 0o755)
    assert owner(places.host) == (0, 0, 0o700)
    assert {owner(path) for path in places.host.iterdir()} == {(0, 0, 0o600)}
    assert owner(places.ledger.parent) == (IDS.users[User.WATCH], IDS.groups[LEDGER_GROUP], 0o2770)
    assert owner(places.ledger) == (IDS.users[User.WATCH], IDS.groups[LEDGER_GROUP], 0o660)
    assert owner(places.monitoring) == (0, 0, 0o755)
    for user in User:
        mine = (IDS.users[user], IDS.groups[user])
        assert owner(places.state(user)) == (*mine, 0o700)
        assert {owner(path)[:2] for path in places.state(user).rglob("*")} <= {mine}


def test_a_volume_of_release_0_1_is_migrated_once(tmp_path: Path) -> None:
    places = volume_of_release_0_1(tmp_path)
    moved = layout.prepare(places, ids_here())
    assert moved == ["release.json", "secrets.env", "console.token", "ledger.db-wal", "ledger.db"]
    is_taken_over(places)
    assert layout.prepare(places, ids_here()) == []
    is_taken_over(places)


class Cut(BaseException):
    """A power loss."""


def test_an_interrupted_migration_is_completed_at_the_next_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ("replace", "chown", "fchown", "fchmod", "mkdir", "symlink", "unlink")
    for cut in range(200):
        places, left = volume_of_release_0_1(tmp_path / str(cut)), cut

        def counted(call: Callable[..., object]) -> Callable[..., object]:
            def before(*args: object, **kwargs: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Cut
                return call(*args, **kwargs)

            return before

        with monkeypatch.context() as patched:
            for name in calls:
                patched.setattr(os, name, counted(getattr(os, name)))
            try:
                layout.prepare(places, ids_here())
            except Cut:
                pass
            else:
                is_taken_over(places)
                break
        layout.prepare(places, ids_here())
        is_taken_over(places)
    else:
        pytest.fail("200 calls: not cut off at all of them")
    assert cut > 25


@AS_ROOT
def test_no_file_outside_changes_its_owner_through_a_link(tmp_path: Path) -> None:
    places, outside = volume_of_release_0_1(tmp_path / "m"), tmp_path / "shadow"
    outside.write_text("root:*:\n")
    outside.chmod(0o600)
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "passwd").write_text("root\n")
    for name in ("router/x", "prometheus/x"):
        (places.data / name).symlink_to(outside)
        (places.data / f"{name}-folder").symlink_to(folder)
    os.link(outside, places.data / "router" / "hard")
    for name in ("change.json", "ledger.restoring", "console", "host"):
        (places.data / name).symlink_to(folder if name in ("console", "host") else outside)
    layout.prepare(places, IDS)
    assert owner(outside) == (0, 0, 0o600) and outside.read_text() == "root:*:\n"
    assert owner(folder)[:2] == (0, 0) and owner(folder / "passwd")[:2] == (0, 0)
    assert [path.name for path in folder.iterdir()] == ["passwd"]
    assert not places.host.is_symlink() and not places.state(User.CONSOLE).is_symlink()
    assert not places.change.exists(), "root trusts this file, so it must not be a link"


@AS_ROOT
def test_users_with_other_ids_on_another_machine_keep_their_folders(tmp_path: Path) -> None:
    places = HostPaths(root=tmp_path)
    layout.prepare(places, IDS)
    for user in User:
        (places.state(user) / "mine").write_text(user)
        os.chown(places.state(user) / "mine", IDS.users[user], IDS.groups[user])
    log = places.ledger.with_name("ledger.db-wal")
    log.write_text("")
    os.chown(log, IDS.users[User.CONSOLE], IDS.groups[LEDGER_GROUP])
    other = numbers(4001)
    layout.prepare(places, other)
    for user in User:
        assert owner(places.state(user) / "mine")[:2] == (other.users[user], other.groups[user])
    assert owner(log)[1] == other.groups[LEDGER_GROUP]


def test_files_of_a_later_run_of_release_0_1_are_newer(tmp_path: Path) -> None:
    """A failed upgrade rolled back to release 0.1, which replaced the link with its own ledger."""
    places = volume_of_release_0_1(tmp_path)
    layout.prepare(places, None)
    places.ledger_link.unlink()
    with closing(sqlite3.connect(places.ledger_link)) as ledger:
        ledger.execute("create table facts (what text)")
        ledger.execute("insert into facts values ('newer')")
        ledger.commit()
    (places.data / "release.json").write_text("newer")
    layout.prepare(places, None)
    assert places.chosen.read_text() == "newer"
    with closing(sqlite3.connect(places.ledger_link)) as ledger:
        assert ledger.execute("select what from facts").fetchall() == [("newer",)]
    assert (places.ledger.parent / "ledger.before-0.1.db").is_file(), "kept, whatever it is good for"


def test_notes_stay_while_release_0_1_uses_them(tmp_path: Path) -> None:
    """It upgrades to this release: it removes its note and writes its choice when the services are healthy."""
    places = volume_of_release_0_1(tmp_path)
    (places.data / "change.json").write_text("{}")
    with (places.data / "change.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        layout.prepare(places, None)
        assert (places.data / "change.json").is_file() and (places.data / "release.json").is_file()
        assert places.ledger.is_file(), "services of this release run with it"
    assert layout.migrate_root_files(places, by_root=False) == [
        "release.json",
        "change.json",
        "secrets.env",
        "console.token",
    ]
