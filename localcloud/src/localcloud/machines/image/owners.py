"""`install` of an emulated machine: options for owners are dropped, since a machine has one user only."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from localcloud.machines.image import this_machine

_FOLDERS: Final = ("/usr/bin", "/bin")
_OWNERS: Final = ("-o", "-g", "--owner", "--group")


def without_owners(arguments: Sequence[str]) -> list[str]:
    """The command line without options for owners."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in _OWNERS:
            next(rest, None)
        elif not argument.startswith(("--owner=", "--group=")):
            kept.append(argument)
    return kept


def main(arguments: Sequence[str]) -> None:
    """Replace this process with the real `install`."""
    for folder in _FOLDERS:
        if (program := Path(folder) / "install").exists():
            os.execv(program, ["install", *without_owners(arguments)])  # noqa: S606
    this_machine.fail("install: command not found", 127)


if __name__ == "__main__":
    main(sys.argv[2:])
