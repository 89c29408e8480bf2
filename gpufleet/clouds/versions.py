"""Template versions of a group and of its instances."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupVersion:
    """The template version of a group, and the instances that have it or not."""

    group: str
    wanted: str
    """AWS: a template's version number. Google Cloud: a template's name."""
    outdated: tuple[str, ...]
    """Ids of instances created from another version."""
    current: tuple[str, ...]
