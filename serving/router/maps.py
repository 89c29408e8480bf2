"""HAProxy's lookup maps: small, changed while it runs, and also written to files so that a reload keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from serving.router.keys import ApiKey
from serving.router.policy import RouterPolicy
from serving.router.topology import Topology

FOLDER: Final = "maps"
UNKNOWN_MS: Final = 2_000_000_000
"""Means "no latency measured": no objective is met."""


class Map(StrEnum):
    """Name of each map; its file is `maps/<name>.map`."""

    MODELS = "models"
    """Model name to default pool."""
    POOLS = "pools"
    """Pool to itself: the valid values of an override."""
    CANARY_SHARE = "canary-share"
    """Model to the canary's share, in hundredths of a percent."""
    CANARY_POOL = "canary-pool"
    CANARY_SALT = "canary-salt"
    ARMS = "arms"
    """`model:0` … `model:99` to pool."""
    ARMS_SALT = "arms-salt"
    CLASSES = "classes"
    """`model:class` to pool."""
    PRIORITIES = "priorities"
    """Class to queue priority."""
    P95_MS = "p95-ms"
    """Pool to the recent 95th percentile of its response times."""
    FASTEST = "fastest"
    """Model to the pool with the lowest p95."""
    KEYS = "keys"
    """SHA-256 of an API key to its name."""
    KEY_CLASSES = "key-classes"
    KEY_LIMITS = "key-limits"
    """Name of a key to its limit of requests per 10 s."""
    KEY_MODELS = "key-models"
    """SHA-256 of a model-restricted key, and `SHA-256:model` of each of its models, to `1`."""

    @property
    def file(self) -> str:
        """The map's file, relative to the router's folder."""
        return f"{FOLDER}/{self.value}.map"


Maps = Mapping[Map, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveValues:
    """Values measured while the router runs."""

    p95_ms: Mapping[str, float] = field(default_factory=dict[str, float])
    """Pool to recent p95 in ms; a pool without traffic is absent."""


def build(topology: Topology, policy: RouterPolicy, keys: tuple[ApiKey, ...], live: LiveValues) -> Maps:
    """Build all maps from fleet, policy, keys and measurements. Pure."""
    models = {**topology.models, **{name: m.default for name, m in policy.models.items() if m.default}}
    canaries = {name: m.canary for name, m in policy.models.items() if m.canary is not None}
    return {
        Map.MODELS: models,
        Map.POOLS: {pool.name: pool.name for pool in topology.pools},
        Map.CANARY_SHARE: {name: str(round(canary.percent * 100)) for name, canary in canaries.items()},
        Map.CANARY_POOL: {name: canary.pool for name, canary in canaries.items()},
        Map.CANARY_SALT: {name: canary.salt for name, canary in canaries.items()},
        Map.ARMS: {
            f"{name}:{slot}": pool for name in policy.models for slot, pool in enumerate(_slots(policy, name))
        },
        Map.ARMS_SALT: {name: model.arms_salt for name, model in policy.models.items() if model.arms},
        Map.CLASSES: {
            f"{name}:{kind}": pool for name, model in policy.models.items() for kind, pool in model.by_class.items()
        },
        Map.PRIORITIES: {kind: str(place) for kind, place in policy.priorities.items()},
        Map.P95_MS: {pool: str(round(ms)) for pool, ms in live.p95_ms.items()},
        Map.FASTEST: {name: _fastest(candidates(topology, policy, name), live) for name in models},
        Map.KEYS: {key.sha256: key.name for key in keys},
        Map.KEY_CLASSES: {key.name: key.user_class for key in keys if key.user_class},
        Map.KEY_LIMITS: {key.name: str(key.requests_per_10s) for key in keys if key.requests_per_10s},
        Map.KEY_MODELS: {
            bound: "1"
            for key in keys
            if key.models
            for bound in (key.sha256, *(f"{key.sha256}:{model}" for model in key.models))
        },
    }


def candidates(topology: Topology, policy: RouterPolicy, model: str) -> tuple[str, ...]:
    """Return the pools for a latency objective, cheapest first."""
    named = policy.model(model).by_cost
    default = policy.model(model).default or topology.models.get(model)
    return named or ((default,) if default else ())


def render_map(entries: Mapping[str, str]) -> str:
    """Return the text of a map's file."""
    return "".join(f"{key} {value}\n" for key, value in entries.items())


def changes(old: Maps, new: Maps) -> tuple[str, ...]:
    """Return the commands for the admin socket that change the old maps to the new ones."""
    commands: list[str] = []
    for name in Map:
        before, after = old.get(name, {}), new.get(name, {})
        commands += [f"del map {name.file} {key}" for key in before if key not in after]
        commands += [f"add map {name.file} {key} {value}" for key, value in after.items() if key not in before]
        commands += [
            f"set map {name.file} {key} {value}"
            for key, value in after.items()
            if key in before and before[key] != value
        ]
    return tuple(commands)


def _slots(policy: RouterPolicy, model: str) -> tuple[str, ...]:
    """Return one pool for each percent."""
    return tuple(arm.pool for arm in policy.model(model).arms for _ in range(arm.percent))


def _fastest(pools: tuple[str, ...], live: LiveValues) -> str:
    """Return the pool with the lowest p95. Unmeasured pools count as slowest; in a tie, the cheaper pool wins."""
    return min(pools, key=lambda pool: live.p95_ms.get(pool, UNKNOWN_MS))
