"""The owner of an instance. The cloud's group membership decides; tags do not, because many users can write them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gpufleet.domain.model import Instance


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedGroup:
    """A scaling group of a fleet: its pool and its zone."""

    pool: str
    zone: str | None = None
    """None for a group over the whole region."""


NO_GROUPS: Final[Mapping[str, OwnedGroup]] = MappingProxyType({})
"""For callers that inspect an account without a fleet."""


def owning_pool(groups: Mapping[str, Collection[str]], instance: Instance) -> str | None:
    """Return the pool to which an instance belongs; None if none. `groups`: pool -> names of its groups."""
    return next((pool for pool, names in groups.items() if instance.group in names), None)
