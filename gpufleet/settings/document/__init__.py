"""The fleet document: what `pulumi up` writes into the environment's bucket and everybody else reads.

Version 1. Holds no secret. The only part of this room with a validation library, so it does not travel with the node
agent.
"""

import json
from collections import Counter
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, Field, PrivateAttr, ValidationError, model_validator

from gpufleet.domain.boots import BOOT_LIMIT
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.ownership import OwnedGroup
from gpufleet.domain.parsed import is_map
from gpufleet.domain.policies import IdlePolicy
from gpufleet.settings.document.alerts import AlertsEntry
from gpufleet.settings.document.fields import Duration, MoreThanZero, Name, Strict, TimeZone
from gpufleet.settings.document.ledger import why_unverified
from gpufleet.settings.document.money import Budget, Commitments, PartBudget, PriceSettings, SharedEntry, Unpriced
from gpufleet.settings.document.orders import OrderKeys, is_of_environment, secret_names_begin
from gpufleet.settings.document.watchdogs import OrphanRule, Watchdogs
from gpufleet.settings.problems import from_validation

VERSION: Final = 1
PATH_IN_BUCKET: Final = "fleet/fleet.json"
_BUCKETS: Final = ("s3://", "gs://")


class DocumentError(ValueError):
    """The document cannot be used. Each of `problems` names path, value and what is wrong."""

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        self.source = source
        self.problems = problems
        super().__init__(f"{source}: " + "; ".join(problems))


class Origin(Strict):
    """Who wrote the document."""

    project: str
    stack: str
    revision: str
    at: AwareDatetime


class Router(Strict):
    url: str
    machines: tuple[str, ...] | None = None
    """Routers on machines of their own (AWS: instance ids; Google Cloud: names). None: not stated, by an earlier
    release."""


class Notify(Strict):
    slack_channel: str
    digest_at: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")] = "08:00"
    """When a day of `gpufleet report digest --daily` ends, in the time zone below."""
    timezone: TimeZone = "UTC"
    keep_users: tuple[Annotated[str, Field(pattern=r"^[UW][A-Z0-9]{2,20}$")], ...] = ()
    """Slack ids of those who may press *Keep* below an idle mark; empty: no buttons are shown."""


class GroupEntry(Strict):
    """One scaling group of a pool."""

    type: CapacityType
    zone: str | None = None
    name: str
    max: Annotated[int, Field(ge=0)]
    reservation: str | None = None
    machine_types: tuple[str, ...] = ()
    opens: AwareDatetime | None = None
    """Of capacity bought for a time: nothing can be started there before."""
    closes: AwareDatetime | None = None
    """From when on the cloud ends what runs there."""


class Objectives(Strict):
    """What a pool's alerts hold it to; what is absent is not judged."""

    latency_p99: Duration | None = None
    """99 of 100 answers take no longer, arrival to last token."""
    tokens_per_second: MoreThanZero | None = None
    """Output of the busy pool; absent: the same hour of last week counts."""


class Pool(Strict):
    """Identical replicas of one served model."""

    name: Name
    model: str
    model_source: str | None = None
    """Where the model comes from, as `hf://org/name@revision`: what measurements are matched by."""
    engine: str
    owner: str
    team_split: str | None = None
    target: Annotated[int, Field(ge=0)]
    """Seeds the ledger's target; the ledger owns it from then on."""
    spare: Annotated[int, Field(ge=0)] = 0
    min: Annotated[int, Field(ge=0)]
    max: Annotated[int, Field(ge=0)]
    drain_deadline: Duration
    boot_limit: Duration = BOOT_LIMIT
    """After this long its agents have given up a boot that is not over: the limits of all its steps."""
    groups: tuple[GroupEntry, ...]
    watchdogs: Watchdogs
    objectives: Objectives = Objectives()

    @model_validator(mode="after")
    def _limits(self) -> "Pool":
        if not self.min <= self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if not self.min <= self.target <= self.max:
            raise ValueError(f"target {self.target} is outside {self.min} to {self.max}")
        return self

    def groups_of(self, capacity_type: CapacityType) -> tuple[GroupEntry, ...]:
        return tuple(group for group in self.groups if group.type is capacity_type)


class FleetDocument(Strict):
    """One environment on one cloud, region and account."""

    version: Literal[1]
    environment: str
    cloud: Cloud
    region: str
    zones: tuple[str, ...] = ()
    """Of the environment; empty in documents written before they were told."""
    account: str
    generated_by: Origin
    bucket: str
    engine_key: str | None = None
    """Where the key lies that engines ask of their clients: `ssm:NAME` or `gcp-secret:projects/P/secrets/S`. None, as
    `orders`, in documents of a release that knew neither."""
    orders: OrderKeys | None = None
    """Of orders to node agents; `private_key` is a place, too."""
    prometheus_url: str
    ledger_url: str
    router: Router
    node_exporter: bool = False
    """Whether instances serve the numbers of their operating system too."""
    notify: Notify | None = None
    budget: Budget | None = None
    budgets: tuple[PartBudget, ...] = ()
    orphans: tuple[OrphanRule, ...] = ()
    pools: tuple[Pool, ...]
    prices: PriceSettings = PriceSettings()
    shared: tuple[SharedEntry, ...] = ()
    commitments: Commitments = Commitments()
    alerts: AlertsEntry = AlertsEntry()
    _of_bucket: bool = PrivateAttr(default=False)

    @model_validator(mode="after")
    def _unique(self) -> "FleetDocument":
        # a rule for orphans is paused and budgeted by its name, as a pool is
        pools = [*(pool.name for pool in self.pools), *(rule.name for rule in self.orphans)]
        groups = [group.name for pool in self.pools for group in pool.groups]
        for what, names in (("pools", pools), ("groups", groups)):
            if twice := sorted(name for name, times in Counter(names).items() if times > 1):
                raise ValueError(f"{what} named twice: {', '.join(twice)}")
        return self

    @model_validator(mode="after")
    def _own_secrets(self) -> "FleetDocument":
        # a document is read with the rights of whoever reads it, and who wrote it may have fewer
        orders = None if self.orders is None else self.orders.private_key
        for name, place in (("engine_key", self.engine_key), ("orders.private_key", orders)):
            if place is not None and not is_of_environment(place, self.cloud, self.environment, self.account):
                begin = secret_names_begin(self.cloud, self.environment)
                raise ValueError(f"{name}: is no secret of {self.environment}: its name must begin with {begin}")
        return self

    @property
    def why_no_ledger(self) -> str | None:
        """Why the ledger must not be opened; None: it may. A document of the reader's own disk is trusted."""
        return why_unverified(self.ledger_url) if self._of_bucket else None

    def group_names(self) -> dict[str, frozenset[str]]:
        """The names of each pool's groups."""
        return {pool.name: frozenset(group.name for group in pool.groups) for pool in self.pools}

    def owned_groups(self) -> dict[str, OwnedGroup]:
        """The pools' groups by name: who is in one of them is of the fleet, and nobody else."""
        return {
            group.name: OwnedGroup(pool=pool.name, zone=group.zone) for pool in self.pools for group in pool.groups
        }

    def pool(self, name: str) -> Pool:
        """The pool of that name. Raises KeyError that lists the names there are."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(f"no pool {name!r}; there is {', '.join(p.name for p in self.pools) or 'none'}")


def parse(text: str | bytes, source: str) -> FleetDocument:
    """Read a document. `source` is the file or URL that errors name. Raises DocumentError."""
    try:
        raw: object = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise DocumentError(source, (f"is no JSON: {error}",)) from error
    if not is_map(raw):
        raise DocumentError(source, (f"must be a JSON object, is {type(raw).__name__}",))
    version = raw.get("version")
    if version != VERSION:
        raise DocumentError(
            source,
            (f"version: is {version!r}; this gpufleet reads version {VERSION}: upgrade the older of the two",),
        )
    try:
        # of documents before orders were signed: the place of a secret that nobody reads any more
        found = FleetDocument.model_validate({key: value for key, value in raw.items() if key != "agent_token"})
    except ValidationError as error:
        raise DocumentError(source, describe_problems(error)) from error
    # who may write the bucket need not be who reads it, so its reader's password is not for every server
    found._of_bucket = source.startswith(_BUCKETS)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return found


def describe_problems(error: ValidationError) -> tuple[str, ...]:
    """One line per problem: path, what is wrong, the value (cut short)."""
    return tuple(map(str, from_validation(error)))


def render(document: FleetDocument) -> str:
    """The document as JSON text, keys in the order of this file, ending in a newline.

    What came later is left out where it says nothing, so that earlier releases still read the document.
    """
    silent: dict[str, Any] = {} if document.node_exporter else {"node_exporter": True}
    if (budget := document.budget) is not None:
        unsaid = {"stop_growth_at_usd_per_hour": budget.stop_growth_at_usd_per_hour is None}
        silent["budget"] = unsaid | {"unpriced": budget.unpriced is Unpriced.WARN}
    if document.router.machines is None:
        silent["router"] = {"machines"}
    silent["pools"] = {number: _unsaid(pool) for number, pool in enumerate(document.pools)}
    return document.model_dump_json(indent=2, exclude=silent) + "\n"


def _unsaid(pool: Pool) -> dict[str, Any]:
    """What a pool leaves out of its text."""
    idle, spot = pool.watchdogs.idle, pool.watchdogs.spot
    return {
        "boot_limit": pool.boot_limit == BOOT_LIMIT,
        "watchdogs": {
            "idle": {"stop_price": idle is not None and idle.stop_price == IdlePolicy().stop_price},
            "spot": {"max_starts_per_hour": spot is not None and spot.max_starts_per_hour is None},
        },
    }


def json_schema() -> dict[str, Any]:
    """The JSON Schema of version 1, as committed in docs/fleet-document.schema.json."""
    return FleetDocument.model_json_schema(mode="serialization")
