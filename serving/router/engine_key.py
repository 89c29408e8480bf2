"""The key that the router sends to engines. It has its own file, because people print the configuration."""

import re
from pathlib import Path
from typing import Final

from gpufleet.domain.files import write_private

FILE_NAME: Final = "engine-key.cfg"
"""Next to the configuration; HAProxy reads it first."""
VARIABLE: Final = "GPUFLEET_ENGINE_KEY"
HEADER: Final = f'"Bearer ${{{VARIABLE}-unknown}}"'
"""Authorization header of requests to engines. HAProxy expands the variable when it reads the configuration, not for
each request. Without a key, engines receive this text and refuse it. A client's own header never reaches them."""
_KEY: Final = re.compile(r"[0-9a-f]{64}")
_LINE: Final = re.compile(rf"^    setenv {VARIABLE} ({_KEY.pattern})$", re.MULTILINE)


def write(path: Path, key: str) -> None:
    """Replace the file; an empty key means no known key. Raises OSError; ValueError for an invalid key."""
    if key and not _KEY.fullmatch(key):
        raise ValueError("the engines' key is not 64 hexadecimal digits")
    text = "# Written by gpufleet. A secret: for the router alone.\nglobal\n"
    text += f"    setenv {VARIABLE} {key}\n" if key else f"    unsetenv {VARIABLE}\n"
    write_private(path, text)


def kept(path: Path) -> str:
    """Return the key of the previous router; empty when it had none. Raises OSError."""
    try:
        found = _LINE.search(path.read_text())
    except FileNotFoundError:
        return ""
    return found[1] if found else ""
