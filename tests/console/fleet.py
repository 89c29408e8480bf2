"""A fleet for the screens: two pools, instances in every phase, everything a night can bring."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from gpufleet.console.view import AlertView, CostView, FleetView, MarketView, Read, Signals, UnitCost, build
from gpufleet.domain import tags
from gpufleet.domain.brakes import Brake, BrakeKind
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Past, Reason
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState
from gpufleet.settings.document import FleetDocument

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
UNIT = UnitCost(input=Decimal("0.1234"), output=Decimal("0.9"), blended=Decimal("0.31"))
LONG_POOL = "the-longest-name-of-all-pools-x"


def document(*pools: str) -> FleetDocument:
    base = {
        "engine": "vllm", "owner": "t", "target": 1, "min": 0, "max": 9, "drain_deadline": "10s", "watchdogs": {},
    }  # fmt: skip
    return FleetDocument.model_validate(
        {
            "version": 1,
            "environment": "prod",
            "cloud": "aws",
            "region": "us-east-1",
            "account": "0",
            "generated_by": {"project": "p", "stack": "s", "revision": "r", "at": "2026-11-21T00:00:00Z"},
            "bucket": "s3://b",
            "prometheus_url": "http://127.0.0.1:1",
            "ledger_url": "sqlite://",
            "router": {"url": "http://127.0.0.1:1"},
            "pools": [
                base
                | {
                    "name": name,
                    "model": f"models/{name}",
                    "groups": [
                        {"type": "spot", "zone": "us-east-1a", "name": f"{name}-spot", "max": 200,
                         "machine_types": ["g6.xlarge"]},
                    ],
                }
                for name in pools
            ],
        }
    )  # fmt: skip


def instance(number: int, pool: str | None = "chat", **tagged: str) -> Instance:
    return Instance(
        id=f"i-{number:017x}",
        cloud=Cloud.AWS,
        region="us-east-1",
        zone="us-east-1a",
        machine_type="g6.xlarge",
        capacity_type=CapacityType.SPOT,
        state=InstanceState.RUNNING,
        launched_at=NOW - timedelta(hours=3),
        environment="prod",
        pool=pool,
        group=None if pool is None else f"{pool}-spot",
        private_address="10.0.0.1",
        tags={f"gpu-fleet:{key.replace('_', '-')}": value for key, value in tagged.items()},
    )


def busy_read(ready: int = 120) -> Read:
    """Everything at once, with numbers as wide as they come."""
    marked = tags.write_time(NOW - timedelta(minutes=7))
    machines = [instance(n, idle_since=marked) if n < 9 else instance(n) for n in range(ready + 20)]
    machines.append(instance(9999, pool=None))
    phases = ["ready"] * ready + ["draining"] * 6 + ["booting"] * 14
    signals = {
        machine.id: Signals(phase=phase, gpu_active=0.42, running=3, waiting=9, kv_cache=0.5, tokens_per_second=900)
        for machine, phase in zip(machines, phases, strict=False)
    }
    cost = CostView(
        since=NOW - timedelta(hours=1),
        known_until=NOW,
        usd=Decimal("1234.567"),
        idle_usd=Decimal(3),
        unit=UNIT,
        by_pool={"chat": (Decimal(3), UNIT)},
    )
    brake = Brake(
        kind=BrakeKind.PAUSE, scope="*", owner="ann@example.com", reason="a test [of] brakes", until=None, since=NOW
    )
    resized = Decision(
        resource="chat/on-demand", pool="chat", action=Action.RESIZE, reason=Reason.FALLBACK, from_size=3, to_size=5
    )
    return Read(
        document=document("chat", LONG_POOL),
        at=NOW,
        instances=machines,
        signals=signals,
        held={"chat": 12},
        alerts=[AlertView(name="QueueGrowing", severity="page", pool="chat", instance_id=None, count=2)],
        targets={"chat": 200},
        brakes=[brake],
        acts=[
            Past(
                at=NOW - timedelta(minutes=3),
                watchdog="spot",
                decision=resized,
                outcome=Outcome(decision=resized, kind=OutcomeKind.DONE, detail="3 to 5"),
            )
        ],
        reasons={machine.id: "idle: idle" for machine in machines[:9]}
        | {machine.id: "spot: cheaper elsewhere" for machine in machines[ready : ready + 2]},
        last_seen={"spot": NOW - timedelta(seconds=33), "idle": NOW - timedelta(hours=5)},
        hour=cost,
        today=cost,
        market=[
            MarketView(zone="us-east-1a", machine_type="g6.xlarge", spot=Decimal("0.3"), on_demand=Decimal("0.8"))
        ],
        problems=["costs of today not known: the ledger has no price for <script>alert(1)</script>"],
    )  # fmt: skip


def busy_view(**more: Any) -> FleetView:
    return build(busy_read(**more), lambda _: Decimal("80.48"))
