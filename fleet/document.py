"""The fleet document: what `pulumi up` writes into the environment's bucket and everybody else reads.

Version 1. Holds no secret. The only file of this room with a validation library.
"""

import json
from collections.abc import Mapping
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from fleet import durations
from fleet.alerting import AlertSettings
from fleet.model import CapacityType, Cloud
from fleet.policies import (
    EvidenceSource,
    IdlePolicy,
    OrphanAction,
    OrphanPolicy,
    ScalePolicy,
    ScheduleRule,
    SpotPolicy,
)

VERSION: Final = 1
PATH_IN_BUCKET: Final = "fleet/fleet.json"


class DocumentError(ValueError):
    """The document cannot be used. Each of `problems` names path, value and what is wrong."""

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        self.source = source
        self.problems = problems
        super().__init__(f"{source}: " + "; ".join(problems))


def _to_duration(value: Any) -> Any:
    # a bare number would be taken for seconds, and "90" is refused
    if isinstance(value, timedelta):
        return value
    return durations.parse(value if isinstance(value, str) else repr(value))


def _exact(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError("write money and shares as text or a whole number, since 0.1 is not exact")
    return value


def _finite(value: Decimal) -> Decimal:
    if not value.is_finite() or not 0 <= value < _TOO_MUCH:
        raise ValueError(f"must be a finite number, 0 or more and below {_TOO_MUCH:,}")
    return value


_TOO_MUCH: Final = 10**12
"""More than anybody pays: what is above has an exponent too many."""


def _known_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{value!r} is no time zone: write a name such as Europe/Berlin or UTC") from None
    return value


TimeZone = Annotated[str, AfterValidator(_known_zone)]
Duration = Annotated[timedelta, BeforeValidator(_to_duration), PlainSerializer(durations.render, return_type=str)]
ExactDecimal = Annotated[
    Decimal, BeforeValidator(_exact), AfterValidator(_finite), PlainSerializer(str, return_type=str)
]
Share = Annotated[float, Field(ge=0, le=1)]
MoreThanZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
_ORPHAN: Final = OrphanPolicy(name="")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Origin(_Strict):
    """Who wrote the document."""

    project: str
    stack: str
    revision: str
    at: AwareDatetime


class Router(_Strict):
    url: str


class Notify(_Strict):
    slack_channel: str
    digest_at: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")] = "08:00"
    timezone: TimeZone = "UTC"
    keep_users: tuple[Annotated[str, Field(pattern=r"^[UW][A-Z0-9]{2,20}$")], ...] = ()
    """Slack ids of those who may press *Keep* below an idle mark; empty: no buttons are shown."""


class Budget(_Strict):
    usd_per_month: ExactDecimal
    usd_per_hour_at_max: ExactDecimal


class PartBudget(_Strict):
    """The budget of one pool or one team."""

    pool: str | None = None
    team: str | None = None
    usd_per_month: ExactDecimal
    thresholds: tuple[ExactDecimal, ...] = (Decimal("0.5"), Decimal("0.8"), Decimal(1))
    """Shares at which people are told."""

    @property
    def of(self) -> tuple[str, str]:
        """`pool` or `team`, and its name."""
        return ("pool", self.pool) if self.pool is not None else ("team", self.team or "")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.pool is None) == (self.team is None):
            raise ValueError("name a pool or a team, and not both")
        return self


class GroupEntry(_Strict):
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


class OrphanEntry(_Strict):
    """A rule for GPU instances outside every pool; `OrphanPolicy` says what each word means."""

    name: Name
    action: OrphanAction = OrphanAction.MARK
    evidence: EvidenceSource = EvidenceSource.PROMETHEUS
    tags: dict[str, str] = {}
    name_like: str | None = None
    owner: str | None = None
    older_than: Duration | None = None
    window: Duration = _ORPHAN.window
    grace: Duration = _ORPHAN.grace
    min_age: Duration = _ORPHAN.min_age
    max_stops_per_run: Annotated[int, Field(ge=0)] = _ORPHAN.max_stops_per_run
    max_stops_per_hour: Annotated[int, Field(ge=0)] = _ORPHAN.max_stops_per_hour
    lose_local_disks: bool = False
    engine_job: str = "engine"
    gpu_job: str = "dcgm"

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        if not (self.tags or self.name_like or self.owner or self.older_than):
            raise ValueError("names nothing: give tags, name_like, owner or older_than")
        if self.action is OrphanAction.STOP and self.evidence is EvidenceSource.CLOUDWATCH:
            raise ValueError("CloudWatch knows no engine, and a stop needs both sources: use prometheus, or mark")
        return self

    def policy(self) -> OrphanPolicy:
        return OrphanPolicy(**self.__dict__)


class IdleEntry(_Strict):
    window: Duration = IdlePolicy().window
    coverage: Share = IdlePolicy().coverage
    gpu_active_below: Share = IdlePolicy().gpu_active_below
    grace: Duration = IdlePolicy().grace
    min_age: Duration = IdlePolicy().min_age
    max_stops_per_run: Annotated[int, Field(ge=0)] = IdlePolicy().max_stops_per_run
    max_stops_per_hour: Annotated[int, Field(ge=0)] = IdlePolicy().max_stops_per_hour
    max_stops_per_day: MoreThanZero | None = IdlePolicy().max_stops_per_day

    def policy(self) -> IdlePolicy:
        return IdlePolicy(**self.__dict__)


class SpotEntry(_Strict):
    fallback_after: Duration = SpotPolicy().fallback_after
    hold: Duration = SpotPolicy().hold
    price_ceiling: ExactDecimal = SpotPolicy().price_ceiling
    zone_backoff: Duration = SpotPolicy().zone_backoff
    max_surge: Annotated[int, Field(ge=0)] = SpotPolicy().max_surge

    def policy(self) -> SpotPolicy:
        return SpotPolicy(**self.__dict__)


class ScheduleEntry(_Strict):
    days: Annotated[tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...], Field(min_length=1)]
    start: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
    end: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
    target: Annotated[int, Field(ge=0)]
    timezone: TimeZone = "UTC"
    except_on: tuple[date, ...] = ()


class ScaleEntry(_Strict):
    waiting_per_replica_above: MoreThanZero = ScalePolicy().waiting_per_replica_above
    kv_cache_above: Share = ScalePolicy().kv_cache_above
    requests_per_replica: MoreThanZero | None = None
    tokens_per_second_per_replica: MoreThanZero | None = None
    first_token_s: MoreThanZero | None = None
    inter_token_s: MoreThanZero | None = None
    headroom: Annotated[float, Field(ge=0, allow_inf_nan=False)] = ScalePolicy().headroom
    down_after: Duration = ScalePolicy().down_after
    schedule: tuple[ScheduleEntry, ...] = ()

    def policy(self) -> ScalePolicy:
        rules = tuple(ScheduleRule(**rule.__dict__) for rule in self.schedule)
        given: dict[str, Any] = {**self.__dict__, "schedule": rules}
        return ScalePolicy(**given)


class Watchdogs(_Strict):
    """The watchdogs of a pool; one that is absent does not look at the pool."""

    idle: IdleEntry | None = None
    spot: SpotEntry | None = None
    scale: ScaleEntry | None = None


class AlertsEntry(_Strict):
    """Thresholds of the alerts, as `AlertSettings` explains them."""

    gpu_active_below: Share = AlertSettings().gpu_active_below
    gpu_active_above: Share = AlertSettings().gpu_active_above
    gpu_active_for: Duration = AlertSettings().gpu_active_for
    gpu_memory_above: Share = AlertSettings().gpu_memory_above
    gpu_memory_growth: Share = AlertSettings().gpu_memory_growth
    temperature_above: MoreThanZero = AlertSettings().temperature_above
    tokens_drop: Share = AlertSettings().tokens_drop
    running_below: MoreThanZero = AlertSettings().running_below
    queue_from: MoreThanZero = AlertSettings().queue_from
    cold_start_above: Duration = AlertSettings().cold_start_above
    kv_cache_above: Share = AlertSettings().kv_cache_above
    errors_above: Share = AlertSettings().errors_above
    preemptions_per_hour: MoreThanZero = AlertSettings().preemptions_per_hour
    fallback_share_above: Share = AlertSettings().fallback_share_above
    idle_share_above: Share = AlertSettings().idle_share_above
    burn_fast: MoreThanZero = AlertSettings().burn_fast
    burn_slow: MoreThanZero = AlertSettings().burn_slow
    watchdog_silent: Duration = AlertSettings().watchdog_silent
    ledger_gap: Duration = AlertSettings().ledger_gap
    certificate_ends: Duration = AlertSettings().certificate_ends
    metrics_missing: Duration = AlertSettings().metrics_missing
    cache_retries_above: MoreThanZero = AlertSettings().cache_retries_above
    quota_above: Share = AlertSettings().quota_above

    def settings(self, latency_p99_s: Mapping[str, float], tokens_per_s: Mapping[str, float]) -> AlertSettings:
        """With the objectives of the pools."""
        of_pools = {"latency_p99_s": latency_p99_s, "reference_tokens_per_s": tokens_per_s}
        given: dict[str, Any] = {**self.__dict__, **of_pools}
        return AlertSettings(**given)


class Objectives(_Strict):
    """What a pool's alerts hold it to; what is absent is not judged."""

    latency_p99: Duration | None = None
    """99 of 100 answers take no longer, arrival to last token."""
    tokens_per_second: MoreThanZero | None = None
    """Output of the busy pool; absent: the same hour of last week counts."""


class Pool(_Strict):
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


class PriceOverride(_Strict):
    sku: str
    usd_per_hour: ExactDecimal
    source: str
    as_of: str
    unverified: bool = False


class Prices(_Strict):
    overrides: tuple[PriceOverride, ...] = ()


class SharedEntry(_Strict):
    """Something beside the GPU instances that costs money by the hour: NAT, disks, the control host."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    sku: Annotated[str, Field(pattern=r"^(aws|gcp):.+")]
    units: ExactDecimal
    per: Literal["environment", "instance"] = "environment"
    """`environment`: split over the pools by their `max`; `instance`: goes with each GPU instance."""


class _Term(_Strict):
    starts: AwareDatetime
    ends: AwareDatetime
    source: str
    as_of: str

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.starts >= self.ends:
            raise ValueError(f"ends {self.ends} is not after starts {self.starts}")
        return self


class BlockEntry(_Term):
    """A Capacity Block: its fee is paid at once and spread over its time."""

    reservation: str
    instances: Annotated[int, Field(ge=1)]
    upfront_usd: ExactDecimal


class SpendEntry(_Term):
    """A Savings Plan or CUD: USD an hour, used or not, and the rates at which it is used."""

    name: str
    usd_per_hour: ExactDecimal
    rates: Annotated[dict[str, ExactDecimal], Field(min_length=1)]
    """Machine type to the committed rate."""

    @model_validator(mode="after")
    def _rates_cost(self) -> Self:
        if free := sorted(name for name, rate in self.rates.items() if not rate):
            raise ValueError(f"rates of 0 for {', '.join(free)}")
        return self


class Commitments(_Strict):
    """What was bought ahead, declared."""

    blocks: tuple[BlockEntry, ...] = ()
    spends: tuple[SpendEntry, ...] = ()


class FleetDocument(_Strict):
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
    agent_token: str | None = None
    """Where the node agents' token lies: `ssm:NAME` or `gcp-secret:projects/P/secrets/S`; None in documents written
    before it was told."""
    prometheus_url: str
    ledger_url: str
    router: Router
    notify: Notify | None = None
    budget: Budget | None = None
    budgets: tuple[PartBudget, ...] = ()
    orphans: tuple[OrphanEntry, ...] = ()
    pools: tuple[Pool, ...]
    prices: Prices = Prices()
    shared: tuple[SharedEntry, ...] = ()
    commitments: Commitments = Commitments()
    alerts: AlertsEntry = AlertsEntry()

    @model_validator(mode="after")
    def _unique(self) -> "FleetDocument":
        # a rule for orphans is paused and budgeted by its name, as a pool is
        names = [*(pool.name for pool in self.pools), *(rule.name for rule in self.orphans)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"pools named twice: {', '.join(twice)}")
        groups = [group.name for pool in self.pools for group in pool.groups]
        if twice := sorted({name for name in groups if groups.count(name) > 1}):
            raise ValueError(f"groups named twice: {', '.join(twice)}")
        return self

    def pool(self, name: str) -> Pool:
        """The pool of that name. Raises KeyError that lists the names there are."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(f"no pool {name!r}; there is {', '.join(p.name for p in self.pools) or 'none'}")


def parse(text: str | bytes, source: str) -> FleetDocument:
    """Read a document. `source` is the file or URL that errors name. Raises DocumentError."""
    try:
        raw: Any = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise DocumentError(source, (f"is no JSON: {error}",)) from error
    if not isinstance(raw, Mapping):
        raise DocumentError(source, (f"must be a JSON object, is {type(raw).__name__}",))
    version: Any = raw.get("version")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if version != VERSION:
        raise DocumentError(
            source,
            (f"version: is {version!r}; this gpufleet reads version {VERSION}: upgrade the older of the two",),
        )
    try:
        return FleetDocument.model_validate(raw)
    except ValidationError as error:
        raise DocumentError(source, describe_problems(error)) from error


def describe_problems(error: ValidationError) -> tuple[str, ...]:
    """One line per problem: path, what is wrong, the value (cut short)."""
    return tuple(
        f"{'.'.join(str(part) for part in item['loc']) or '(document)'}: {item['msg'].removeprefix('Value error, ')}"
        f" (is {repr(item['input'])[:80]})"
        for item in error.errors()
    )


def render(document: FleetDocument) -> str:
    """The document as JSON text, keys in the order of this file, ending in a newline."""
    return document.model_dump_json(indent=2) + "\n"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of version 1, as committed in docs/fleet-document.schema.json."""
    return FleetDocument.model_json_schema(mode="serialization")
