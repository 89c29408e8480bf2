"""Faults of the market: spot interruptions and missing capacity."""

import time
from collections.abc import Sequence
from typing import Any, Final

from tests.chaos.fault import Memory
from tests.chaos.testbed import ChaosTestbed

TYPES: Final = ("g6.xlarge", "g5.xlarge")
ZONES: Final = ("us-east-1a", "us-east-1b", "us-east-1c")
NOTICE_S: Final = 30.0
"""Real clouds give 120 s. It is not shorter, because a response may take 15 s while eight other runs use the
machine."""


def take(testbed: ChaosTestbed, chosen: Sequence[dict[str, Any]]) -> None:
    """The cloud gives notice to these instances, then terminates them."""
    for one in chosen:
        testbed.taken.add(one["id"])
        testbed.notices += [time.time()] * (one["pool"] == "chat")
        testbed.cloud.control("preempt", {"instance": one["id"], "notice_s": NOTICE_S})


def spot_of(testbed: ChaosTestbed, pool: str = "chat") -> list[dict[str, Any]]:
    """Running spot instances of a pool without a notice."""
    return [
        one
        for one in testbed.instances(pool)
        if one["kind"] == "spot" and one["state"] == "running" and one["notice"] is None
    ]


def lose_zone(testbed: ChaosTestbed, memory: Memory) -> None:
    spot = spot_of(testbed)
    zone = memory.held["zone"] = spot[0]["zone"]
    _set_capacity(testbed, "spot", [zone], 0)
    take(testbed, [one for one in spot if one["zone"] == zone])


def zone_back(testbed: ChaosTestbed, memory: Memory) -> None:
    _set_capacity(testbed, "spot", [memory.held["zone"]], None)


def lose_all(testbed: ChaosTestbed, memory: Memory) -> None:
    memory.held["since"] = time.time()
    _set_capacity(testbed, "spot", ZONES, 0)
    _set_capacity(testbed, "on-demand", ZONES, 0)  # running instances stay, including the reserved one
    take(testbed, spot_of(testbed))


def all_back(testbed: ChaosTestbed, memory: Memory) -> None:
    testbed.cloud.control("restore", {})
    testbed.dry.append((memory.held["since"], time.time()))


def add_by_hand(testbed: ChaosTestbed, memory: Memory) -> None:
    """A user increases the size of a group by one more than its watchdog wants."""
    groups = testbed.cloud.control("state")["groups"]
    chosen = next(one for one in groups if (one["pool"], one["capacity_type"]) == ("chat", "spot"))
    testbed.cloud.client("autoscaling").set_desired_capacity(
        AutoScalingGroupName=chosen["name"], DesiredCapacity=chosen["desired"] + 1
    )


def _set_capacity(testbed: ChaosTestbed, kind: str, zones: Sequence[str], count: int | None) -> None:
    for zone in zones:
        for machine_type in TYPES:
            testbed.cloud.control("capacity", {"zone": zone, "type": machine_type, "kind": kind, "count": count})
