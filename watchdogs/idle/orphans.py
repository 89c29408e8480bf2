"""GPU instances outside every pool: the forgotten ones, and those of other people. Pure, and only a list.

No policy names them, so nothing here marks or stops one: a machine that this product did not make may be in use
in ways that its metrics do not know.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from fleet.document import FleetDocument
from fleet.model import Instance
from watchdogs.idle.decide import WATCHDOG
from watchdogs.plan import Action, Decision, Plan, Reason
from watchdogs.ports import Prices


def outside(instances: Sequence[Instance], documents: Collection[FleetDocument]) -> tuple[Instance, ...]:
    """Those that no pool of these fleets owns, gone ones left out."""
    owned = {(document.environment, pool.name) for document in documents for pool in document.pools}
    return tuple(i for i in instances if i.alive and (i.environment, i.pool) not in owned)


def listed(orphans: Sequence[Instance], active: Mapping[str, float], prices: Prices, now: datetime) -> Plan:
    """A plan that keeps each of them, dearest first; `active` is the highest `gpu_active` by instance."""
    rows = [_row(instance, active.get(instance.id), prices, now) for instance in orphans]
    # an unknown price comes first: it may be the highest
    rows.sort(key=lambda row: (row.usd_per_hour is not None, -(row.usd_per_hour or 0), row.resource))
    return Plan(watchdog=WATCHDOG, at=now, decisions=tuple(rows))


def query(orphans: Sequence[Instance], window: str) -> str:
    """The highest `gpu_active` of each, by either name of the field; whatever job scrapes it."""
    chosen = "|".join(sorted(instance.id for instance in orphans))
    names = "DCGM_FI_PROF_GR_ENGINE_ACTIVE|DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"
    return f'max by (instance_id) (max_over_time({{__name__=~"{names}",instance_id=~"{chosen}"}}[{window}]))'


def _row(instance: Instance, active: float | None, prices: Prices, now: datetime) -> Decision:
    hours = (now - instance.launched_at).total_seconds() / 3600
    age = f"{hours / 24:.0f} days" if hours >= 48 else f"{hours:.0f} h"
    said = "its GPUs are not measured" if active is None else f"gpu_active at most {active:.3g}"
    belongs = f", of environment {instance.environment}" if instance.environment else ""
    what = f"{instance.machine_type}, {instance.capacity_type}, {instance.zone}"
    name = f"{instance.tags['Name']}: " if instance.tags.get("Name") else ""
    return Decision(
        resource=instance.id,
        pool=instance.pool,
        action=Action.KEEP,
        reason=Reason.OUTSIDE_POOLS,
        detail=f"{name}{what}, {age} old{belongs}; {said}",
        evidence={"gpu_active": "not reported" if active is None else f"{active:g}"},
        usd_per_hour=prices.usd_per_hour(instance),
    )
