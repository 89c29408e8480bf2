"""A mount namespace in which everything but a machine's private root is read-only."""

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_MS_BIND: Final = 4096
_MS_REC: Final = 16384
_MS_PRIVATE: Final = 1 << 18
_AT_RECURSIVE: Final = 0x8000
_AT_FDCWD: Final = -100
_MOUNT_ATTR_RDONLY: Final = 1
_SYS_MOUNT_SETATTR: Final = 442


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, flags: int) -> None:
    _check(_libc().mount(source.encode(), target.encode(), None, flags, None), f"mount {source} on {target}")


def _set_read_only(path: str, wanted: bool, *, recursive: bool) -> None:
    attr = _MountAttr(_MOUNT_ATTR_RDONLY if wanted else 0, 0 if wanted else _MOUNT_ATTR_RDONLY, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    result = _libc().syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, ctypes.byref(attr), ctypes.sizeof(attr)
    )
    _check(result, f"make {path} {'read-only' if wanted else 'writable'}")


def seal(root: Path, needed: Sequence[Path]) -> None:
    """Make everything except `root` read-only, and mount `root/tmp` as /tmp.

    `needed` are folders that must stay visible (the interpreter, this code): if one is below /tmp, /tmp is
    read-only instead of hidden. Must be called in a new mount namespace. Raises OSError when that is not allowed.
    """
    temporary = root / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    visible = [root, *needed]
    _mount("none", "/", _MS_REC | _MS_PRIVATE)
    _mount(str(root), str(root), _MS_BIND)
    _set_read_only("/", True, recursive=True)
    _set_read_only(str(root), False, recursive=False)
    for shared in ("/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108 - these are hidden, not used
        if Path(shared).is_dir() and not any(path.is_relative_to(shared) for path in visible):
            _mount(str(temporary), shared, _MS_BIND)


if __name__ == "__main__":
    # the machine manager runs this in new namespaces, to test whether the kernel allows it
    seal(Path(sys.argv[1]), ())
