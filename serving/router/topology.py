"""The pools of a router, their models, and their replicas."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from gpufleet.domain.model import CapacityType, Instance, InstanceState
from gpufleet.domain.ownership import owning_pool
from gpufleet.settings.document import FleetDocument

ENGINE_PORT: Final = 8000
AGENT_CHECK_PORT: Final = 9501

_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Replica:
    """The endpoint of one engine."""

    pool: str
    name: str
    """Instance ID."""
    address: str
    capacity_type: CapacityType = CapacityType.ON_DEMAND

    @property
    def number(self) -> int:
        """HAProxy's ID of the server, derived from its name, so equal on all routers (1 is the activator's)."""
        return 2 + crc32(self.name.encode()) % (2**31 - 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEntry:
    """A pool, as far as the router needs it."""

    name: str
    served_name: str
    """The value of `model` in clients' requests."""
    adapters: tuple[str, ...] = ()
    """Values of `model` that select a LoRA adapter of this pool."""
    groups: frozenset[str] = frozenset()
    """Names of its scaling groups. Instances outside these groups are not replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The pools of a fleet, in the order of its document."""

    environment: str
    pools: tuple[PoolEntry, ...]

    @property
    def models(self) -> Mapping[str, str]:
        """Name of a model or adapter to its default pool: the first pool of the document that serves it."""
        found: dict[str, str] = {}
        for pool in self.pools:
            found.setdefault(pool.served_name, pool.name)
        for pool in self.pools:
            for name in pool.adapters:
                found.setdefault(name, pool.name)
        return found


def backend_of(pool: str, capacity_type: CapacityType | None = None) -> str:
    """Return the backend name of a pool, or of its part of one capacity type. Flex-start uses on-demand's part."""
    part = CapacityType.ON_DEMAND if capacity_type is CapacityType.FLEX_START else capacity_type
    return f"pool_{pool}" + (f".{part}" if part else "")


def capacity_backends(pool: str) -> tuple[str, ...]:
    """Return the backends of a pool's capacity types, in the order in which they fill."""
    order = (CapacityType.RESERVED, CapacityType.SPOT, CapacityType.ON_DEMAND)
    return tuple(backend_of(pool, capacity_type) for capacity_type in order)


def pool_of(backend: str) -> str:
    """Return the pool of a backend's name."""
    return backend.removeprefix("pool_").partition(".")[0]


def from_document(document: FleetDocument) -> Topology:
    """Read the pools. Raises ValueError for a name with characters that HAProxy's maps do not allow."""
    groups = document.group_names()
    pools = tuple(
        PoolEntry(
            name=pool.name,
            served_name=pool.requested_name,
            adapters=tuple(pool.adapters),
            groups=groups[pool.name],
        )
        for pool in document.pools
    )
    for pool in pools:
        for name in (pool.served_name, *pool.adapters):
            if _MODEL_NAME.fullmatch(name):
                continue
            raise ValueError(
                f"pool {pool.name}: model name {name!r} has characters that a router cannot look up: "
                "use letters, digits and . _ / : @ + -"
            )
    return Topology(environment=document.environment, pools=pools)


def replicas_of(instances: Iterable[Instance], topology: Topology) -> tuple[Replica, ...]:
    """Return the instances that may serve, sorted: running, with an address, in a group of a pool of this topology.

    Tags are not sufficient, because a replica receives prompts and the engine key. HAProxy's checks find out whether
    it is ready.
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
            and (pool := owning_pool(groups, instance)) is not None
        )
    )
