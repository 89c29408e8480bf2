"""The fleet document: `pulumi up` writes it to the environment's bucket; all other components read it.

Version 1. Contains no secret. It needs pydantic, so the node agent does not contain this package.
"""

import json
from collections import Counter
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, BaseModel, Field, PrivateAttr, ValidationError, model_validator

from gpufleet.domain.boots import BOOT_LIMIT
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.ownership import OwnedGroup
from gpufleet.domain.parsed import is_map, json_problem
from gpufleet.domain.policies import IdlePolicy
from gpufleet.settings.document.alerts import AlertsEntry
from gpufleet.settings.document.fields import Duration, MoreThanZero, Name, Strict, TimeOfDay, TimeZone
from gpufleet.settings.document.ledger import why_unverified
from gpufleet.settings.document.money import (
    Budget,
    Carbon,
    Commitments,
    PartBudget,
    PriceSettings,
    SharedEntry,
    Unpriced,
)
from gpufleet.settings.document.orders import OrderKeys, is_of_environment, secret_names_begin
from gpufleet.settings.document.watchdogs import OrphanRule, Watchdogs
from gpufleet.settings.expected import text_form
from gpufleet.settings.problems import from_validation

VERSION: Final = 1
PATH_IN_BUCKET: Final = "fleet/fleet.json"
_BUCKETS: Final = ("s3://", "gs://")


class DocumentError(ValueError):
    """The document is invalid. Each of `problems` gives path, value and error."""

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        self.source = source
        self.problems = problems
        super().__init__(f"{source}: " + "; ".join(problems))


class Origin(Strict):
    """The program, stack and revision that wrote the document, and when."""

    project: str
    stack: str
    revision: str
    at: AwareDatetime


class Router(Strict):
    """The router of the environment."""

    url: str
    machines: tuple[str, ...] | None = None
    """Routers on dedicated machines (AWS: instance ids; Google Cloud: names). None in documents of earlier releases,
    which do not contain them."""


class Notify(Strict):
    """Slack notifications: channel, time of the daily digest, and the users who may keep an idle instance."""

    slack_channel: str
    digest_at: TimeOfDay = "08:00"
    """When a day of `gpufleet report digest --daily` ends, in `timezone`."""
    timezone: TimeZone = "UTC"
    keep_users: tuple[
        Annotated[str, text_form(r"^[UW][A-Z0-9]{2,20}$", "the id of a Slack user, such as U0123ABCD")], ...
    ] = ()
    """Slack ids of the users who may click *Keep* below an idle mark; empty: no buttons are shown."""


class GroupEntry(Strict):
    """One scaling group of a pool. `max` is a number of instances."""

    type: CapacityType
    zone: str | None = None
    name: str
    max: Annotated[int, Field(ge=0)]
    reservation: str | None = None
    machine_types: tuple[str, ...] = ()
    opens: AwareDatetime | None = None
    """Start of a purchased capacity period: no instance can start before it."""
    closes: AwareDatetime | None = None
    """Time from which the cloud terminates the instances of the group."""


class Objectives(Strict):
    """The objectives of a pool, which its alerts check: a duration such as `30s`, and output tokens per second of the
    pool. An absent objective is not checked."""

    latency_p99: Duration | None = None
    """Limit for 99 % of the answers, from arrival to last token."""
    tokens_per_second: MoreThanZero | None = None
    """Expected output of the busy pool; if absent, the same hour of last week is the reference."""


class Pool(Strict):
    """Identical replicas of one served model."""

    name: Name
    model: str
    model_source: str | None = None
    """Source of the model, such as `hf://org/name@revision`; measurements are matched by it."""
    served_name: str | None = None
    """Model name that clients request; absent: the last part of `model`."""
    adapters: dict[str, str] = Field(default_factory=dict[str, str])
    """LoRA adapters: model name that clients request -> model in the bucket, as `models/chat-sql`."""
    engine: str
    owner: str
    team_split: str | None = None
    target: Annotated[int, Field(ge=0)]
    """Initial value of the ledger's target; afterwards the ledger owns the target."""
    spare: Annotated[int, Field(ge=0)] = 0
    min: Annotated[int, Field(ge=0)]
    max: Annotated[int, Field(ge=0)]
    drain_deadline: Duration
    boot_limit: Duration = BOOT_LIMIT
    """Sum of the limits of all boot steps: after it, an agent has given up an unfinished boot."""
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

    @property
    def requested_name(self) -> str:
        """The value of `model` in clients' requests."""
        return self.served_name or self.model.rstrip("/").rpartition("/")[2]

    def groups_of(self, capacity_type: CapacityType) -> tuple[GroupEntry, ...]:
        return tuple(group for group in self.groups if group.type is capacity_type)


class FleetDocument(Strict):
    """One environment on one cloud, region and account."""

    version: Literal[1]
    environment: str
    cloud: Cloud
    region: str
    zones: tuple[str, ...] = ()
    """Zones of the environment; empty in documents of earlier releases."""
    account: str
    generated_by: Origin
    bucket: str
    engine_key: str | None = None
    """Reference of the API key that engines require: `ssm:NAME` or `gcp-secret:projects/P/secrets/S`. Like `orders`,
    None in documents of earlier releases."""
    orders: OrderKeys | None = None
    """Keys of orders to node agents; `private_key` is a reference, too."""
    prometheus_url: str
    ledger_url: str
    router: Router
    node_exporter: bool = False
    """Whether instances also run the node exporter (metrics of the operating system)."""
    notify: Notify | None = None
    budget: Budget | None = None
    budgets: tuple[PartBudget, ...] = ()
    orphans: tuple[OrphanRule, ...] = ()
    pools: tuple[Pool, ...]
    prices: PriceSettings = PriceSettings()
    shared: tuple[SharedEntry, ...] = ()
    commitments: Commitments = Commitments()
    carbon: Carbon | None = None
    """The grid factor; null: CO2e is unknown."""
    alerts: AlertsEntry = AlertsEntry()
    _of_bucket: bool = PrivateAttr(default=False)

    @model_validator(mode="after")
    def _unique(self) -> "FleetDocument":
        # A rule for orphans is paused and budgeted by name, like a pool.
        pools = [*(pool.name for pool in self.pools), *(rule.name for rule in self.orphans)]
        groups = [group.name for pool in self.pools for group in pool.groups]
        for what, names in (("pools", pools), ("groups", groups)):
            if twice := sorted(name for name, times in Counter(names).items() if times > 1):
                raise ValueError(f"{what} named twice: {', '.join(twice)}")
        return self

    @model_validator(mode="after")
    def _own_secrets(self) -> "FleetDocument":
        # The reader uses its own permissions for these secrets; the writer of the document may have fewer.
        orders = None if self.orders is None else self.orders.private_key
        for name, place in (("engine_key", self.engine_key), ("orders.private_key", orders)):
            if place is not None and not is_of_environment(place, self.cloud, self.environment, self.account):
                begin = secret_names_begin(self.cloud, self.environment)
                raise ValueError(f"{name}: is not a secret of {self.environment}: its name must begin with {begin}")
        return self

    @property
    def why_no_ledger(self) -> str | None:
        """Why the ledger must not be opened; None if it may. A document on the reader's own disk is trusted."""
        return why_unverified(self.ledger_url) if self._of_bucket else None

    def group_names(self) -> dict[str, frozenset[str]]:
        """Return pool -> names of its groups."""
        return {pool.name: frozenset(group.name for group in pool.groups) for pool in self.pools}

    def owned_groups(self) -> dict[str, OwnedGroup]:
        """Return group name -> group. Only instances in these groups belong to the fleet."""
        return {
            group.name: OwnedGroup(pool=pool.name, zone=group.zone) for pool in self.pools for group in pool.groups
        }

    def pool(self, name: str) -> Pool:
        """Return the pool of that name. Raises KeyError with the existing names."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(f"no pool {name!r}; pools: {', '.join(p.name for p in self.pools) or 'none'}")


def parse(text: str | bytes, source: str) -> FleetDocument:
    """Parse a document. `source`: file or URL for error messages. Raises DocumentError."""
    try:
        raw: object = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise DocumentError(source, (json_problem(text, error),)) from error
    if not is_map(raw):
        raise DocumentError(source, ("must be a JSON object",))
    if "version" not in raw:
        raise DocumentError(source, ("version: is missing: this is not a fleet document",))
    version = raw["version"]
    if version != VERSION:
        raise DocumentError(
            source,
            (f"version: is {version!r}; this gpufleet reads version {VERSION}: upgrade the older one",),
        )
    try:
        # `agent_token` is in documents from before signed orders: a reference of a secret that is no longer used.
        found = FleetDocument.model_validate({key: value for key, value in raw.items() if key != "agent_token"})
    except ValidationError as error:
        raise DocumentError(source, describe_problems(error, FleetDocument)) from error
    # A writer of the bucket must not be able to direct the reader's database password to any server.
    found._of_bucket = source.startswith(_BUCKETS)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    return found


def describe_problems(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """Return one line per problem of a file of this form: path, error, value (shortened)."""
    return tuple(map(str, from_validation(error, model=model)))


def render(document: FleetDocument) -> str:
    """Render the document as JSON, with keys in the order of this file and a final newline.

    Newer fields with default values are omitted, so that earlier releases can read the document.
    """
    excluded: dict[str, Any] = {} if document.node_exporter else {"node_exporter": True}
    if (budget := document.budget) is not None:
        omitted = {"stop_growth_at_usd_per_hour": budget.stop_growth_at_usd_per_hour is None}
        excluded["budget"] = omitted | {"unpriced": budget.unpriced is Unpriced.WARN}
    if document.carbon is None:
        excluded["carbon"] = True
    if document.router.machines is None:
        excluded["router"] = {"machines"}
    excluded["pools"] = {number: _omitted(pool) for number, pool in enumerate(document.pools)}
    return document.model_dump_json(indent=2, exclude=excluded) + "\n"


def _omitted(pool: Pool) -> dict[str, Any]:
    """Return the fields of a pool that are omitted from the JSON."""
    idle, spot = pool.watchdogs.idle, pool.watchdogs.spot
    return {
        "served_name": pool.served_name is None,
        "boot_limit": pool.boot_limit == BOOT_LIMIT,
        # pydantic accepts no False for a dictionary
        **({} if pool.adapters else {"adapters": True}),
        "watchdogs": {
            "idle": {"stop_price": idle is not None and idle.stop_price == IdlePolicy().stop_price},
            "spot": {"max_starts_per_hour": spot is not None and spot.max_starts_per_hour is None},
        },
    }


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of version 1, as committed in docs/fleet-document.schema.json."""
    from gpufleet.settings.schema import SettingsSchema  # only schemas need the sources of the fields

    return FleetDocument.model_json_schema(mode="serialization", schema_generator=SettingsSchema)
