"""What may go wrong: each fault with its name, how it is made and mended. A seed draws the order."""

import json
import random
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from serving.cache import manifest, publish
from tests.chaos.stage import FLEET, STACK, ChaosError, Stage, change_settings
from tests.e2e.embedded_cloud import BUCKET

TYPES: Final = ("g6.xlarge", "g5.xlarge")
ZONES: Final = ("us-east-1a", "us-east-1b", "us-east-1c")
NOTICE_S: Final = 10.0
"""The cloud says 120 s before; seconds are minutes here."""


@dataclass(slots=True)
class Memory:
    """What a fault must know when it is mended."""

    held: dict[str, Any] = field(default_factory=dict[str, Any])


Step = Callable[[Stage, Memory], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    name: str
    inject: Step
    heal: Step
    lasts_s: float
    """In the short form."""
    long_s: float
    """In the long form."""
    needs_whole: bool = False
    """Whether it begins with all replicas serving, since it takes some of them."""


def draw(seed: int, faults: Sequence[Fault]) -> Iterator[Fault]:
    """All of them in an order of the seed's, then again in another one, for ever."""
    order = random.Random(seed)  # noqa: S311 - not for secrets
    while True:
        yield from order.sample(list(faults), len(faults))


def _nothing(stage: Stage, memory: Memory) -> None:
    """What ends by itself."""


# the market


def _room(stage: Stage, kind: str, zones: Sequence[str], count: int | None) -> None:
    for zone in zones:
        for machine_type in TYPES:
            stage.cloud.control("capacity", {"zone": zone, "type": machine_type, "kind": kind, "count": count})


def _take(stage: Stage, chosen: Sequence[dict[str, Any]]) -> None:
    for one in chosen:
        stage.taken.add(one["id"])
        stage.cloud.control("preempt", {"instance": one["id"], "notice_s": NOTICE_S})


def _spot_of(stage: Stage, pool: str = "chat") -> list[dict[str, Any]]:
    return [
        one
        for one in stage.instances(pool)
        if one["kind"] == "spot" and one["state"] == "running" and one["notice"] is None
    ]


def _lose_zone(stage: Stage, memory: Memory) -> None:
    spot = _spot_of(stage)
    zone = memory.held["zone"] = spot[0]["zone"]
    _room(stage, "spot", [zone], 0)
    _take(stage, [one for one in spot if one["zone"] == zone])


def _zone_back(stage: Stage, memory: Memory) -> None:
    _room(stage, "spot", [memory.held["zone"]], None)


def _lose_all(stage: Stage, memory: Memory) -> None:
    _room(stage, "spot", ZONES, 0)
    _room(stage, "on-demand", ZONES, 0)  # what lives stays, the reserved one, too
    _take(stage, _spot_of(stage))


def _all_back(stage: Stage, memory: Memory) -> None:
    stage.cloud.control("restore", {})


# the control host


def _each(step: Callable[[Stage, str], None], *parts: str) -> Step:
    """The same with each of these processes, in this order."""

    def all_of_them(stage: Stage, memory: Memory) -> None:
        for part in parts:
            step(stage, part)

    return all_of_them


def _step_clock(seconds: int) -> Step:
    """The control host's clock is set: what was planned for its future is late, or all at once past."""

    def step(stage: Stage, memory: Memory) -> None:
        if not stage.clock.can_step:
            stage.say("no C compiler here: the clock stays as it is")
        stage.clock.step(seconds)

    return step


# the ledger


def _lock_ledger(stage: Stage, memory: Memory) -> None:
    connection = sqlite3.connect(stage.ledger, timeout=60, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    memory.held["connection"] = connection


def _unlock_ledger(stage: Stage, memory: Memory) -> None:
    memory.held["connection"].execute("ROLLBACK")
    memory.held["connection"].close()


def _fill_disk(stage: Stage, memory: Memory) -> None:
    stage.limit_files("watchdogs", 0)


def _empty_disk(stage: Stage, memory: Memory) -> None:
    stage.limit_files("watchdogs", None)


# instances


def _break(stage: Stage, memory: Memory, *faults: tuple[str, float | None]) -> None:
    chosen = memory.held["instance"] = _spot_of(stage)[0]["id"]
    stage.taken.add(chosen)
    for what, value in faults:
        stage.cloud.control("fault", {"instance": chosen, "what": what, "value": value})


def _mend(stage: Stage, memory: Memory) -> None:
    stage.delete("fault")


def _bad_revision(stage: Stage, memory: Memory) -> None:
    """A model whose configuration no engine can read: its files are whole, so that publishing takes it."""
    source = stage.folder / f"bad-model-{time.time_ns()}"
    shutil.copytree(next(path for path in (stage.folder / "models").iterdir() if path.is_dir()), source)
    configuration = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(configuration | {"num_hidden_layers": "many"}))
    described = manifest.describe(source, name="chat", revision=source.name)
    publish.add(stage.cloud, source, described)
    done = stage.gpufleet("model", "rollout", *_MODEL, "--limit", "150s", described.digest, codes=(0, 1))
    if "went back" not in done.stdout + done.stderr:
        raise ChaosError(f"a broken revision was rolled out, or did not go back: {done.stdout}{done.stderr}")


def _roll_back(stage: Stage, memory: Memory) -> None:
    stage.gpufleet("model", "rollback", *_MODEL, "--limit", "60s")


_MODEL: Final = ("--name", "chat", "--bucket", f"s3://{BUCKET}", "--fleet", FLEET)

# the cloud's API and its other owner


def _throttle(stage: Stage, memory: Memory) -> None:
    for service, code, status in (("ec2", "RequestLimitExceeded", 503), ("autoscaling", "Throttling", 400)):
        fault = {"service": service, "operation": "*", "code": code, "status": status, "times": 400}
        stage.cloud.control("api-fault", fault)


def _unthrottle(stage: Stage, memory: Memory) -> None:
    stage.delete("api-fault")


def _up_in_the_middle(stage: Stage, memory: Memory) -> None:
    """New templates for all groups while watchdogs replace what a preemption took."""
    _take(stage, _spot_of(stage)[:1])
    memory.held["number"] = number = 100 + time.time_ns() % 97
    change_settings(stage, disk_gib=number)
    stage.engine.run("up", "--yes", "--skip-preview", "--stack", STACK)


FAULTS: Final = (
    Fault(
        name="spot loss of a whole zone",
        inject=_lose_zone,
        heal=_zone_back,
        lasts_s=NOTICE_S + 2,
        long_s=45,
        needs_whole=True,
    ),
    Fault(
        name="capacity gone everywhere",
        inject=_lose_all,
        heal=_all_back,
        lasts_s=NOTICE_S + 2,
        long_s=60,
        needs_whole=True,
    ),
    Fault(
        name="control host restarted",
        inject=_each(Stage.kill, "watchdogs", "router", "prometheus"),
        heal=_each(Stage.start, "prometheus", "router", "watchdogs"),
        lasts_s=1,
        long_s=5,
    ),
    Fault(
        name="watchdogs restarted",
        inject=_each(Stage.end, "watchdogs"),
        heal=_each(Stage.start, "watchdogs"),
        lasts_s=0,
        long_s=10,
    ),
    Fault(
        name="Prometheus down",
        inject=_each(Stage.end, "prometheus"),
        heal=_each(Stage.start, "prometheus"),
        lasts_s=6,
        long_s=120,
    ),
    Fault(name="ledger locked", inject=_lock_ledger, heal=_unlock_ledger, lasts_s=4, long_s=45),
    Fault(name="ledger's disk full", inject=_fill_disk, heal=_empty_disk, lasts_s=4, long_s=30),
    Fault(
        name="an instance that hangs",
        inject=lambda stage, memory: _break(stage, memory, ("engine-hang", None)),
        heal=_mend,
        lasts_s=12,
        long_s=15,
        needs_whole=True,
    ),
    Fault(
        name="a GPU falls off the bus",
        inject=lambda stage, memory: _break(stage, memory, ("xid", 79), ("gpus", 0)),
        heal=_mend,
        lasts_s=6,
        long_s=60,
        needs_whole=True,
    ),
    Fault(
        name="a bad model revision",
        inject=_bad_revision,
        heal=_roll_back,
        lasts_s=0,
        long_s=0,
        needs_whole=True,
    ),
    Fault(
        name="pulumi up in the middle",
        inject=_up_in_the_middle,
        heal=_nothing,
        lasts_s=0,
        long_s=0,
        needs_whole=True,
    ),
    Fault(name="a throttled cloud API", inject=_throttle, heal=_unthrottle, lasts_s=4, long_s=60),
    Fault(name="a clock step back", inject=_step_clock(-120), heal=_step_clock(0), lasts_s=6, long_s=60),
    Fault(name="a clock step ahead", inject=_step_clock(120), heal=_step_clock(0), lasts_s=6, long_s=60),
    Fault(
        name="a second watchdog",
        inject=_each(Stage.start, "watchdogs-2"),
        heal=_each(Stage.end, "watchdogs-2"),
        lasts_s=5,
        long_s=60,
    ),
)
BY_NAME: Final = {fault.name: fault for fault in FAULTS}


def silence_slack(stage: Stage, seed: int) -> None:
    """Slack is down all along: refuses, drops and hangs up, sometimes after it took the message."""
    kinds = ["500", "drop", "429", "500-after", "drop-after"]
    body = {"kinds": kinds, "share": 1.0, "seed": seed}
    httpx.post(f"{stage.slack_url}/faults", json=body).raise_for_status()
