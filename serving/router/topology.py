"""Which pools a router knows, which models they serve, and which replicas they have."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from gpufleet.domain.model import CapacityType, Instance, InstanceState
from gpufleet.domain.ownership import owner_of
from gpufleet.settings.document import FleetDocument

ENGINE_PORT: Final = 8000
AGENT_CHECK_PORT: Final = 9501

_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Replica:
    """One serving engine endpoint."""

    pool: str
    name: str
    """Instance id."""
    address: str
    capacity_type: CapacityType = CapacityType.ON_DEMAND

    @property
    def number(self) -> int:
        """HAProxy's id of the server: from its name alone, so the same everywhere (1 is the activator's)."""
        return 2 + crc32(self.name.encode()) % (2**31 - 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEntry:
    """A pool as the router sees it."""

    name: str
    served_name: str
    """What clients write into `model`."""
    groups: frozenset[str] = frozenset()
    """Names of its scaling groups: who is in none of them is no replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The pools of a fleet, in the order of its document."""

    environment: str
    pools: tuple[PoolEntry, ...]

    @property
    def models(self) -> Mapping[str, str]:
        """Model name to the pool that serves it by default: the first of the document that does."""
        found: dict[str, str] = {}
        for pool in self.pools:
            found.setdefault(pool.served_name, pool.name)
        return found


def backend_of(pool: str, capacity_type: CapacityType | None = None) -> str:
    """HAProxy's name for a pool, or for its part of one capacity type: flex-start is filled as on-demand is."""
    part = CapacityType.ON_DEMAND if capacity_type is CapacityType.FLEX_START else capacity_type
    return f"pool_{pool}" + (f".{part}" if part else "")


def capacity_backends(pool: str) -> tuple[str, ...]:
    """The parts of a pool, in the order in which they are filled."""
    order = (CapacityType.RESERVED, CapacityType.SPOT, CapacityType.ON_DEMAND)
    return tuple(backend_of(pool, capacity_type) for capacity_type in order)


def pool_of(backend: str) -> str:
    """The pool behind a backend's name."""
    return backend.removeprefix("pool_").partition(".")[0]


def from_document(document: FleetDocument) -> Topology:
    """A served name is the last part of the pool's model path (`models/chat` -> `chat`).

    Raises ValueError for a name that cannot stand in HAProxy's maps.
    """
    groups = document.group_names()
    pools = tuple(
        PoolEntry(name=pool.name, served_name=pool.model.rstrip("/").rpartition("/")[2], groups=groups[pool.name])
        for pool in document.pools
    )
    for pool in pools:
        if not _MODEL_NAME.fullmatch(pool.served_name):
            raise ValueError(
                f"pool {pool.name}: model name {pool.served_name!r} has characters that a router cannot look up: "
                "use letters, digits and . _ / : @ + -"
            )
    return Topology(environment=document.environment, pools=pools)


def replicas_of(instances: Iterable[Instance], topology: Topology) -> tuple[Replica, ...]:
    """The instances that may serve: running, with an address, in a group of a pool of this topology. Sorted.

    Tags alone make no replica: a replica is sent prompts and the engines' key. Whether it is ready is for HAProxy's
    checks to find out.
    """
    groups = {pool.name: pool.groups for pool in topology.pools}
    return tuple(
        sorted(
            Replica(
                pool=pool,
                name=instance.id,
                address=instance.private_address,
                capacity_type=instance.capacity_type,
            )
            for instance in instances
            if instance.state is InstanceState.RUNNING
            and instance.environment == topology.environment
            and instance.private_address
            and (pool := owner_of(groups, instance)) is not None
        )
    )
