"""The key that the router shows to engines, in a file of its own: people print the configuration, but not this."""

import re
from pathlib import Path
from typing import Final

from gpufleet.domain.files import write_private

FILE_NAME: Final = "engine-key.cfg"
"""Beside the configuration; HAProxy reads it first."""
VARIABLE: Final = "GPUFLEET_ENGINE_KEY"
HEADER: Final = f'"Bearer ${{{VARIABLE}-unknown}}"'
"""Of requests to engines; HAProxy puts the variable in when it reads the configuration, not with each request.
Without a key engines hear that, and refuse: what the client said never reaches them."""
_KEY: Final = re.compile(r"[0-9a-f]{64}")
_LINE: Final = re.compile(rf"^    setenv {VARIABLE} ({_KEY.pattern})$", re.MULTILINE)


def write(path: Path, key: str) -> None:
    """Replace the file; an empty key: none is known. Raises OSError, and ValueError for what is no key."""
    if key and not _KEY.fullmatch(key):
        raise ValueError("the engines' key is not 64 hexadecimal digits")
    text = "# Written by gpufleet. A secret: for the router alone.\nglobal\n"
    text += f"    setenv {VARIABLE} {key}\n" if key else f"    unsetenv {VARIABLE}\n"
    write_private(path, text)


def kept(path: Path) -> str:
    """The key of the router before this one; empty: it knew none. Raises OSError."""
    try:
        found = _LINE.search(path.read_text())
    except FileNotFoundError:
        return ""
    return found[1] if found else ""
