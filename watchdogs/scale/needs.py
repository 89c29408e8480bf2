"""The need of the scale watchdog within the next hour, for watchdogs that would end instances."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.boots import Boot
from gpufleet.domain.decisions import Reason
from gpufleet.domain.durations import approximate
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance
from gpufleet.domain.policies import ScheduleRule
from gpufleet.settings.document import Pool
from watchdogs import boots
from watchdogs.ports import Metrics
from watchdogs.scale import hours, pressure
from watchdogs.scale.decide import least
from watchdogs.scale.view import Need, ScalePoolView

HORIZON: Final = timedelta(hours=1)
"""An instance that is needed again within this time is kept: a new one needs a cold start, and spot capacity."""
_MINUTE: Final = timedelta(minutes=1)
"""Rules of a schedule begin and end on whole minutes."""


def needed_soon(  # noqa: PLR0913, PLR0917 - what a look at some pools consists of
    pools: Sequence[Pool],
    targets: Mapping[str, int],
    leads: Mapping[str, timedelta],
    metrics: Metrics,
    environment: str,
    now: datetime,
) -> dict[str, Need]:
    """By pool that has a scale watchdog: the fewest replicas that it would not raise again. Raises OSError."""
    policies = {pool.name: pool.watchdogs.scale for pool in pools if pool.watchdogs.scale is not None}
    if not policies:
        return {}
    readings = pressure.read(metrics, environment, policies, now)
    found: dict[str, Need] = {}
    for pool in pools:
        policy = policies.get(pool.name)
        if policy is None:
            continue
        view = ScalePoolView(
            name=pool.name,
            policy=policy,
            target=targets[pool.name],
            min=pool.min,
            max=pool.max,
            ready=0,  # not used for the need
            demand=readings.demand(pool.name),
            pressure=readings.pressure(pool.name),
            held_requests=readings.held_requests(pool.name),
            held_requests_peak=readings.held_requests_peak(pool.name),
            cold_start=leads[pool.name],
        )
        found[pool.name] = _with_schedule(least(view, now), policy.schedule, pool.max, now)
    return found


def _with_schedule(need: Need, schedule: Sequence[ScheduleRule], most: int, now: datetime) -> Need:
    """The need, or what the schedule will ask for within the horizon where that is more."""
    moments = (now + _MINUTE * minute for minute in range(HORIZON // _MINUTE)) if schedule else ()
    asked = min(max((hours.floor(schedule, moment) for moment in moments), default=0), most)
    if asked <= need.replicas:
        return need
    detail = f"{asked} by its schedule within {approximate(HORIZON)}"
    return replace(need, replicas=asked, reason=Reason.SCHEDULE, detail=detail)


def cold_starts(
    by_pool: Mapping[str, Sequence[Instance]], statuses: Mapping[str, AgentStatus], remembered: Sequence[Boot]
) -> dict[str, timedelta]:
    """By pool: the median time from launch to ready of its instances.

    For a pool without a ready instance: by the boots in the ledger, else the median of all pools.
    """
    took = {pool: boots.durations(members, statuses) for pool, members in by_pool.items()}
    usual = boots.expected([boot for own in took.values() for boot in own])
    past = {pool: boots.by_machine_type(boot for boot in remembered if boot.pool == pool).values() for pool in took}
    return {pool: boots.expected(own, otherwise=max(past[pool], default=usual)) for pool, own in took.items()}
