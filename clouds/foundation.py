"""What an environment needs before its first `pulumi up`, in words that both clouds share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

TOKEN_BYTES: Final = 32
"""Of the node agents' token, before it is written as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that must be there. `make` is called only where it is missing."""

    what: str
    present: bool
    make: Callable[[], None]
