"""Words of others before a terminal or a chat shows them: no character that steers what shows it."""

import re
from typing import Final

STEERING: Final = re.compile(
    # C0 but for tab and line ends, DEL and C1; then what turns the direction of text around
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]|\r(?!\n)"
)
"""Escape sequences begin with them: they clear a screen, write a clipboard, show a link as another one."""


def printable(text: str) -> str:
    """The text with U+FFFD for each of these characters."""
    return STEERING.sub("\ufffd", text)


def in_json(document: str) -> str:
    """A JSON document with these characters as escapes of JSON: a program reads the same values."""
    return STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", document)
