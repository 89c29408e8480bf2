"""The node agent as one file: the same bytes for the same sources, so that its digest names it."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOMS: Final = ("node", "serving", "clouds", "gpufleet")
LEFT_OUT: Final = (
    "gpufleet/settings/",
    "serving/agent_archive.py",
    "serving/user_data.py",
    "serving/sizing/data/measured.csv",
)
"""Files, and folders with all below them, that an instance has no use for or whose library does not travel."""
_SUFFIXES: Final = frozenset({".py", ".json", ".service", ".csv"})
_ENTRY: Final = "import runpy\n\nrunpy.run_module('node', run_name='__main__', alter_sys=True)\n"
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a ZIP knows."""
_UNIX: Final = 3
_MODE: Final = 0o644 << 16


def build(root: Path) -> bytes:
    """A zipapp of the agent's rooms under `root` (the folder that holds `node/`).

    Raises FileNotFoundError when the agent is not there.
    """
    if not (root / "node" / "__main__.py").is_file():
        raise FileNotFoundError(f"{root}: holds no node/__main__.py, so no agent can be packed")
    packed = io.BytesIO()
    packed.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(packed, "a") as archive:
        for name, body in [("__main__.py", _ENTRY.encode()), *_sources(root)]:
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.create_system = _UNIX
            entry.external_attr = _MODE
            # stored, not compressed: another zlib gives other bytes
            archive.writestr(entry, body, zipfile.ZIP_STORED)
    return packed.getvalue()


def _sources(root: Path) -> Iterator[tuple[str, bytes]]:
    for room in ROOMS:
        for path in sorted((root / room).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in _SUFFIXES and path.is_file() and not name.startswith(LEFT_OUT):
                yield name, path.read_bytes()
