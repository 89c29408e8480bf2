"""The router's external inputs. The last valid version of each is kept on disk."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Protocol

from gpufleet.domain.files import write_atomically
from gpufleet.domain.model import CapacityType, Instance
from gpufleet.settings.document import FleetDocument, parse, render
from serving.router import engine_key
from serving.router.keys import ApiKey
from serving.router.policy import RouterPolicy, parse_policy, render_policy
from serving.router.settings import RouterPaths
from serving.router.topology import Replica, Topology, from_document

REPLICAS_VALID_S: Final = 600.0
"""Maximum age of stored replicas in seconds: after that, the cloud may have reused an address."""
WRITTEN_EVERY_S: Final = 60.0


class FleetSource(Protocol):
    """The sources of information about the fleet."""

    def document(self) -> FleetDocument:
        """Return the current fleet document. Raises OSError or ValueError."""
        ...

    def policy(self) -> RouterPolicy:
        """Return the routing policy, or the defaults if there is none. Raises OSError or ValueError."""
        ...

    def keys(self) -> tuple[ApiKey, ...]:
        """Return the API keys. Raises OSError or ValueError."""
        ...

    def engine_key(self, document: FleetDocument) -> str:
        """Return the API key of the fleet's engines. Raises OSError or ValueError."""
        ...

    def instances(self, document: FleetDocument) -> Sequence[Instance]:
        """Return all instances of the environment. Raises OSError; it never returns a partial list."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterInputs:
    """All inputs, complete and consistent with each other."""

    document: FleetDocument | None = None
    topology: Topology = field(default_factory=lambda: Topology(environment="", pools=()))
    policy: RouterPolicy = field(default_factory=RouterPolicy)
    keys: tuple[ApiKey, ...] = ()
    engine_key: str = field(default="", repr=False)
    """Empty: not known yet."""


class RouterSources:
    """Reads inputs and keeps valid ones. It calls `note(what, problem)` for each; an empty problem means success."""

    def __init__(self, fleet: FleetSource, paths: RouterPaths, note: Callable[[str, str], None]) -> None:
        self._fleet = fleet
        self._paths = paths
        self._note = note
        self._kept_replicas: tuple[tuple[Replica, ...], float] = ((), 0.0)

    def kept(self) -> RouterInputs:
        """Return the inputs that the previous router kept."""
        inputs = RouterInputs()
        try:
            inputs = RouterInputs(engine_key=engine_key.kept(self._paths.engine_key))
            document = parse(self._paths.last_document.read_bytes(), str(self._paths.last_document))
            inputs = replace(inputs, document=document, topology=from_document(document))
            policy = parse_policy(self._paths.last_policy.read_bytes(), str(self._paths.last_policy))
            return replace(inputs, policy=policy)
        except FileNotFoundError:
            return inputs
        except (OSError, ValueError) as error:
            self._note("kept", f"the data that the last router stored cannot be used: {error}")
            return inputs

    def read(self, last: RouterInputs) -> RouterInputs:
        """Return current inputs; for each that cannot be read, the last valid one."""
        inputs = last
        try:
            document = self._fleet.document()
            inputs = replace(inputs, document=document, topology=from_document(document))
            self._note("document", "")
        except (OSError, ValueError) as error:
            kept = "" if last.document is None else "; keeping the last valid one"
            self._note("document", f"fleet document: {error}{kept}")
        inputs = self._with_engine_key(self._with_policy(inputs))
        try:
            inputs = replace(inputs, keys=self._fleet.keys())
            self._note("keys", "")
        except (OSError, ValueError) as error:
            rest = "keeping the last valid ones" if inputs.keys else "no key is known"
            self._note("keys", f"API keys: {error}; {rest}")
        return inputs

    def keep(self, inputs: RouterInputs) -> None:
        """Store the inputs that HAProxy runs with."""
        if inputs.document is not None:
            write_atomically(self._paths.last_document, render(inputs.document).encode())
        write_atomically(self._paths.last_policy, render_policy(inputs.policy).encode())

    def kept_replicas(self, topology: Topology, now: float) -> tuple[Replica, ...]:
        """Return the previous router's replicas, if they are recent. `now`: seconds since 1970."""
        try:
            known = json.loads(self._paths.last_replicas.read_text())
            found = [
                Replica(**one | {"capacity_type": CapacityType(one["capacity_type"])}) for one in known["replicas"]
            ]
            is_recent = 0 <= now - float(known["at"]) <= REPLICAS_VALID_S
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._note("kept replicas", f"the replicas that the last router stored cannot be used: {error}")
            return ()
        pools = {pool.name for pool in topology.pools}
        return tuple(replica for replica in found if replica.pool in pools) if is_recent else ()

    def keep_replicas(self, replicas: tuple[Replica, ...], now: float) -> None:
        """Store a complete inventory when it has changed, and at regular intervals."""
        last, at = self._kept_replicas
        if replicas == last and 0 <= now - at < WRITTEN_EVERY_S:
            return
        known = {"at": now, "replicas": [asdict(replica) for replica in replicas]}
        try:
            write_atomically(self._paths.last_replicas, json.dumps(known).encode() + b"\n")
            self._kept_replicas = (replicas, now)
            self._note("kept replicas", "")
        except OSError as error:
            self._note("kept replicas", f"the replicas cannot be stored for the next router: {error}")

    def _with_engine_key(self, inputs: RouterInputs) -> RouterInputs:
        if inputs.document is None:
            return inputs
        try:
            inputs = replace(inputs, engine_key=self._fleet.engine_key(inputs.document))
            self._note("engine key", "")
        except (OSError, ValueError) as error:
            rest = "keeping the last valid one" if inputs.engine_key else "engines refuse requests without it"
            self._note("engine key", f"engine key: {error}; {rest}")
        return inputs

    def _with_policy(self, inputs: RouterInputs) -> RouterInputs:
        if inputs.document is None:
            return inputs
        try:
            policy = self._fleet.policy()
            if unknown_pools := policy.unknown_pools({pool.name for pool in inputs.topology.pools}):
                raise ValueError(f"names pools that the fleet does not have: {', '.join(unknown_pools)}")
            self._note("policy", "")
        except (OSError, ValueError) as error:
            self._note("policy", f"routing policy: {error}; keeping the last valid one")
            unknown_pools = inputs.policy.unknown_pools({pool.name for pool in inputs.topology.pools})
            return replace(inputs, policy=RouterPolicy()) if unknown_pools else inputs
        return replace(inputs, policy=policy)
