"""Faults of the market: spot interruptions and missing capacity."""

import time
from collections.abc import Sequence
from typing import Any, Final

from tests.chaos.fault import Memory
from tests.chaos.stage import Stage

TYPES: Final = ("g6.xlarge", "g5.xlarge")
ZONES: Final = ("us-east-1a", "us-east-1b", "us-east-1c")
NOTICE_S: Final = 30.0
"""Real clouds give 120 s. It is not shorter, because a response may take 15 s while eight other runs use the
machine."""


def take(stage: Stage, chosen: Sequence[dict[str, Any]]) -> None:
    """The cloud gives notice to these instances, then terminates them."""
    for one in chosen:
        stage.taken.add(one["id"])
        stage.notices += [time.time()] * (one["pool"] == "chat")
        stage.cloud.control("preempt", {"instance": one["id"], "notice_s": NOTICE_S})


def spot_of(stage: Stage, pool: str = "chat") -> list[dict[str, Any]]:
    """Running spot instances of a pool without a notice."""
    return [
        one
        for one in stage.instances(pool)
        if one["kind"] == "spot" and one["state"] == "running" and one["notice"] is None
    ]


def lose_zone(stage: Stage, memory: Memory) -> None:
    spot = spot_of(stage)
    zone = memory.held["zone"] = spot[0]["zone"]
    _set_capacity(stage, "spot", [zone], 0)
    take(stage, [one for one in spot if one["zone"] == zone])


def zone_back(stage: Stage, memory: Memory) -> None:
    _set_capacity(stage, "spot", [memory.held["zone"]], None)


def lose_all(stage: Stage, memory: Memory) -> None:
    memory.held["since"] = time.time()
    _set_capacity(stage, "spot", ZONES, 0)
    _set_capacity(stage, "on-demand", ZONES, 0)  # running instances stay, including the reserved one
    take(stage, spot_of(stage))


def all_back(stage: Stage, memory: Memory) -> None:
    stage.cloud.control("restore", {})
    stage.dry.append((memory.held["since"], time.time()))


def add_by_hand(stage: Stage, memory: Memory) -> None:
    """A user increases the size of a group by one more than its watchdog wants."""
    groups = stage.cloud.control("state")["groups"]
    chosen = next(one for one in groups if (one["pool"], one["capacity_type"]) == ("chat", "spot"))
    stage.cloud.client("autoscaling").set_desired_capacity(
        AutoScalingGroupName=chosen["name"], DesiredCapacity=chosen["desired"] + 1
    )


def _set_capacity(stage: Stage, kind: str, zones: Sequence[str], count: int | None) -> None:
    for zone in zones:
        for machine_type in TYPES:
            stage.cloud.control("capacity", {"zone": zone, "type": machine_type, "kind": kind, "count": count})
