"""What agents of earlier releases say, read by this control host: it is upgraded before instances are replaced."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from app.adapters import FleetAgents
from gpufleet.clouds.agents import NodeAgents
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.evidence import AgentStatus
from gpufleet.domain.model import Instance
from tests.fixtures.watchdogs.hooks import ONE, of, waiting
from tests.fixtures.watchdogs.plain import instance
from tests.fixtures.watchdogs.spot import make_watchdog

OWN_HOOKS: dict[str, Any] = {
    "version": 1, "instance": ONE, "pool": "batch", "phase": "ready", "phase_since": "2026-11-25T20:00:00.000Z",
    "ready": True, "draining": False, "drained": False, "by": None, "reason": None, "deadline": None,
    "notice_at": None, "model_digest": "0" * 64, "model_staged": "0" * 64, "switching_to": None, "switch_error": None,
    "has_served": True, "requests_running": 0, "rebalance_advised": False, "order_keys": [], "error": None,
    "warnings": {"hook": "autoscaling: 403: AccessDenied"}, "boot": [],
}  # fmt: skip
"""Of the last agents that completed their lifecycle hooks themselves: they have lost that right, and warn."""
DRAINED = {
    "phase": "drained", "ready": False, "draining": True, "drained": True, "by": "cloud",
    "reason": "ended by its group", "deadline": "2026-11-25T20:01:30.000Z",
}  # fmt: skip
UNKNOWN_IN_0_1 = ("by", "notice_at", "has_served", "order_keys")


def without(status: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in status.items() if name not in names}


def read(status: Mapping[str, Any]) -> AgentStatus:
    class Asked:
        def statuses(self, instances: Sequence[Instance]) -> dict[str, Mapping[str, Any]]:
            return {one.id: status for one in instances}

    return FleetAgents(cast(NodeAgents, Asked())).statuses([instance(1)])[ONE]


RELEASES = pytest.mark.parametrize("lacks", [(), UNKNOWN_IN_0_1], ids=["with hooks of its own", "release 0.1"])


@RELEASES
def test_the_launch_hook_of_an_earlier_agent_is_completed_when_it_serves(lacks: Sequence[str]) -> None:
    fleet = waiting(to_serve=[ONE])
    fleet.agents[ONE] = read(without(OWN_HOOKS, lacks))
    make_watchdog(fleet).apply()
    assert fleet.hooks == [(of(fleet, ONE), ONE)]


@RELEASES
def test_the_drain_hook_of_an_earlier_agent_is_completed_when_it_has_drained(lacks: Sequence[str]) -> None:
    status = read(without(OWN_HOOKS | DRAINED, lacks))
    assert status.drain_by is DrainOwner.CLOUD
    fleet = waiting(to_end=[ONE])
    fleet.agents[ONE] = status
    make_watchdog(fleet).apply()
    assert fleet.hooks == [(of(fleet, ONE), ONE)]


@RELEASES
def test_hooks_of_booting_or_draining_earlier_agents_stay_open(lacks: Sequence[str]) -> None:
    loading = OWN_HOOKS | {"phase": "engine", "ready": False, "has_served": False}
    draining = OWN_HOOKS | DRAINED | {"phase": "draining", "drained": False}
    for fleet, status in ((waiting(to_serve=[ONE]), loading), (waiting(to_end=[ONE]), draining)):
        fleet.agents[ONE] = read(without(status, lacks))
        make_watchdog(fleet).apply()
        assert fleet.hooks == []
