"""The machine that a command of the image runs on."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from localcloud.machines.spec import MachineSpec


def root() -> Path:
    """The machine's private root. Ends the command if it does not run on an emulated machine."""
    found = os.environ.get("GPUFLEET_ROOT")
    if not found:
        fail("GPUFLEET_ROOT is not set: this command works on an emulated machine only")
    return Path(found)


def spec() -> MachineSpec:
    """The machine."""
    return MachineSpec.load(root())


def inside(path: str) -> Path:
    """A path as the machine sees it: inside its root, unless it is so already."""
    found = Path(path)
    if found.is_relative_to(root()) or not found.is_absolute():
        return found
    return root() / found.relative_to("/")


def fail(message: str, code: int = 1) -> NoReturn:
    """Print an error and end the command."""
    print(message, file=sys.stderr)
    sys.exit(code)
