"""The results of checks of a machine or an account."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. A note is `ok` and has a `remedy`: nothing is wrong, but users should know it."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
