"""What a group wants its instances to be, and what they are."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupVersion:
    """Which template a group wants and which its instances have."""

    group: str
    wanted: str
    """AWS: a template's version number. Google Cloud: a template's name."""
    outdated: tuple[str, ...]
    """Ids of instances made from another one."""
    current: tuple[str, ...]
