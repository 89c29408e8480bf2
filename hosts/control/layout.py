"""Users and folders of a control host: created at each boot, and migrated from a volume of release 0.1.

Root owns the volume. Each service has a folder there that no other user can enter. The owner of a folder changes
only when the folder is created, or when its user has another uid than on the previous machine. Nothing is changed
through a symbolic link.
"""

import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hosts.control import ledger_file, root_files
from hosts.control.paths import LEDGER_GROUP, HostPaths, User

ROOT: Final = "root"
_NOTES: Final = ("release.json", "change.json", "ledger.before-upgrade.db", "secrets.env", "console.token")
"""Files that release 0.1 stored at the top of the volume, where its services could write them."""
_LEDGER_FILES: Final = ("ledger.restoring", "ledger.db-wal", "ledger.db")
"""The order in which they are moved: after the last one, the ledger is in its new folder."""
_ASIDE: Final = "ledger.before-0.1.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """The user ids and group ids of this machine, by name."""

    users: Mapping[str, int]
    groups: Mapping[str, int]

    def of(self, user: str, group: str) -> tuple[int, int]:
        return self.users[user], self.groups[group]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder with its owner, group and mode."""

    path: Path
    user: str
    group: str
    mode: int


def folders(places: HostPaths) -> tuple[Folder, ...]:
    """Return all folders of a control host, parents before children."""
    own = [(user, places.state(user)) for user in User]
    return (
        Folder(path=places.data, user=ROOT, group=ROOT, mode=0o755),
        Folder(path=places.host, user=ROOT, group=ROOT, mode=0o700),
        Folder(path=places.monitoring, user=ROOT, group=ROOT, mode=0o755),
        # setgid: the files that SQLite creates there get the group of the folder.
        Folder(path=places.ledger.parent, user=User.WATCH, group=LEDGER_GROUP, mode=0o2770),
        *(Folder(path=path, user=user, group=user, mode=0o700) for user, path in own),
        Folder(path=places.run, user=ROOT, group=ROOT, mode=0o755),
        Folder(path=places.secrets(User.WATCH).parent, user=ROOT, group=ROOT, mode=0o700),
        *(
            Folder(path=places.token_for(user).parent, user=ROOT, group=user, mode=0o750)
            for user in (User.CONSOLE, User.ALERTMANAGER)
        ),
        Folder(path=places.feed, user=User.WATCH, group=User.WATCH, mode=0o755),
        Folder(path=places.feed / "router", user=User.WATCH, group=User.ROUTER, mode=0o2750),
    )


def make_users(run: Callable[[Sequence[str]], str], known: Callable[[str], bool], place: HostPaths) -> None:
    """Create missing users and groups. `known`: whether a user of that name exists. Raises StepError."""
    run(["groupadd", "--system", "--force", LEDGER_GROUP])
    for user in User:
        if not known(user):
            home = ("--home-dir", str(place.state(user)), "--no-create-home")
            run(["useradd", "--system", "--user-group", *home, "--shell", "/usr/sbin/nologin", user])
    # Operators' commands run as the watchdogs' user, and the console's files next to the ledger belong to this group.
    run(["usermod", "--append", "--groups", LEDGER_GROUP, User.WATCH])


def prepare(places: HostPaths, ids: Ids | None) -> list[str]:
    """Create missing folders, migrate files of release 0.1 and set the owners. Return the names of moved files.

    It can be interrupted at any point; the next boot repeats it. Services do not run yet. `ids`: None if one user
    runs all services. Raises OSError.
    """
    moved: list[str] = []
    for folder in folders(places):
        _clear(folder, places, ids)
        # Only root decides where the volume is mounted. On an emulated machine this path is a link.
        path = folder.path.resolve() if folder.path == places.data else folder.path
        root_files.make_folder(path, folder.mode)
        if ids is not None:
            _change_owner(path, *ids.of(folder.user, folder.group))
            root_files.make_folder(path, folder.mode)
        if folder.path == places.host:
            moved += migrate_root_files(places, by_root=ids is not None)
        if folder.path == places.ledger.parent:
            moved += _migrate_ledger(places, ids)
    return moved


def migrate_root_files(places: HostPaths, *, by_root: bool) -> list[str]:
    """Move the files that root trusts from the top of the volume, unless release 0.1 runs now. Raises OSError."""
    if _is_locked(places.data / places.change_lock.name):
        return []
    moved: list[str] = []
    for name in _NOTES:
        old = places.data / name
        if not _is_regular(old):
            continue
        with root_files.open_regular(old) as file:
            if by_root:
                os.fchown(file.fileno(), 0, 0)
            os.fchmod(file.fileno(), 0o600)
        # Release 0.1 ran after this release and wrote the file: it is newer than the one of this release.
        old.replace(places.host / name)
        moved.append(name)
    (places.data / places.change_lock.name).unlink(missing_ok=True)
    return moved


def _migrate_ledger(places: HostPaths, ids: Ids | None) -> list[str]:
    """Move the ledger into its folder; leave a link at the path in fleet documents. Raises OSError."""
    folder, moved = places.ledger.parent, list[str]()
    if _is_regular(places.ledger_link) and places.ledger.exists():
        # Release 0.1 ran again in between and wrote its own ledger, which is the newer one.
        for end in ("-wal", "-shm"):
            places.ledger.with_name(places.ledger.name + end).unlink(missing_ok=True)
        places.ledger.replace(folder / _ASIDE)
    for name in _LEDGER_FILES:
        old = places.data / name
        if not _is_regular(old):
            continue
        with root_files.open_regular(old) as file:
            if ids is not None:
                os.fchown(file.fileno(), *ids.of(User.WATCH, LEDGER_GROUP))
            os.fchmod(file.fileno(), ledger_file.MODE)
        old.replace(folder / name)
        moved.append(name)
    places.ledger_link.with_name("ledger.db-shm").unlink(missing_ok=True)
    if not places.ledger_link.is_symlink():
        places.ledger_link.symlink_to(places.ledger.relative_to(places.data))
    return moved


def _clear(folder: Folder, places: HostPaths, ids: Ids | None) -> None:
    """Remove an invalid entry at a folder's path: a link, or monitoring configuration that root does not own."""
    if folder.path.is_symlink() and folder.path != places.data:
        folder.path.unlink()
    elif folder.path == places.monitoring and ids is not None and _owner(folder.path) not in (None, ids.users[ROOT]):
        shutil.rmtree(folder.path)


def _change_owner(path: Path, user: int, group: int) -> None:
    """Change the owner and group of a folder and of the content that had its old owner or group.

    The folder itself changes last, so that an interrupted change is repeated. Files of other owners (through a hard
    link, for example) stay unchanged.
    """
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        before = os.fstat(number)
        if (before.st_uid, before.st_gid) == (user, group):
            return
        for folder, name, found in _below(number) if user != 0 else ():
            if found.st_uid == before.st_uid != 0 or found.st_gid == before.st_gid != 0:
                os.chown(name, user, group, dir_fd=folder, follow_symlinks=False)
        os.fchown(number, user, group)
    finally:
        os.close(number)


def _below(number: int) -> Iterator[tuple[int, str, os.stat_result]]:
    for _, names, files, folder in os.fwalk(".", dir_fd=number, follow_symlinks=False):
        for name in (*names, *files):
            yield folder, name, os.stat(name, dir_fd=folder, follow_symlinks=False)


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return None


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _is_locked(path: Path) -> bool:
    try:
        with root_files.open_regular(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
