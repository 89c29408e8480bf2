"""Whose an instance is: by the group that its cloud says it is of, and not by tags, which many may write."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gpufleet.domain.model import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedGroup:
    """A scaling group of a fleet, by what its pool is called and where it lies."""

    pool: str
    zone: str | None = None
    """None: it is one of the whole region."""


NO_GROUPS: Final[Mapping[str, OwnedGroup]] = MappingProxyType({})
"""Of who looks at an account, and not at a fleet."""


def owner_of(groups: Mapping[str, Collection[str]], instance: Instance) -> str | None:
    """The pool of a fleet that an instance is of; None: none. `groups`: the names of each pool's groups."""
    return next((pool for pool, names in groups.items() if instance.group in names), None)
