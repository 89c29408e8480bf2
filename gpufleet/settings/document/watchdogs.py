"""What the fleet document says to the watchdogs: a pool's policies, and rules for instances outside every pool."""

from datetime import date
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from gpufleet.domain.policies import (
    EvidenceSource,
    IdlePolicy,
    OrphanAction,
    OrphanPolicy,
    ScalePolicy,
    ScheduleRule,
    SpotPolicy,
)
from gpufleet.settings.document.fields import (
    Duration,
    ExactDecimal,
    MoreThanZero,
    Name,
    Share,
    ShareMoreThanZero,
    Strict,
    TimeZone,
)

_ORPHAN: Final = OrphanPolicy(name="")


class OrphanEntry(Strict):
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


class IdleEntry(Strict):
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


class SpotEntry(Strict):
    fallback_after: Duration = SpotPolicy().fallback_after
    hold: Duration = SpotPolicy().hold
    price_ceiling: ExactDecimal = SpotPolicy().price_ceiling
    zone_backoff: Duration = SpotPolicy().zone_backoff
    max_surge: Annotated[int, Field(ge=0)] = SpotPolicy().max_surge
    max_stops_per_run: Annotated[int, Field(ge=0)] = SpotPolicy().max_stops_per_run
    max_stops_per_hour: Annotated[int, Field(ge=0)] = SpotPolicy().max_stops_per_hour

    def policy(self) -> SpotPolicy:
        return SpotPolicy(**self.__dict__)


class ScheduleEntry(Strict):
    days: Annotated[tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...], Field(min_length=1)]
    start: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
    end: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]
    target: Annotated[int, Field(ge=0)]
    timezone: TimeZone = "UTC"
    except_on: tuple[date, ...] = ()


class ScaleEntry(Strict):
    waiting_per_replica_above: MoreThanZero = ScalePolicy().waiting_per_replica_above
    kv_cache_above: ShareMoreThanZero = ScalePolicy().kv_cache_above
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


class Watchdogs(Strict):
    """The watchdogs of a pool; one that is absent does not look at the pool."""

    idle: IdleEntry | None = None
    spot: SpotEntry | None = None
    scale: ScaleEntry | None = None
