"""What people say about routing: `router.json` beside the fleet document. Everything in it has a default.

The fleet document says which pools there are; this file says who goes where. It holds no secret: API keys are in a
file of their own (`keys`).
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_network
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpufleet.settings.document import DocumentError, describe_problems

VERSION: Final = 1
FILE_NAME: Final = "router.json"

ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,127}$")]
PoolName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
ClassName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
Salt = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


def _network(value: str) -> str:
    return str(ip_network(value))


Network = Annotated[str, AfterValidator(_network)]


def _page(value: str) -> str:
    if "lora_adapter" in value:
        raise ValueError("it loads code paths of the engine; adapters are no matter of clients")
    return value


Page = Annotated[str, Field(pattern=r"^/v1/[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+){0,4}$"), AfterValidator(_page)]


class Balance(StrEnum):
    """How a replica of a pool is chosen."""

    PREFIX = "prefix"
    """Same session or same long prompt start, same replica (its cache is warm), within a bound on load."""
    LEAST = "least"
    """The replica with the fewest requests."""


class Placement(StrEnum):
    """Whether capacity types of a pool are filled alike or in order."""

    SPREAD = "spread"
    RESERVED_FIRST = "reserved-first"
    """Reserved, then spot, then on-demand: the next one only when the one before is full."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Canary(_Strict):
    """A second pool of the same model that some users get, always the same ones."""

    pool: PoolName
    percent: Annotated[float, Field(ge=0, le=100)]
    salt: Salt
    """A new one for each experiment: else the same users are always the first."""


class Arm(_Strict):
    pool: PoolName
    percent: Annotated[int, Field(ge=0, le=100)]


class ModelPolicy(_Strict):
    """How the requests for one model name are shared out."""

    default: PoolName | None = None
    """Absent: the first pool of the fleet document that serves the model."""
    by_class: dict[ClassName, PoolName] = Field(default_factory=dict[str, str])
    canary: Canary | None = None
    arms: tuple[Arm, ...] = ()
    arms_salt: Salt = "arms"
    by_cost: tuple[PoolName, ...] = ()
    """Pools for a latency objective, cheapest first."""

    @model_validator(mode="after")
    def _whole(self) -> "ModelPolicy":
        total = sum(arm.percent for arm in self.arms)
        if self.arms and total != 100:
            raise ValueError(f"the percentages of its arms add up to {total}, must be 100")
        return self

    def named_pools(self) -> set[str]:
        """Every pool that this policy names."""
        named = {*self.by_class.values(), *self.by_cost, *(arm.pool for arm in self.arms)}
        named |= {self.default} if self.default else set()
        return named | ({self.canary.pool} if self.canary else set())


class PoolPolicy(_Strict):
    """How one pool takes requests."""

    balance: Balance = Balance.PREFIX
    placement: Placement = Placement.SPREAD
    most_per_replica: Annotated[int, Field(ge=1)] = 256
    """Requests at once on one replica; with `reserved-first` the mark at which the next type is used."""
    queue: Annotated[int, Field(ge=1)] = 512
    """Requests that may wait in the pool; 429 after that."""
    hold: Annotated[int, Field(ge=0)] = 100
    """Requests that may wait while the pool has no replica."""
    hold_seconds: Annotated[int, Field(ge=0, le=3600)] = 300


class RouterPolicy(_Strict):
    """The whole file, version 1."""

    version: Literal[1] = 1
    trusted_networks: tuple[Network, ...] = ("127.0.0.0/8",)
    """Clients there may choose a pool (x-model-override) and a class (x-user-class)."""
    default_class: ClassName = "standard"
    priorities: dict[ClassName, Annotated[int, Field(ge=-2047, le=2047)]] = Field(
        default_factory=lambda: {"premium": -10, "standard": 0, "batch": 10}
    )
    """Place in a queue; lower goes first."""
    embeddings_pool: PoolName | None = None
    require_key: bool = False
    requests_per_10s: Annotated[int, Field(ge=1)] | None = None
    """Of one key that has no limit of its own."""
    more_pages: tuple[Page, ...] = ()
    """Pages of engines that clients may POST to, beside `rules.PAGES`."""
    models: dict[ModelName, ModelPolicy] = Field(default_factory=dict[str, ModelPolicy])
    pools: dict[PoolName, PoolPolicy] = Field(default_factory=dict[str, PoolPolicy])

    def pool(self, name: str) -> PoolPolicy:
        """The policy of a pool, defaults if it has none."""
        return self.pools.get(name, PoolPolicy())

    def model(self, name: str) -> ModelPolicy:
        """The policy of a model name, defaults if it has none."""
        return self.models.get(name, ModelPolicy())

    def strangers(self, pools: Mapping[str, object] | set[str]) -> list[str]:
        """Pools that the policy names and the fleet does not have."""
        named = {name for model in self.models.values() for name in model.named_pools()} | set(self.pools)
        named |= {self.embeddings_pool} if self.embeddings_pool else set()
        return sorted(named - set(pools))


def parse_policy(text: str | bytes, source: str) -> RouterPolicy:
    """Read a policy. Raises DocumentError that lists all problems with path and value."""
    try:
        return RouterPolicy.model_validate(json.loads(text))
    except ValidationError as error:
        raise DocumentError(source, describe_problems(error)) from error
    except (ValueError, RecursionError) as error:
        raise DocumentError(source, (f"is no JSON: {error}",)) from error


def render_policy(policy: RouterPolicy) -> str:
    """The policy as JSON text."""
    return policy.model_dump_json(indent=2, exclude_none=True) + "\n"
