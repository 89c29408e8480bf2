"""Each check detects a violation that the test creates."""

import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import checker, notifications
from tests.chaos.evidence import ENDED_BY_US, TAKEN_BY_CLOUD, RunRecord
from tests.chaos.fault import draw
from tests.chaos.faults import FAULTS
from tests.fixtures.networks import end_process, free_network

LAUNCHED, ENDED = "2026-11-21T10:00:00.500000+00:00", "2026-11-21T10:10:00.700000+00:00"
BEGIN_US, END_US = 1795255200_000_000, 1795255800_000_000
STAY = {
    "instance": "i-1",
    "machine_type": "g6.xlarge",
    "zone": "us-east-1a",
    "capacity_type": "spot",
    "pool": "chat",
    "launched": LAUNCHED,
    "ended": ENDED,
    "why": TAKEN_BY_CLOUD,
}


@pytest.fixture
def ledger() -> Iterator[sqlite3.Connection]:
    """The columns that the checks read, with the rows that belong to `STAY`."""
    with closing(sqlite3.connect(":memory:")) as made:
        made.row_factory = sqlite3.Row
        made.executescript(
            "CREATE TABLE outbox (key, state);"
            "CREATE TABLE outcomes (resource, reason, pool, watchdog, action, kind);"
            "CREATE TABLE runs (cloud, instance_id, started_at);"
            "CREATE TABLE run_ends (cloud, instance_id, started_at, ended_at, exact);"
            "INSERT INTO outbox VALUES ('fallback:1', 'sent');"
            f"INSERT INTO runs VALUES ('aws', 'i-1', {BEGIN_US});"
            f"INSERT INTO run_ends VALUES ('aws', 'i-1', {BEGIN_US}, {END_US}, 1);"
        )
        yield made


def record(**changed: Any) -> RunRecord:
    values: dict[str, Any] = {"answered": 9, "failures": (), "kills": (), "taken": frozenset({"i-1"})}
    return RunRecord(**values | changed)


@pytest.mark.parametrize(
    ("kills", "wrong"),
    [
        pytest.param((), 1, id="no process was killed"),
        pytest.param(((11.0, 11.5),), 0, id="in flight on what was killed"),
        pytest.param(((9.0, 9.5), (13.0, 13.5)), 1, id="killed before and after"),
    ],
)
def test_failed_request_outside_a_kill_is_detected(kills: tuple[tuple[float, float], ...], wrong: int) -> None:
    verdict = checker.requests(record(failures=[(10.0, 12.0, "HTTP 503")], kills=kills))
    assert len(verdict.wrong) == wrong


@pytest.mark.parametrize(
    ("stay", "taken", "wrong"),
    [
        pytest.param({}, {"i-1"}, 0, id="a fault took it"),
        pytest.param({}, set(), 1, id="no fault took it"),
        pytest.param({"ended": None}, set(), 0, id="it still runs"),
        pytest.param({"capacity_type": "on-demand"}, set(), 0, id="a fallback instance was terminated"),
        pytest.param({"pool": "batch"}, set(), 0, id="an idle pool"),
    ],
)
def test_end_of_a_chat_instance_without_cause_is_detected(
    ledger: sqlite3.Connection, stay: dict[str, Any], taken: set[str], wrong: int
) -> None:
    assert len(checker.stops([STAY | stay], ledger, record(taken=frozenset(taken))).wrong) == wrong


@pytest.mark.parametrize(("others", "wrong"), [pytest.param(2, 1, id="missed"), pytest.param(3, 0, id="too many")])
def test_end_with_enough_other_instances_is_allowed(ledger: sqlite3.Connection, others: int, wrong: int) -> None:
    alive = [STAY | {"instance": f"i-{number}", "ended": None} for number in range(10, 10 + others)]
    assert len(checker.stops([STAY, *alive], ledger, record(taken=frozenset())).wrong) == wrong


def test_idle_termination_in_the_busy_pool_is_detected(ledger: sqlite3.Connection) -> None:
    ledger.execute("INSERT INTO outcomes VALUES ('i-1', 'idle', 'chat', 'idle', 'end', 'done')")
    assert checker.stops([STAY], ledger, record()).wrong == ("idle ended i-1: idle",)


def posted(*keys: str) -> list[dict[str, Any]]:
    return [{"text": key, "metadata": {"event_payload": {"key": key}}} for key in keys]


@pytest.mark.parametrize(
    ("sink", "wrong"),
    [
        pytest.param(posted("fallback:1"), (), id="once"),
        pytest.param(posted(), ("lost: fallback:1",), id="lost"),
        pytest.param(posted("fallback:1", "fallback:1"), ("posted 2 times: fallback:1",), id="doubled"),
        pytest.param(posted("fallback:1", "what"), ("in no outbox: what",), id="from nowhere"),
    ],
)
def test_lost_and_repeated_messages_are_detected(
    ledger: sqlite3.Connection, sink: list[dict[str, Any]], wrong: tuple[str, ...]
) -> None:
    assert checker.messages(ledger, sink).wrong == wrong


@pytest.mark.parametrize(
    ("stay", "keys", "wrong"),
    [
        pytest.param({}, (), (), id="the cloud's own end"),
        pytest.param({"ended": None, "why": None}, (), (), id="it still runs"),
        pytest.param({"why": ENDED_BY_US}, ("f/spot:ended:i-1",), (), id="a notified end"),
        pytest.param({"why": ENDED_BY_US}, ("f/spot:ended:i-12",), ("end",), id="an end without notification"),
        pytest.param({"pool": "batch", "why": ENDED_BY_US}, ("f/ended:i-1",), ("mark",), id="never marked"),
        pytest.param(
            {"capacity_type": "on-demand"}, ("f/spot:fallback:chat-od-1:20261121t0959",), (), id="a fallback"
        ),
        pytest.param(
            {"capacity_type": "on-demand"},
            ("f/spot:fallback:chat-od-1:20261121t0930", "f/spot:fallback:batch-od-1:20261121t0959"),
            ("fallback",),
            id="a fallback of another time and pool",
        ),
    ],
)
def test_missing_notifications_are_detected(
    stay: dict[str, Any], keys: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    found = notifications.notified_events([STAY | stay], posted(*keys)).wrong
    assert found == tuple(f"no notification of the {what} of i-1" for what in wrong)


def test_waiting_message_is_detected(ledger: sqlite3.Connection) -> None:
    ledger.execute("UPDATE outbox SET state = 'waiting'")
    assert checker.messages(ledger, posted("fallback:1")).wrong == ("fallback:1 is waiting",)


@pytest.mark.parametrize(
    ("stays", "wrong"),
    [
        pytest.param([STAY], 0, id="as in the billing log"),
        pytest.param([], 1, id="more than in the billing log"),
        pytest.param([STAY, STAY | {"instance": "i-2"}], 1, id="less than in the billing log"),
        pytest.param([STAY | {"ended": None}], 1, id="ended too early"),
        pytest.param([STAY | {"launched": "2026-11-21T09:59:57+00:00"}], 1, id="another launch"),
    ],
)
def test_differences_between_ledger_and_billing_log_are_detected(
    ledger: sqlite3.Connection, stays: list[dict[str, Any]], wrong: int
) -> None:
    assert len(checker.runs(ledger, stays).wrong) == wrong


def test_wrong_sizes_and_marks_are_detected() -> None:
    def instance(kind: str, **tags: str) -> dict[str, Any]:
        return {"id": kind, "pool": "chat", "kind": kind, "state": "running", "tags": tags}

    groups = [{"name": "chat-spot-a", "desired": 3}, {"name": "batch-spot-b", "desired": 0}]
    whole = {"instances": [instance("reserved"), instance("spot"), instance("spot")], "groups": groups}
    assert checker.sizes(whole).wrong == ()
    assert checker.marks(whole).wrong == ()
    marked = {"gpu-fleet:idle-since": "20261121t1000z"}
    other = {"instances": [instance("spot", **marked)], "groups": groups[1:]}
    assert len(checker.sizes(other).wrong) == 2
    assert checker.marks(other).wrong == ("spot carries gpu-fleet:idle-since",)


def test_leftover_processes_and_listeners_are_detected(tmp_path: Path) -> None:
    network = free_network()
    assert checker.left_over(tmp_path, network).wrong == ()
    with socket.socket() as listening:
        listening.bind((f"{network}.0.7", 0))
        listening.listen()
        sleeper = subprocess.Popen(
            [sys.executable, "-c", "import time; print('there', flush=True); time.sleep(300)"],
            env=os.environ | {"GPUFLEET_CHAOS": str(tmp_path)},
            stdout=subprocess.PIPE,
        )
        try:
            assert sleeper.stdout is not None
            assert sleeper.stdout.readline() == b"there\n"
            found = " ".join(checker.left_over(tmp_path, network).wrong)
        finally:
            end_process(sleeper)
            if sleeper.stdout is not None:
                sleeper.stdout.close()
    assert f"process {sleeper.pid}" in found
    assert f"{network}.0.7:" in found


def test_seed_determines_the_order_and_each_round_has_every_fault() -> None:
    first, second, other = (draw(seed, FAULTS) for seed in (1, 1, 2))
    names = [next(first).name for _ in range(2 * len(FAULTS))]
    assert names == [next(second).name for _ in names]
    assert names != [next(other).name for _ in names]
    half = len(FAULTS)
    assert sorted(names[:half]) == sorted(names[half:]) == sorted(fault.name for fault in FAULTS)


@pytest.mark.parametrize(
    ("exact", "later_s", "wrong"),
    [
        pytest.param(1, 20, 1, id="dated, and wrong"),
        pytest.param(0, 20, 0, id="undated, before the pass that saw it"),
        pytest.param(0, 90, 1, id="undated, and long before it"),
        pytest.param(0, -20, 1, id="undated, and after it"),
    ],
)
def test_tolerance_of_dated_and_undated_ends(
    ledger: sqlite3.Connection, exact: int, later_s: int, wrong: int
) -> None:
    ledger.execute("UPDATE run_ends SET exact = ?, ended_at = ended_at + ?", (exact, later_s * 1_000_000))
    assert len(checker.runs(ledger, [STAY]).wrong) == wrong
