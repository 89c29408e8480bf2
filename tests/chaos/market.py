"""Faults of the market: spot that the cloud takes, and capacity that it has not."""

import time
from collections.abc import Sequence
from typing import Any, Final

from tests.chaos.fault import Memory
from tests.chaos.stage import Stage

TYPES: Final = ("g6.xlarge", "g5.xlarge")
ZONES: Final = ("us-east-1a", "us-east-1b", "us-east-1c")
NOTICE_S: Final = 30.0
"""The cloud says 120 s before. Not less, since an answer may take 15 s where eight others use the machine."""


def take(stage: Stage, chosen: Sequence[dict[str, Any]]) -> None:
    """The cloud gives notice to these instances, and ends them."""
    for one in chosen:
        stage.taken.add(one["id"])
        stage.notices += [time.time()] * (one["pool"] == "chat")
        stage.cloud.control("preempt", {"instance": one["id"], "notice_s": NOTICE_S})


def spot_of(stage: Stage, pool: str = "chat") -> list[dict[str, Any]]:
    """Spot instances of a pool that run and are to go on."""
    return [
        one
        for one in stage.instances(pool)
        if one["kind"] == "spot" and one["state"] == "running" and one["notice"] is None
    ]


def lose_zone(stage: Stage, memory: Memory) -> None:
    spot = spot_of(stage)
    zone = memory.held["zone"] = spot[0]["zone"]
    _room(stage, "spot", [zone], 0)
    take(stage, [one for one in spot if one["zone"] == zone])


def zone_back(stage: Stage, memory: Memory) -> None:
    _room(stage, "spot", [memory.held["zone"]], None)


def lose_all(stage: Stage, memory: Memory) -> None:
    memory.held["since"] = time.time()
    _room(stage, "spot", ZONES, 0)
    _room(stage, "on-demand", ZONES, 0)  # what lives stays, the reserved one, too
    take(stage, spot_of(stage))


def all_back(stage: Stage, memory: Memory) -> None:
    stage.cloud.control("restore", {})
    stage.dry.append((memory.held["since"], time.time()))


def add_by_hand(stage: Stage, memory: Memory) -> None:
    """Somebody asks a group for one more than its watchdog wants."""
    groups = stage.cloud.control("state")["groups"]
    chosen = next(one for one in groups if (one["pool"], one["capacity_type"]) == ("chat", "spot"))
    stage.cloud.client("autoscaling").set_desired_capacity(
        AutoScalingGroupName=chosen["name"], DesiredCapacity=chosen["desired"] + 1
    )


def _room(stage: Stage, kind: str, zones: Sequence[str], count: int | None) -> None:
    for zone in zones:
        for machine_type in TYPES:
            stage.cloud.control("capacity", {"zone": zone, "type": machine_type, "kind": kind, "count": count})
