"""A fleet's view as JSON, with the numbers of the screen, unrounded."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from gpufleet.console.view import CostView, FleetView, InstanceView, PoolStatus, UnitCost
from gpufleet.domain.decisions import LedgerEntry


def document(view: FleetView) -> dict[str, Any]:
    """The whole view. None: not known."""
    read = view.read
    known = read.instances is not None
    return {
        "version": 1,
        "fleet": view.name,
        "at": _time(view.at),
        "usd_per_hour": _money(view.usd_per_hour),
        "unpriced_instances": view.unpriced if known else None,
        "pools": [_pool(pool) for pool in view.pools],
        "instances": [instance_row(instance) for instance in view.instances] if known else None,
        "orphans": [instance.id for instance in view.orphans] if known else None,
        "alerts": None
        if read.alerts is None
        else [
            {"name": a.name, "severity": a.severity, "pool": a.pool, "instance": a.instance_id, "count": a.count}
            for a in read.alerts
        ],
        "brakes": None
        if not read.ledger_read
        else [
            {"kind": b.kind, "scope": b.scope, "owner": b.owner, "reason": b.reason, "until": _time(b.until)}
            for b in read.brakes
        ],
        "acts": [act_row(act) for act in read.acts] if read.ledger_read else None,
        "watchdogs": {name: _time(at) for name, at in read.last_seen.items()} if read.ledger_read else None,
        "last_hour": _cost(read.hour),
        "today": _cost(read.today),
        "spot_market": [
            {
                "zone": m.zone,
                "machine_type": m.machine_type,
                "spot_usd_per_hour": _money(m.spot),
                "on_demand_usd_per_hour": _money(m.on_demand),
            }
            for m in read.market
        ],
        "problems": list(read.problems),
    }


def instance_row(instance: InstanceView) -> dict[str, Any]:
    """One instance."""
    signals = instance.signals
    return {
        "id": instance.id,
        "pool": instance.pool,
        "capacity_type": instance.capacity_type,
        "zone": instance.zone,
        "machine_type": instance.machine_type,
        "state": instance.state,
        "phase": signals.phase,
        "launched_at": _time(instance.launched_at),
        "gpu_active": signals.gpu_active,
        "running": signals.running,
        "waiting": signals.waiting,
        "kv_cache": signals.kv_cache,
        "output_tokens_per_second": signals.tokens_per_second,
        "usd_per_hour": _money(instance.usd_per_hour),
        "idle_since": _time(instance.idle_since),
        "keep_until": _time(instance.keep_until),
        "why": instance.why,
    }


def act_row(act: LedgerEntry) -> dict[str, Any]:
    """One decision or outcome."""
    return {
        "at": _time(act.at),
        "watchdog": act.watchdog,
        "resource": act.decision.resource,
        "pool": act.decision.pool,
        "action": act.decision.action.value,
        "reason": act.decision.reason.sentence,
        "reason_code": act.decision.reason.value,
        "outcome": None if act.outcome is None else act.outcome.kind.sentence,
        "outcome_code": None if act.outcome is None else act.outcome.kind.value,
        "detail": act.detail,
    }


def _pool(pool: PoolStatus) -> dict[str, Any]:
    return {
        "name": pool.name,
        "model": pool.model,
        "adapters": list(pool.adapters),
        "engine": pool.engine,
        "target": pool.target,
        "min": pool.least,
        "max": pool.most,
        "ready": pool.ready,
        "by_capacity_type": {
            kind: {"ready": c.ready, "there": c.there, "max": c.most} for kind, c in pool.types.items()
        },
        "draining": pool.draining,
        "marked": pool.marked,
        "held_requests": pool.held,
        "waiting_requests": pool.waiting,
        "output_tokens_per_second": pool.tokens_per_second,
        "usd_per_hour": _money(pool.usd_per_hour),
        "unpriced_instances": None if pool.usd_per_hour is None else pool.unpriced,
        "usd_per_million_tokens_last_hour": _unit(pool.unit),
    }


def _cost(cost: CostView | None) -> Mapping[str, Any] | None:
    if cost is None:
        return None
    return {
        "since": _time(cost.since),
        "known_until": _time(cost.known_until),
        "usd": _money(cost.usd),
        "idle_usd": _money(cost.idle_usd),
        "usd_per_million_tokens": _unit(cost.unit),
        "unpriced_charges": cost.unpriced,
    }


def _unit(unit: UnitCost | None) -> Mapping[str, Any] | None:
    if unit is None:
        return None
    return {"input": _money(unit.input), "output": _money(unit.output), "blended": _money(unit.blended)}


def _money(value: Decimal | None) -> str | None:
    return None if value is None else format(value, "f")


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")
