"""A small fleet of six hours on a real ledger, and the reports' command called on it."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine
from typer.testing import CliRunner, Result

from cli.main import build
from gpufleet.domain.boots import Boot
from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason
from gpufleet.domain.model import CapacityType, Cloud
from gpufleet.domain.prices import Price
from gpufleet.ledger import boots, decisions, facts, rollups
from gpufleet.ledger.database import writing
from gpufleet.ledger.facts import ActivityHour, EndCause, Pass, Reading, Reservation, Run, RunEnd

T0 = datetime(2026, 11, 20, 6, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
FLEET = "aws/dev/us-east-1"
WINDOW = ("--since", "2026-11-20T06:00", "--until", "2026-11-20T12:00")
ODD_MODEL = "models/<b>chat</b>-🦊/v1"


def document(folder: Path, **more: Any) -> Path:
    """The fleet document of a small fleet."""
    pool = {
        "engine": "vllm", "owner": "search", "target": 1, "min": 0, "max": 5, "drain_deadline": "90s",
        "watchdogs": {},
    }  # fmt: skip
    whole = {
        "version": 1,
        "environment": "dev",
        "cloud": "aws",
        "region": "us-east-1",
        "account": "000000000000",
        "generated_by": {"project": "gpu-fleet", "stack": "aws-dev", "revision": "1", "at": "2026-11-20T02:15:00Z"},
        "bucket": "s3://models",
        "prometheus_url": "http://127.0.0.1:9",
        "ledger_url": f"sqlite:///{folder}/ledger.db",
        "router": {"url": "http://127.0.0.1:9"},
        "notify": {"slack_channel": "#gpu-cost"},
        "budget": {"usd_per_month": "40", "usd_per_hour_at_max": "160"},
        "pools": [
            pool | {"name": "chat", "model": ODD_MODEL, "groups": []},
            pool | {"name": "batch", "model": "models/batch", "owner": "research", "groups": []},
        ],
    } | more
    path = folder / "fleet.json"
    path.write_text(json.dumps(whole))
    return path


def run(name: str, start: float, kind: CapacityType, pool: str = "chat", **more: Any) -> Run:
    fields: dict[str, Any] = {
        "model": ODD_MODEL, "owner": "search", "machine_type": "g6.xlarge",
        "started_at": T0 + start * HOUR, "last_seen_at": T0 + 6 * HOUR,
    }  # fmt: skip
    return Run(
        cloud=Cloud.AWS,
        instance_id=name,
        environment=FLEET,
        region="us-east-1",
        zone="us-east-1a",
        capacity_type=kind,
        pool=pool,
        **(fields | more),
    )


def fill(engine: Engine) -> None:
    """Six hours: spot preempted after half an hour, its fallback, an idle instance that was ended, a reservation."""
    with writing(engine) as connection:
        _add_runs(connection)
        _add_tokens(connection)
        _add_idle_hours(connection)
        _add_prices(connection)
        _add_reservation(connection)
        for at in (T0 - 10 * HOUR, T0 + 6 * HOUR):
            facts.add_pass(
                connection, Pass(environment=FLEET, at=at, host="h", metrics_from=None, metrics_until=None)
            )
    boots.note_boots(engine, FLEET, [_boot()], T0 + HOUR)
    ended = Decision(resource="i-idle", pool="batch", action=Action.END, reason=Reason.IDLE, detail="idle")
    outcome = Outcome(decision=ended, kind=OutcomeKind.DONE, detail="", error=None)
    decisions.record_outcome(engine, FLEET, "idle", outcome, T0 + 2 * HOUR)


def _boot() -> Boot:
    return Boot(
        instance_id="i-fallback", pool="chat", group="chat-od", machine_type="g6.xlarge",
        launched_at=T0 + HOUR / 2, first_seen_at=T0 + HOUR / 2, last_seen_at=T0 + HOUR / 2, ready_at=T0 + HOUR,
    )  # fmt: skip


def _add_runs(connection: Connection) -> None:
    runs = [
        run("i-spot", 0, CapacityType.SPOT),
        run("i-fallback", 0.5, CapacityType.ON_DEMAND),
        run("i-idle", 0, CapacityType.ON_DEMAND, "batch", model="models/batch", owner="research"),
        run("i-paid", 1, CapacityType.RESERVED, reservation="cr-1"),
    ]
    ends = [("i-spot", 0.0, 0.5, EndCause.PREEMPTED), ("i-idle", 0.0, 2.0, EndCause.ENDED)]
    facts.add_runs(connection, runs)
    facts.add_ends(
        connection,
        [
            RunEnd(
                cloud=Cloud.AWS, instance_id=name, started_at=T0 + began * HOUR,
                ended_at=T0 + ended * HOUR, cause=cause, exact=True,
            )
            for name, began, ended, cause in ends
        ],
    )  # fmt: skip


def _add_tokens(connection: Connection) -> None:
    readings = [
        Reading(
            environment=FLEET,
            instance_id="i-fallback",
            engine="0",
            model="chat",
            at=T0 + timedelta(minutes=minute),
            prompt=1_000 * (minute - 40),
            cached=100 * (minute - 40),
            generation=250 * (minute - 40),
            created_at=T0 + timedelta(minutes=40),
        )
        for minute in range(40, 360, 5)
    ]
    facts.add_readings(connection, readings)
    rollups.roll_up(connection, readings)


def _add_idle_hours(connection: Connection) -> None:
    idle = [
        ActivityHour(environment=FLEET, instance_id="i-idle", hour=T0 + n * HOUR, busy=0, idle=(1 << 360) - 1)
        for n in range(2)
    ]
    facts.add_activity(connection, idle)


def _add_prices(connection: Connection) -> None:
    prices = [("spot", 0, "0.36"), ("on-demand", 0, "0.72"), ("on-demand", 3.0002777, "0.9")]
    facts.add_prices(
        connection,
        [
            Price(
                sku=f"aws:ec2:g6.xlarge:{kind}", region="us-east-1", zone=None, source="test",
                valid_from=T0 + hours * HOUR, usd_per_hour=Decimal(usd), as_of=T0 + 6 * HOUR,
            )
            for kind, hours, usd in prices
        ],
    )  # fmt: skip


def _add_reservation(connection: Connection) -> None:
    reserved = Reservation(
        cloud=Cloud.AWS, reservation="cr-1", started_at=T0, instances=1, environment=FLEET,
        region="us-east-1", zone="us-east-1a", machine_type="g6.xlarge", last_seen_at=T0 + 6 * HOUR,
        pool="chat", model=ODD_MODEL, owner="search",
    )  # fmt: skip
    facts.add_reservations(connection, [reserved])


def call(*words: object) -> Result:
    return CliRunner().invoke(build("report"), ["report", *map(str, words)])


def said(*words: object) -> str:
    done = call(*words)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def read_json(*words: object) -> Any:
    return json.loads(said(*words, "--json"))
