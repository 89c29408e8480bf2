"""Contract test of the port `Agents`: real node agents over HTTP, and `FakeAgents`."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from app.adapters import FleetAgents
from gpufleet.clouds.agents import NodeAgents
from gpufleet.domain.activity import CloudError
from gpufleet.domain.drains import DrainOwner
from gpufleet.domain.model import Instance, Phase
from tests.fixtures import signing
from tests.fixtures.node.bucket import bucket as bucket
from tests.fixtures.node.endpoints import AgentServers
from tests.fixtures.node.fake_node import Machine
from tests.fixtures.watchdogs import plain
from tests.fixtures.watchdogs.fake_fleet import idle_fleet
from tests.fixtures.watchdogs.fake_ports import FakeAgents
from watchdogs.ports import Agents

MINUTE = timedelta(minutes=1)


@dataclass(kw_only=True)
class AgentsOfFleet:
    """The agents of a ready instance and of one that does not respond."""

    agents: Agents
    ready: Instance
    silent: Instance
    pass_time: Callable[[], object]
    """Lets enough time pass for a drain without requests."""


@pytest.fixture(params=["fake", "real"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AgentsOfFleet]:
    if request.param == "fake":
        fleet = idle_fleet(2)
        ready, silent = fleet.instances.values()
        del fleet.agents[silent.id]

        def pass_time() -> None:
            fleet.now += MINUTE

        yield AgentsOfFleet(agents=FakeAgents(fleet), ready=ready, silent=silent, pass_time=pass_time)
        return
    machine = Machine(root=tmp_path, bucket=request.getfixturevalue("bucket"))
    machine.boot.run()
    servers = AgentServers(machine)
    port = servers.http.server_address[1]
    try:
        with closing(NodeAgents(signing.key, port=port, now=machine.clock)) as agents:
            yield AgentsOfFleet(
                agents=FleetAgents(agents),
                ready=plain.instance(1, id=machine.cloud.instance_id, private_address="127.0.0.1"),
                silent=plain.instance(2, private_address="127.0.0.2"),
                pass_time=lambda: machine.pass_time(MINUTE),
            )
    finally:
        servers.http.stop()
        servers.check.stop()


def test_only_agents_that_respond_have_a_status(fleet: AgentsOfFleet) -> None:
    found = fleet.agents.statuses([fleet.silent, fleet.ready])
    assert found.keys() == {fleet.ready.id}
    status = found[fleet.ready.id]
    assert (status.phase, status.ready, status.draining, status.drained) == (Phase.READY, True, False, False)
    assert (status.drain_by, status.reason, status.notice_at) == (None, None, None)
    assert fleet.agents.statuses([]) == {}


@pytest.mark.parametrize("changes", [{"pool": None}, {"private_address": None}], ids=["no pool", "no address"])
def test_an_instance_that_cannot_be_contacted_has_no_status_and_gets_no_order(
    fleet: AgentsOfFleet, changes: dict[str, None]
) -> None:
    unreachable = replace(fleet.ready, **changes)  # pyright: ignore[reportArgumentType]
    assert fleet.agents.statuses([unreachable]) == {}
    with pytest.raises(CloudError, match=unreachable.id):
        fleet.agents.drain(unreachable, DrainOwner.IDLE, "idle", MINUTE)
    assert not fleet.agents.statuses([fleet.ready])[fleet.ready.id].draining


def test_an_order_to_an_agent_that_does_not_respond_raises(fleet: AgentsOfFleet) -> None:
    with pytest.raises(CloudError, match=fleet.silent.id):
        fleet.agents.drain(fleet.silent, DrainOwner.IDLE, "idle", MINUTE)


def test_the_first_owner_of_a_drain_stays(fleet: AgentsOfFleet) -> None:
    first = fleet.agents.drain(fleet.ready, DrainOwner.IDLE, "idle for an hour", MINUTE)
    again = fleet.agents.drain(fleet.ready, DrainOwner.SPOT, "surplus", MINUTE)
    for status in (first, again, fleet.agents.statuses([fleet.ready])[fleet.ready.id]):
        assert (status.draining, status.ready) == (True, False)
        assert (status.drain_by, status.reason) == (DrainOwner.IDLE, "idle for an hour")


def test_a_drained_instance_stays_drained(fleet: AgentsOfFleet) -> None:
    fleet.agents.drain(fleet.ready, DrainOwner.IDLE, "idle", MINUTE)
    fleet.pass_time()
    again = fleet.agents.drain(fleet.ready, DrainOwner.IDLE, "idle", MINUTE)
    for status in (again, fleet.agents.statuses([fleet.ready])[fleet.ready.id]):
        assert (status.phase, status.drained, status.ready) == (Phase.DRAINED, True, False)
        assert status.drain_by is DrainOwner.IDLE
