"""Makes external text and values fit for a terminal or a chat: replaces control characters."""

import re
from typing import Any, Final

STEERING: Final = re.compile(
    # C0 except tab and line ends, DEL and C1; then characters that change the text direction
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\r(?!\n)"
)
"""Escape sequences start with them; these can clear the screen, write the clipboard or disguise a link."""


def printable(text: str) -> str:
    """Replace each control character with U+FFFD."""
    return STEERING.sub("\ufffd", text)


def in_json(document: str) -> str:
    """Replace control characters in a JSON document with JSON escapes: a program reads the same values."""
    return STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def value_text(value: Any) -> str:
    """Return a value as a message shows it: `true` and `false` as settings write them, others as Python does."""
    return str(value).lower() if isinstance(value, bool) else repr(value)
