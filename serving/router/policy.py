"""The routing policy of the operators: `router.json`, next to the fleet document. Every field has a default.

The fleet document lists the pools; this file defines which requests go to which pool. It holds no secrets: API keys
have their own file (`keys`).
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_network
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpufleet.domain.parsed import json_problem, unique_keys
from gpufleet.settings.document import DocumentError, describe_problems
from gpufleet.settings.document.fields import Name
from gpufleet.settings.expected import text_form

VERSION: Final = 1
FILE_NAME: Final = "router.json"

ModelName = Annotated[
    str,
    text_form(
        r"^[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,127}$", "the name of a model: up to 128 letters, digits and . _ / : @ + -"
    ),
]
Salt = Annotated[str, text_form(r"^[A-Za-z0-9._-]{1,64}$", "up to 64 letters, digits, '.', '_' and '-'")]


def _network(value: str) -> str:
    return str(ip_network(value))


Network = Annotated[str, AfterValidator(_network)]


def _endpoint(value: str) -> str:
    if "lora_adapter" in value:
        raise ValueError("this path changes the adapters of the engine, so clients must not reach it")
    return value


Endpoint = Annotated[
    str,
    text_form(r"^/v1/[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+){0,4}$", "a path below /v1/, such as /v1/pooling"),
    AfterValidator(_endpoint),
]


class Balance(StrEnum):
    """How a replica of a pool is selected."""

    PREFIX = "prefix"
    """The same session or long prompt prefix goes to the same replica (its cache is warm), within a load limit."""
    LEAST = "least"
    """The replica with the fewest requests."""


class Placement(StrEnum):
    """Whether the capacity types of a pool fill evenly or in order."""

    SPREAD = "spread"
    RESERVED_FIRST = "reserved-first"
    """Reserved, then spot, then on-demand: each only when the previous one is full."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Canary(_Strict):
    """A second pool of the same model for a fixed share of users."""

    pool: Name
    percent: Annotated[float, Field(ge=0, le=100)]
    salt: Salt
    """Use a new value for each experiment. Otherwise the same users are always selected."""


class Arm(_Strict):
    pool: Name
    percent: Annotated[int, Field(ge=0, le=100)]


class ModelPolicy(_Strict):
    """How the requests for one model name are distributed over pools."""

    default: Name | None = None
    """None: the first pool of the fleet document that serves the model."""
    by_class: dict[Name, Name] = Field(default_factory=dict[str, str])
    canary: Canary | None = None
    arms: tuple[Arm, ...] = ()
    arms_salt: Salt = "arms"
    by_cost: tuple[Name, ...] = ()
    """Pools for a latency objective, cheapest first."""

    @model_validator(mode="after")
    def _whole(self) -> "ModelPolicy":
        total = sum(arm.percent for arm in self.arms)
        if self.arms and total != 100:
            raise ValueError(f"the percentages of its arms add up to {total}, must be 100")
        return self

    def named_pools(self) -> set[str]:
        """Return all pools that this policy names."""
        named = {*self.by_class.values(), *self.by_cost, *(arm.pool for arm in self.arms)}
        named |= {self.default} if self.default else set()
        return named | ({self.canary.pool} if self.canary else set())


class PoolPolicy(_Strict):
    """The request limits and balancing of one pool."""

    balance: Balance = Balance.PREFIX
    placement: Placement = Placement.SPREAD
    most_per_replica: Annotated[int, Field(ge=1)] = 256
    """Maximum concurrent requests on one replica. With `reserved-first`, the next type is used above it."""
    queue: Annotated[int, Field(ge=1)] = 512
    """Maximum requests that wait in the pool; further ones get 429."""
    hold: Annotated[int, Field(ge=0)] = 100
    """Maximum requests that wait while the pool has no replica."""
    hold_seconds: Annotated[int, Field(ge=0, le=3600)] = 300


class RouterPolicy(_Strict):
    """The whole file, version 1."""

    version: Literal[1] = 1
    trusted_networks: tuple[Network, ...] = ("127.0.0.0/8",)
    """Clients from these networks may select a pool (x-model-override) and a class (x-user-class)."""
    default_class: Name = "standard"
    priorities: dict[Name, Annotated[int, Field(ge=-2047, le=2047)]] = Field(
        default_factory=lambda: {"premium": -10, "standard": 0, "batch": 10}
    )
    """Queue priority by class; lower values go first."""
    embeddings_pool: Name | None = None
    require_key: bool = False
    requests_per_10s: Annotated[int, Field(ge=1)] | None = None
    """Limit of each key without a limit of its own."""
    extra_endpoints: tuple[Endpoint, ...] = ()
    """Paths of engines that clients may POST to, in addition to `rules.ENDPOINTS`."""
    models: dict[ModelName, ModelPolicy] = Field(default_factory=dict[str, ModelPolicy])
    pools: dict[Name, PoolPolicy] = Field(default_factory=dict[str, PoolPolicy])

    def pool(self, name: str) -> PoolPolicy:
        """Return the policy of a pool, or the defaults."""
        return self.pools.get(name, PoolPolicy())

    def model(self, name: str) -> ModelPolicy:
        """Return the policy of a model name, or the defaults."""
        return self.models.get(name, ModelPolicy())

    def unknown_pools(self, pools: Mapping[str, object] | set[str]) -> list[str]:
        """Return pools that the policy names but the fleet does not have."""
        named = {name for model in self.models.values() for name in model.named_pools()} | set(self.pools)
        named |= {self.embeddings_pool} if self.embeddings_pool else set()
        return sorted(named - set(pools))


def parse_policy(text: str | bytes, source: str) -> RouterPolicy:
    """Read a policy. Raises DocumentError with path and value of all problems."""
    try:
        return RouterPolicy.model_validate(json.loads(text, object_pairs_hook=unique_keys))
    except ValidationError as error:
        raise DocumentError(source, describe_problems(error, RouterPolicy)) from error
    except (ValueError, RecursionError) as error:
        raise DocumentError(source, (json_problem(text, error),)) from error


def render_policy(policy: RouterPolicy) -> str:
    """Return the policy as JSON."""
    return policy.model_dump_json(indent=2, exclude_none=True) + "\n"
