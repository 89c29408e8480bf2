"""Checks of flex-start capacity (Google Cloud's Dynamic Workload Scheduler)."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from gpufleet.domain import durations
from gpufleet.domain.model import Cloud
from gpufleet.settings.environment import FlexStart, PoolSettings, Settings
from gpufleet.settings.problems import Problem

SHORTEST, LONGEST = timedelta(minutes=10), timedelta(days=7)
"""Google's limits of a run's duration (its documentation of resize requests and of flex-start VMs)."""
NOT_OFFERED: Final = ("a4x-", "g4-")
"""Prefixes of machine types with GPUs that do not support flex-start (Google's documentation of flex-start VMs)."""


def check(settings: Settings, pool: PoolSettings, path: str) -> Iterator[Problem]:
    """Yield every problem of a pool's flex-start settings."""
    bought, where = pool.capacity.flex_start, f"{path}.capacity.flex_start"
    if bought is None:
        return
    if settings.cloud is not Cloud.GCP:
        remedy = "use on_demand; for an AWS Capacity Block use a reservation with a block"
        yield Problem(path=where, wrong="is only for Google Cloud", remedy=remedy)
        return
    if pool.capacity.on_demand is not None:
        remedy = "remove one of them; a second pool of the same model may use the other"
        wrong = "is set together with on_demand, and only one can replace missing spot"
        yield Problem(path=where, wrong=wrong, remedy=remedy)
    if bought.max > pool.max:
        wrong, remedy = f"is above the pool's max {pool.max}", "lower it, or raise the pool's max"
        yield Problem(path=f"{where}.max", wrong=wrong, value=bought.max, remedy=remedy)
    if bought.machine_type.startswith(NOT_OFFERED):
        remedy = "choose a machine type of the families a2, a3, a4 or g2, or on_demand"
        wrong = "is not available with flex-start"
        yield Problem(path=f"{where}.machine_type", wrong=wrong, value=bought.machine_type, remedy=remedy)
    yield from _run(pool, bought, f"{where}.run")


def _run(pool: PoolSettings, bought: FlexStart, where: str) -> Iterator[Problem]:
    run = durations.render(bought.run)
    if not SHORTEST <= bought.run <= LONGEST:
        wrong = "is outside the range that Google allows, 10m to 7d"
        yield Problem(path=where, wrong=wrong, value=run, remedy="write a value in the range, for example 1d")
    elif bought.run <= pool.drain_deadline * 2:
        yield Problem(
            path=where,
            wrong=f"must be longer than twice the drain deadline, {durations.render(pool.drain_deadline)}, to serve",
            value=run,
            remedy="write 1d, or shorten drain_deadline",
        )
