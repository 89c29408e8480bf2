"""What tests of watchdogs begin with: evidence of quiet, an instance, its prices, a pool as spot sees it, a fleet."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from gpufleet.domain.activity import ActivityKind
from gpufleet.domain.boots import Boot
from gpufleet.domain.evidence import AgentStatus, EngineEvidence, Evidence, GpuEvidence
from gpufleet.domain.model import CapacityType, Cloud, Instance, InstanceState, Phase
from gpufleet.domain.policies import SpotPolicy
from gpufleet.settings.document import FleetDocument, parse
from watchdogs.spot.pool_view import GroupView, Member, PoolView

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
WINDOW = timedelta(minutes=30)
INTERVAL = timedelta(seconds=15)

QUIET_ENGINE = EngineEvidence(
    coverage=1.0,
    missed=0.0,
    newest_age=timedelta(seconds=5),
    running_max=0.0,
    waiting_max=0.0,
    tokens=0.0,
    counter_changes=0.0,
    started_age=timedelta(hours=5),
    pulse_changes=20.0,
)
QUIET_GPU = GpuEvidence(
    gpus=1,
    metered=1,
    coverage=1.0,
    missed=0.0,
    newest_age=timedelta(seconds=5),
    active_max=0.0,
    active_min=0.0,
    util_max=0.0,
    energy_changes=20.0,
    watts_max=30.0,
)
QUIET = Evidence(window=WINDOW, interval=INTERVAL, engine=QUIET_ENGINE, gpu=QUIET_GPU, reached=True)
READY = AgentStatus(phase=Phase.READY, ready=True, draining=False, drained=False, requests_running=0)


def instance(number: int = 1, **changes: Any) -> Instance:
    """A spot instance of pool `batch`, five hours old."""
    plain = Instance(
        id=f"i-{number:017x}",
        cloud=Cloud.AWS,
        region="us-east-1",
        zone="us-east-1a",
        machine_type="g6.xlarge",
        capacity_type=CapacityType.SPOT,
        state=InstanceState.RUNNING,
        launched_at=START - timedelta(hours=5),
        environment="test",
        pool="batch",
        group="batch-spot-a",
        private_address=f"127.16.1.{number}",
    )
    return replace(plain, **changes)


def spot_pool(groups: Sequence[GroupView], members: Sequence[Member], **changes: Any) -> PoolView:
    """What the spot watchdog sees of pool `batch`: two wanted, none to spare, nothing happened."""
    plain = PoolView(
        name="batch",
        target=2,
        spare=0,
        max=4,
        policy=SpotPolicy(),
        groups=groups,
        members=members,
        events=(),
        pass_started=START,
    )
    return replace(plain, **changes)


def left_booting(group: str, *minutes_ago: float, why: ActivityKind | None = None, **changes: Any) -> list[Boot]:
    """Instances that left their group so many minutes before `START`, ten after launch, and never were ready."""
    return [
        replace(
            Boot(
                instance_id=f"i-{group}-{ago}",
                pool="batch",
                group=group,
                machine_type="g6.xlarge",
                launched_at=START - timedelta(minutes=ago + 10),
                first_seen_at=START - timedelta(minutes=ago + 10),
                last_seen_at=START - timedelta(minutes=ago + 1),
                left_at=START - timedelta(minutes=ago),
                ended_why=why,
            ),
            **changes,
        )
        for ago in minutes_ago
    ]


def document(**pool: Any) -> FleetDocument:
    """A fleet with one pool, `batch`."""
    entry = {
        "name": "batch",
        "model": "models/batch",
        "engine": "vllm",
        "owner": "team",
        "target": 2,
        "min": 0,
        "max": 6,
        "drain_deadline": "90s",
        "groups": [
            {"type": "spot", "zone": "us-east-1a", "name": "batch-spot-a", "max": 4, "machine_types": ["g6.xlarge"]},
            {"type": "spot", "zone": "us-east-1b", "name": "batch-spot-b", "max": 4, "machine_types": ["g6.xlarge"]},
            {"type": "on-demand", "zone": None, "name": "batch-od", "max": 2, "machine_types": ["g6.xlarge"]},
        ],
        "watchdogs": {"idle": {}, "spot": {}},
    } | pool
    if isinstance(entry["watchdogs"], dict) and "idle" in entry["watchdogs"]:
        # grace decides when an instance ends, and not the price of its stop, unless a test is about that
        entry["watchdogs"] = {**entry["watchdogs"], "idle": {"stop_price": None, **entry["watchdogs"]["idle"]}}
    return parse(
        json.dumps(
            {
                "version": 1,
                "environment": "test",
                "cloud": "aws",
                "region": "us-east-1",
                "account": "000000000000",
                "generated_by": {"project": "p", "stack": "s", "revision": "r", "at": "2026-11-21T02:15:00Z"},
                "bucket": "s3://b",
                "prometheus_url": "http://127.0.0.1:9",
                "ledger_url": "sqlite://",
                "router": {"url": "http://127.0.0.1:9"},
                "notify": {"slack_channel": "#c"},
                "pools": [entry],
            }
        ),
        "test",
    )


@dataclass
class FakePrices:
    spot: dict[str, Decimal] = field(default_factory=dict[str, Decimal])

    def usd_per_hour(self, instance: Instance) -> Decimal | None:
        return Decimal("0.25") if instance.capacity_type is CapacityType.SPOT else Decimal("0.80")

    def spot_usd_per_hour(self, machine_type: str, zone: str) -> Decimal | None:
        return self.spot.get(zone, Decimal("0.25"))

    def on_demand_usd_per_hour(self, machine_type: str) -> Decimal | None:
        return Decimal("0.80")

    def list_usd_per_hour(self, machine_type: str, capacity_type: CapacityType, zone: str | None) -> Decimal | None:
        if capacity_type is CapacityType.SPOT:
            return self.spot_usd_per_hour(machine_type, zone or "")
        return self.on_demand_usd_per_hour(machine_type)
