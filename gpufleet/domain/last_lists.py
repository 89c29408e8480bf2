"""The last lists of all pools that a pass read, for a later process that cannot read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import GroupList, Instance

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAnswer(Generic[T]):
    """The answer to a query about all pools, and its time."""

    value: T
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLists:
    """The last answers. None if a list was never read."""

    groups: CachedAnswer[GroupList] | None = None
    instances: CachedAnswer[Sequence[Instance]] | None = None
    statuses: CachedAnswer[Mapping[str, AgentStatus]] | None = None
    """Instance id -> status."""
