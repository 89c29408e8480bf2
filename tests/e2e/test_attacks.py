"""Attacks on the idle watchdog's command on the embedded cloud. It terminates nothing during an attack, only
afterwards."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from gpufleet.domain import tags
from gpufleet.domain.decisions import Reason
from tests.chaos.clock import make_clock
from tests.chaos.preload import environment
from tests.fixtures.e2e.embedded_cloud import status, wait_for
from tests.fixtures.e2e.watched import Fleet, watched
from tests.fixtures.local_token import BEARER
from tests.fixtures.networks import free_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # boto3 retries a throttled call for minutes
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs the Debian package prometheus"),
]
NETWORK = free_network()
APPLY = ("watch", "idle", "--apply")
HOUR_S = 3600


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with watched(tmp_path_factory.mktemp("attacks"), NETWORK) as made:
        yield made


def test_no_idle_instance_is_terminated_during_attacks(fleet: Fleet) -> None:
    """One scenario, because each part leaves the fleet in the state that the next one needs: both instances idle,
    then marked."""
    fleet.describe("ledger.db", min=1)
    wait_for("both judged idle", lambda: set(_dry(fleet).values()) == {Reason.IDLE}, 300)
    _a_clock_that_is_off_marks_nothing(fleet)
    _marked(fleet)
    _a_throttled_cloud_ends_nothing(fleet)
    _kept_between_the_last_look_and_the_end(fleet)


def _dry(fleet: Fleet) -> dict[str, str]:
    return fleet.reasons(fleet.run("watch", "idle")[1])


def _instances(fleet: Fleet) -> dict[str, dict[str, Any]]:
    members = (one for name in ("batch-spot-a", "batch-spot-b") for one in fleet.cloud.members(name))
    return {one["InstanceId"]: one for one in members}


def _tags(member: dict[str, Any]) -> set[str]:
    return {tag["Key"] for tag in member["Tags"]}


def _is_whole(fleet: Fleet) -> bool:
    """Whether both instances run in groups that want them."""
    return len(_instances(fleet)) == 2 and sum(fleet.cloud.desired().values()) == 2


def _a_clock_that_is_off_marks_nothing(fleet: Fleet) -> None:
    """The command's clock is set back, then ahead; Prometheus and the exporters keep the real time."""
    clock = make_clock(fleet.folder)
    if not clock.is_there:
        return  # no C compiler
    for seconds in (-HOUR_S, HOUR_S, -300):
        clock.set(seconds)
        done = fleet.called(*APPLY, **environment([clock]))
        assert done.returncode == 1, done.stdout
        assert "from the time of this machine: synchronize both with NTP" in done.stdout + done.stderr
    assert not any(tags.IDLE_SINCE in _tags(member) for member in _instances(fleet).values())
    assert set(_dry(fleet).values()) == {Reason.IDLE}, "it was the clock that kept them"


def _marked(fleet: Fleet) -> None:
    def look() -> bool:
        if not all(tags.IDLE_SINCE in _tags(member) for member in _instances(fleet).values()):
            fleet.run(*APPLY)
            return False
        return Reason.STILL_IDLE in _dry(fleet).values()

    wait_for("marks whose grace is over", look, 300)


def _a_throttled_cloud_ends_nothing(fleet: Fleet) -> None:
    """EC2 throttles for longer than boto3 retries: the pass fails and names the cause."""
    fault = {"service": "ec2", "operation": "*", "code": "RequestLimitExceeded", "status": 503, "times": 100_000}
    fleet.cloud.control("api-fault", fault)
    done = fleet.called(*APPLY)
    clear_fault(fleet)
    assert done.returncode == 1, done.stdout
    assert "RequestLimitExceeded" in done.stdout + done.stderr
    assert _is_whole(fleet)
    assert not any(status(one["PrivateIpAddress"])["draining"] for one in _instances(fleet).values())
    wait_for("the decision that it blocked", lambda: Reason.STILL_IDLE in _dry(fleet).values(), 300)


def clear_fault(fleet: Fleet) -> None:
    """Clear the API fault."""
    httpx.request(
        "DELETE", f"{fleet.cloud.url}/_localcloud/api-fault", json={}, headers=BEARER, timeout=60
    ).raise_for_status()


def _kept_between_the_last_look_and_the_end(fleet: Fleet) -> None:
    """The cloud refuses the termination. Before it would accept one, an operator sets a keep tag."""
    operation = "TerminateInstanceInAutoScalingGroup"
    fault = {"service": "autoscaling", "operation": operation, "code": "Throttling", "status": 400, "times": 100_000}
    fleet.cloud.control("api-fault", fault)

    def refused() -> str | None:
        _, answer = fleet.run(*APPLY)
        failed = [o["resource"] for o in answer["outcomes"] if (o["action"], o["kind"]) == ("end", "failed")]
        return failed[0] if failed else None

    kept = wait_for("an end that is refused", refused, 300)
    until = tags.write_time(datetime.now(UTC) + timedelta(hours=4))
    ec2 = fleet.cloud.client("ec2")
    ec2.create_tags(Resources=[kept], Tags=[{"Key": tags.KEEP_UNTIL, "Value": until}])
    clear_fault(fleet)
    for _ in range(2):
        _, answer = fleet.run(*APPLY)
        assert fleet.reasons(answer)[kept] == Reason.KEPT_BY_PEOPLE
        assert _is_whole(fleet), answer

    ec2.delete_tags(Resources=[kept], Tags=[{"Key": tags.KEEP_UNTIL}])

    def ended() -> bool:
        _, answer = fleet.run(*APPLY)
        return (kept, "done") in {(o["resource"], o["kind"]) for o in answer["outcomes"] if o["action"] == "end"}

    wait_for("its end without a keep tag", ended, 300)
    wait_for("its termination", lambda: fleet.cloud.is_terminated(kept), 120)
    assert sum(fleet.cloud.desired().values()) == 1, "the pool's floor keeps the other one"
