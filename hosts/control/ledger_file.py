"""Reads and replaces the ledger's file as the ledger's user: root opens no file in a folder of another user.

A program that uses only the standard library: `python3 -I ledger_file.py schema|save|put-back LEDGER`. `save`
writes the complete ledger to stdout, `put-back` reads it from stdin. No process may write the ledger meanwhile.
"""

import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final

MODE: Final = 0o660
"""Mode of the ledger's file: watchdogs and console write it. SQLite's side files get the same mode."""
_SIDE_FILES: Final = ("-wal", "-shm")
_OPEN_LIMIT_S: Final = 30.0


def is_there(ledger: Path) -> bool:
    """Return whether a ledger exists. An empty file is only a placeholder (see `make`)."""
    return ledger.is_file() and ledger.stat().st_size > 0


def schema(ledger: Path) -> str | None:
    """Return the ledger's migration version; None without a ledger or tables. Raises OSError, sqlite3.Error."""
    if not is_there(ledger):
        return None
    with closing(sqlite3.connect(ledger, timeout=_OPEN_LIMIT_S)) as opened:
        tables = "select 1 from sqlite_master where type = 'table' and name = 'alembic_version'"
        if opened.execute(tables).fetchone() is None:
            return None
        found = opened.execute("select version_num from alembic_version").fetchone()
        return None if found is None else str(found[0])


def save(ledger: Path, into: BinaryIO) -> None:
    """Write the complete ledger, with its write-ahead log, to `into`; nothing without a ledger.

    Raises OSError, sqlite3.Error.
    """
    if not is_there(ledger):
        return
    part = _part(ledger)
    try:
        with closing(sqlite3.connect(ledger)) as source, closing(sqlite3.connect(part)) as target:
            source.backup(target)
        with part.open("rb") as file:
            shutil.copyfileobj(file, into)
    finally:
        part.unlink(missing_ok=True)


def restore(ledger: Path, source: BinaryIO) -> None:
    """Replace the ledger atomically and remove SQLite's side files of a killed writer. Raises OSError."""
    part = _part(ledger)
    with part.open("xb") as file:
        shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), MODE)
    for end in _SIDE_FILES:
        ledger.with_name(ledger.name + end).unlink(missing_ok=True)
    part.replace(ledger)


def make(ledger: Path) -> None:
    """Create a file that both users can write, before SQLite creates one with its own mode. Raises OSError."""
    number = os.open(ledger, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    try:
        if os.fstat(number).st_uid == os.geteuid():
            os.fchmod(number, MODE)
    finally:
        os.close(number)


def _part(ledger: Path) -> Path:
    part = ledger.with_name(f".{ledger.name}.part")
    part.unlink(missing_ok=True)
    return part


def main(arguments: list[str]) -> int:
    """Run a command on a ledger. Exit codes: 0, or 1 with the reason on stderr."""
    command, ledger = arguments[0], Path(arguments[1])
    try:
        match command:
            case "schema":
                sys.stdout.write(schema(ledger) or "")
            case "save":
                save(ledger, sys.stdout.buffer)
            case "put-back":
                restore(ledger, sys.stdin.buffer)
            case _:
                raise ValueError(f"{command}: is not one of schema, save, put-back")
    except (OSError, ValueError, sqlite3.Error) as error:
        sys.stderr.write(f"{ledger}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
