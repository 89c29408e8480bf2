"""What a check of a machine or an account found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was checked. A note is `ok` and has a remedy: nothing is wrong, but know it."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
