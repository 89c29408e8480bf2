"""The watchdog part of the fleet document: policies of a pool, and rules for instances outside all pools."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

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
    InPlace,
    MoreThanZero,
    Name,
    Share,
    ShareMoreThanZero,
    Strict,
    TimeOfDay,
    TimeZone,
)

_Count = Annotated[int, Field(ge=0)]
_Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_Schedule = Annotated[
    ScheduleRule,
    InPlace(days=Annotated[tuple[_Day, ...], Field(min_length=1)], start=TimeOfDay, end=TimeOfDay, timezone=TimeZone),
]


def _named(rule: OrphanPolicy) -> OrphanPolicy:
    if not (rule.tags or rule.name_like or rule.owner or rule.older_than):
        raise ValueError("selects no instances: set tags, name_like, owner or older_than")
    if rule.action is OrphanAction.STOP and rule.evidence is EvidenceSource.CLOUDWATCH:
        raise ValueError("evidence: cloudwatch has no engine metrics, which a stop requires: use prometheus, or mark")
    return rule


OrphanRule = Annotated[
    OrphanPolicy, InPlace(hidden=("coverage", "gpu_active_below"), name=Name), AfterValidator(_named)
]
"""A rule for GPU instances outside all pools."""


class Watchdogs(Strict):
    """The watchdogs of a pool. An absent watchdog does not observe or change the pool."""

    idle: (
        Annotated[IdlePolicy, InPlace(coverage=Share, gpu_active_below=Share, max_stops_per_day=MoreThanZero | None)]
        | None
    ) = None
    spot: Annotated[SpotPolicy, InPlace(max_starts_per_hour=_Count | None)] | None = None
    scale: (
        Annotated[
            ScalePolicy,
            InPlace(
                waiting_per_replica_above=MoreThanZero,
                kv_cache_above=ShareMoreThanZero,
                requests_per_replica=MoreThanZero | None,
                tokens_per_second_per_replica=MoreThanZero | None,
                first_token_s=MoreThanZero | None,
                inter_token_s=MoreThanZero | None,
                headroom=Annotated[float, Field(ge=0, allow_inf_nan=False)],
                schedule=tuple[_Schedule, ...],
            ),
        ]
        | None
    ) = None
