"""The page of benchmark results: one section per benchmark, each with its own date and machine."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TITLE: Final = (
    "# Benchmarks\n\nWritten by `make bench`; each section states when and where it was measured. Two machines of "
    "the same type may differ by half, so compare only ratios within one run.\n"
)
_SECTION: Final = re.compile(r"^## (\w+)\n", re.MULTILINE)


def sections(page: str) -> dict[str, str]:
    """Return the sections of a page by benchmark name, without the text before the first."""
    parts = _SECTION.split(page)[1:]
    return {name: text.strip() + "\n" for name, text in zip(parts[::2], parts[1::2], strict=True)}


def write(path: Path, measured: Mapping[str, str]) -> None:
    """Replace the measured sections of the page at `path`. Sections of other benchmarks stay unchanged. Raises
    OSError.
    """
    found = sections(path.read_text()) if path.exists() else {}
    whole = {**found, **measured}
    path.write_text("\n".join([TITLE, *(f"## {name}\n\n{whole[name].strip()}\n" for name in sorted(whole))]))
