"""Which pools a router knows, which models they serve, and which replicas they have."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fleet.document import FleetDocument
from fleet.model import CapacityType, Instance, InstanceState

ENGINE_PORT: Final = 8000
AGENT_CHECK_PORT: Final = 9501


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Replica:
    """One serving engine endpoint."""

    pool: str
    name: str
    """Instance id."""
    address: str
    capacity_type: CapacityType = CapacityType.ON_DEMAND


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEntry:
    """A pool as the router sees it."""

    name: str
    served_name: str
    """What clients write into `model`."""


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


def from_document(document: FleetDocument) -> Topology:
    """A served name is the last part of the pool's model path (`models/chat` -> `chat`)."""
    return Topology(
        environment=document.environment,
        pools=tuple(
            PoolEntry(name=pool.name, served_name=pool.model.rstrip("/").rpartition("/")[2])
            for pool in document.pools
        ),
    )


def replicas_of(instances: Iterable[Instance], topology: Topology) -> tuple[Replica, ...]:
    """The instances that may serve: running, with an address, in a pool of this topology. Sorted.

    Whether they are ready is for HAProxy's checks to find out.
    """
    pools = {pool.name for pool in topology.pools}
    return tuple(
        sorted(
            Replica(
                pool=instance.pool,
                name=instance.id,
                address=instance.private_address,
                capacity_type=instance.capacity_type,
            )
            for instance in instances
            if instance.state is InstanceState.RUNNING
            and instance.pool in pools
            and instance.environment in (None, topology.environment)
            and instance.private_address
        )
    )
