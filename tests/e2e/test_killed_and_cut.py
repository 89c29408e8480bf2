"""Truncated responses, then a daemon killed at random moments: each idle instance is terminated once and notified
once."""

import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from gpufleet.domain import tags
from gpufleet.domain.decisions import Reason
from tests.fixtures.e2e.embedded_cloud import CLONE, wait_for
from tests.fixtures.e2e.half_answers import before
from tests.fixtures.e2e.watched import Fleet, watched
from tests.fixtures.networks import end_process, free_address, free_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs the Debian package prometheus"),
]
NETWORK = free_network()
IDLE_ALONE = {"idle": {"window": "15s", "grace": "3s", "min_age": "15s", "max_stops_per_run": 1, "stop_price": None}}
APPLY = ("watch", "idle", "--apply")
KILLS = 4
AT_WORK_S = 4.0
"""The daemon is killed within this time after its port responds, in seconds: it then evaluates, drains or
terminates."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with watched(tmp_path_factory.mktemp("killed"), NETWORK) as made:
        made.describe("ledger.db", watchdogs=IDLE_ALONE)
        yield made


def test_idle_instance_is_terminated_once_when_daemons_are_killed(fleet: Fleet) -> None:
    """One scenario: a truncated response prevents a due termination; daemons that are killed still execute it
    exactly once."""
    members = sorted(one["InstanceId"] for one in _members(fleet))
    wait_for("both judged idle", lambda: set(_dry(fleet).values()) == {Reason.IDLE}, 300)
    _half_an_answer_ends_nothing(fleet)
    _killed_at_random_moments(fleet)
    assert sorted(_rows(fleet, "select resource from outcomes where action = 'end' and kind = 'done'")) == members
    assert sorted(_notified(fleet, "ended:")) == members, "each end is notified once"
    assert sorted(set(_notified(fleet, "marked:"))) == members
    assert _rows(fleet, "select value from target_moves order by version") == [2, 1, 0]
    assert not _rows(fleet, "select resource from intents"), "nothing is left begun"
    assert _ends(fleet) == 2 and not sum(fleet.cloud.desired().values())


def _half_an_answer_ends_nothing(fleet: Fleet) -> None:
    """Each response of Prometheus is cut in its middle."""
    with before(fleet.prometheus_url) as cutter:
        fleet.describe("ledger.db", cutter.url, watchdogs=IDLE_ALONE)
        assert set(_dry(fleet).values()) == {Reason.IDLE}, "whole answers pass"

        def due() -> bool:
            if not all(_marked(one) for one in _members(fleet)):
                fleet.run(*APPLY)
            return Reason.STILL_IDLE in _dry(fleet).values()

        wait_for("marks whose grace is over", due, 300)
        cutter.cuts = True
        done = fleet.called(*APPLY)
        assert done.returncode == 1, done.stdout
        assert "did not answer" in done.stdout + done.stderr and cutter.done > 0
    assert len(_members(fleet)) == 2 and sum(fleet.cloud.desired().values()) == 2
    fleet.describe("ledger.db", watchdogs=IDLE_ALONE)


def _killed_at_random_moments(fleet: Fleet) -> None:
    """The daemon is killed during its work and restarted. The last daemon may finish."""
    seed = int.from_bytes(os.urandom(4))
    sys.stdout.write(f"seed of the kills: {seed}\n")  # shown on failure
    chance = random.Random(seed)
    for _ in range(KILLS):
        with _daemon(fleet) as host:
            # the kill must be at a random moment, so it waits for no condition
            until = time.monotonic() + chance.uniform(0, AT_WORK_S)
            while time.monotonic() < until and host.poll() is None:
                time.sleep(0.02)
            assert host.poll() is None, "it ended by itself"
            host.send_signal(signal.SIGKILL)
            host.wait()
        assert _ends(fleet) <= 2
        # a call in progress when the daemon died still completes
        wait_for("as many as were not ended", lambda: len(_members(fleet)) >= 2 - _ends(fleet))
    with _daemon(fleet):
        wait_for("both ended", lambda: not _members(fleet) and len(_notified(fleet, "ended:")) == 2, 300)
        wait_for("the ledger's last word", lambda: not _rows(fleet, "select resource from intents"), 60)


@contextmanager
def _daemon(fleet: Fleet) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that checks for idle instances each second. Gives it when its port responds."""
    address = free_address()
    arguments = ("watch", "run", "--apply", "--every", "idle=1s", "--listen", "{}:{}".format(*address))
    with (fleet.folder / "daemon.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", *arguments],
            cwd=CLONE,
            env=fleet.cloud.environment(),
            stdout=log,
            stderr=log,
        )
    try:
        wait_for("the daemon's page", lambda: process.poll() is not None or _answers(address), 300)
        yield process
    finally:
        if process.poll() is None:
            end_process(process, 200)


def _answers(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


def _dry(fleet: Fleet) -> dict[str, str]:
    return fleet.reasons(fleet.run("watch", "idle")[1])


def _members(fleet: Fleet) -> list[dict[str, Any]]:
    return [one for name in ("batch-spot-a", "batch-spot-b") for one in fleet.cloud.members(name)]


def _marked(member: dict[str, Any]) -> bool:
    return tags.IDLE_SINCE in {tag["Key"] for tag in member["Tags"]}


def _ends(fleet: Fleet) -> int:
    """How often a termination was requested from the cloud."""
    made = [c for c in fleet.cloud.control("calls") if c["operation"] == "TerminateInstanceInAutoScalingGroup"]
    return sum(call["count"] for call in made)


def _notified(fleet: Fleet, what: str) -> list[str]:
    """The instances named in messages of a kind, in the order of the messages."""
    keys = _rows(fleet, "select key from outbox order by id")
    return [key.partition(what)[2].partition(":")[0] for key in keys if what in key]


def _rows(fleet: Fleet, query: str) -> list[Any]:
    with closing(sqlite3.connect(fleet.folder / "ledger.db", timeout=60)) as ledger:
        return [row[0] for row in ledger.execute(query)]
