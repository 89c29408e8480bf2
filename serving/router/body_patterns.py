"""Regular expressions that read bodies: HAProxy's JSON reader needs 55 instructions per byte, these need ten.

Each expression reads the usual forms of a body strictly, as JSON, and finds nothing in any other form; then the rules
use the JSON reader. Each expression matches every text, so a field that is not found gives an empty string and never
the body itself. Quotes and backslashes are written as `\\x22` and `\\x5c`, which need no quoting in HAProxy's
configuration.
"""

from typing import Final

_KEY: Final = r"\s*+\x22[^\x22\x5c]*+\x22\s*+:\s*+"
_SCALAR: Final = r"(?:\x22[^\x22\x5c]*+\x22|[-+.\w]++)"
_IS: Final = r"\s*+:\s*+\x22"
_NAME: Final = r"([^\x22\x5c]*+)\x22"
_CHARACTERS: Final = r"(?:[^\x22\x5c]++|\x5c.)*+"
_FIRST_MESSAGE: Final = r"\x22messages\x22\s*+:\s*+\[\s*+\{\s*+\x22role\x22" + _IS


def _before(*names: str) -> str:
    """Match from the start of the body, over fields without objects or lists, up to the first of these names."""
    others = "|".join(rf"\x22{name}\x22" for name in names)
    return rf"\s*+\{{(?:(?!\s*+(?:{others})){_KEY}{_SCALAR}\s*+,)*+\s*+"


def _found(pattern: str) -> str:
    return rf"(?s)^(?:{pattern}|).*+"


MODEL_EARLY: Final = _found(rf"{_before('model')}\x22model\x22{_IS}{_NAME}")
"""The model's name, if no object or list precedes it."""
MODEL_LATE: Final = _found(
    r"\s*+\{(?:[^\x22\x5c]++|\x5c.|\x22(?!model\x22))*+"
    rf"\x22model\x22{_IS}{_NAME}(?:\s*+,{_KEY}{_SCALAR})*+\s*+\}}\s*+$"
)
"""The model's name, if no object or list follows it. It must be the first `"model"` in the body."""
START: Final = _found(
    rf"{_before('messages', 'prompt')}(?:{_FIRST_MESSAGE}(\w++)\x22\s*+,\s*+\x22content\x22|\x22prompt\x22)"
    rf"{_IS}({_CHARACTERS})"
)
"""Role and text of the first message, or the prompt, up to the end of the read part of the body. The text keeps its
escapes, because it is only compared."""
QUESTION: Final = _found(
    rf"{_before('messages')}{_FIRST_MESSAGE}system\x22\s*+,\s*+\x22content\x22{_IS}{_CHARACTERS}\x22\s*+\}}\s*+,\s*+\{{"
    rf"\s*+\x22role\x22{_IS}\w++\x22\s*+,\s*+\x22content\x22{_IS}({_CHARACTERS})"
)
"""The text of the second message, after a system prompt."""


def _count(field: str) -> str:
    return rf"(?=.*\x22{field}\x22\s*+:\s*+([0-9]++))"


TOKENS: Final = _found(rf"{_count('prompt_tokens')}(?:{_count('completion_tokens')})?+")
"""The input and output token counts in a response's usage, in any order. The last match of each name wins. Text of a
response cannot look like a field, because a quote inside a text has a backslash before it."""


def taken(pattern: str, groups: int = 1, between: str = "") -> str:
    """Return a converter that gives the pattern's first groups, joined by `between`, or an empty string."""
    kept = between.join(rf"\{number}" for number in range(1, groups + 1))
    return f"""'regsub("{pattern}","{kept}")'"""
