"""One run: set up, inject faults in the order of a seed, wait for recovery, check, take down, check for leftovers."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx

from scripts.demo.traffic import Counted
from tests.chaos import checker
from tests.chaos.evidence import Places, RunRecord, Verdict
from tests.chaos.fault import Fault, Memory, draw
from tests.chaos.faults import FAULTS, silence_slack
from tests.chaos.setup import set_up
from tests.chaos.testbed import GROUP_INTERVAL, STACK, ChaosTestbed
from tests.fixtures.e2e.embedded_cloud import wait_for
from tests.fixtures.local_token import BEARER

RECOVERY_S: Final = 600.0
"""Generous, because a loaded machine needs minutes for what an idle one does in seconds."""


def run_faults(
    folder: Path,
    network: str,
    seed: int,
    *,
    faults: Sequence[Fault] = FAULTS,
    minutes: float | None = None,
    announce: Callable[[str], None],
) -> list[Verdict]:
    """Inject each of `faults` once; with `minutes`, repeatedly for that time and each one longer. Returns the
    results."""
    began = time.monotonic()

    def log(text: str) -> None:
        announce(f"{datetime.now(UTC):%H:%M:%S} {time.monotonic() - began:5.0f} s  {text}")

    log(f"seed {seed}, network {network}, files in {folder}")
    with set_up(folder, network, log) as testbed:
        silence_slack(testbed, seed)
        order = draw(seed, faults)
        until = time.monotonic() + (minutes or 0) * 60
        for number, fault in enumerate(order):
            if number >= len(faults) and time.monotonic() >= until:
                break
            _one(testbed, fault, fault.lasts_s if minutes is None else fault.long_s)
        verdicts = _judge(testbed)
        log("pulumi destroy")
        testbed.engine.run("destroy", "--yes", "--skip-preview", "--stack", STACK)
        verdicts.append(_empty(testbed))
    verdicts.append(checker.left_over(folder, network))
    log("done")
    return verdicts


def _one(testbed: ChaosTestbed, fault: Fault, lasts_s: float) -> None:
    if fault.needs_whole:
        wait_for(f"chat whole before {fault.name!r}", testbed.is_whole, RECOVERY_S)
    testbed.announce(f"fault: {fault.name}, for {lasts_s:.0f} s")
    memory, failed = Memory(), len(testbed.traffic.failures())
    fault.inject(testbed, memory)
    time.sleep(lasts_s)
    fault.heal(testbed, memory)
    testbed.announce(f"cleared: {fault.name}; {_counted(testbed.traffic.counted())}")
    for lost in testbed.traffic.failures()[failed:]:
        testbed.announce(f"  failed: {lost.message} after {lost.ended - lost.began:.1f} s")


def _counted(counted: Counted) -> str:
    return f"{counted.answered} answered, {counted.failed} failed, slowest {counted.slowest_s} s"


def _judge(testbed: ChaosTestbed) -> list[Verdict]:
    testbed.announce("all faults are cleared: waiting for recovery")
    httpx.post(f"{testbed.slack_url}/faults", json={"share": 0.0}, headers=BEARER, timeout=60).raise_for_status()
    wait_for(
        "chat whole, batch at its floor", lambda: testbed.is_whole() and not testbed.instances("batch"), RECOVERY_S
    )
    quiet = _Quiet(testbed)
    if not _within(quiet.long_enough, RECOVERY_S):
        testbed.announce("alerts still fire, or Prometheus has not counted all losses: the checks report which")
    for part in ("alertmanager", "console"):
        testbed.end(part)  # the checks cause no notifications
    wait_for("every message delivered", lambda: _nothing_waits(testbed), RECOVERY_S)
    testbed.end("watchdogs")  # before the clients: without them chat is idle, and is rightly terminated
    counted = testbed.traffic.stop()
    drift = _drift(testbed)
    verify = testbed.gpufleet("ledger", "verify")
    testbed.gpufleet("watch", "cost", "--quiet")
    report = json.loads(testbed.gpufleet("report", "cost", "--since", "3h", "--json").stdout)
    testbed.announce(f"{_counted(counted)}, {testbed.traffic.refused} connections refused and tried again")
    places = Places(
        cloud=testbed.cloud.url,
        slack=testbed.slack_url,
        prometheus=testbed.prometheus_url,
        ledger=testbed.ledger,
        folder=testbed.folder,
    )
    record = RunRecord(
        answered=counted.answered,
        failures=[(one.began, one.ended, one.message) for one in testbed.traffic.failures()],
        kills=tuple(testbed.kills),
        taken=frozenset(testbed.taken),
        broken=testbed.broken,
        notices=testbed.notices,
        dry=testbed.dry,
        blind=testbed.blind,
    )
    return [
        *checker.after_chaos(places, record, report),
        drift,
        Verdict(what="ledger verify", seen=verify.stdout.strip()),
    ]


def _drift(testbed: ChaosTestbed) -> Verdict:
    """Check that `pulumi up` changes nothing. It holds if no one edits the program or the agent during the run."""
    try:
        seen = testbed.engine.run("preview", "--expect-no-changes", "--stack", STACK)
    except AssertionError as error:
        changes = tuple(line for line in str(error).splitlines() if line.startswith((" ~", " +", " -", "error")))
        return Verdict(what="drift", seen="pulumi preview proposes changes", wrong=changes)
    return Verdict(what="drift", seen=f"pulumi preview: {seen.strip().splitlines()[-1]}")


def _within(look: Callable[[], bool], limit_s: float) -> bool:
    """Whether it became true within the limit. The checks report the cause otherwise."""
    try:
        wait_for("this", look, limit_s)
    except AssertionError:
        return False
    return True


@dataclass(slots=True)
class _Quiet:
    """Whether no alert of a cleared fault has fired for so long that Alertmanager has notified its end."""

    testbed: ChaosTestbed
    _since: float | None = None

    def long_enough(self) -> bool:
        if self._fires() or self._counted() < len(self.testbed.notices):
            self._since = None
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since > 3 * GROUP_INTERVAL.total_seconds()

    def _fires(self) -> bool:
        active = httpx.get(f"{self.testbed.alertmanager_url}/api/v2/alerts", timeout=60).json()
        return bool({one["labels"]["alertname"] for one in active} & {"GpuErrors", "GpuGone"})

    def _counted(self) -> float:
        """Losses of chat that Prometheus has counted."""
        query = {"query": 'max(gpufleet_preemptions_total{pool="chat"})'}
        answer = httpx.get(f"{self.testbed.prometheus_url}/api/v1/query", params=query, timeout=60).json()
        found = answer["data"]["result"]
        return float(found[0]["value"][1]) if found else -1


def _nothing_waits(testbed: ChaosTestbed) -> bool:
    import sqlite3

    with sqlite3.connect(f"file:{testbed.ledger}?mode=ro", uri=True) as ledger:
        [[count]] = ledger.execute("SELECT count(*) FROM outbox WHERE state IN ('waiting', 'sending')")
    return count == 0


def _empty(testbed: ChaosTestbed) -> Verdict:
    found = testbed.cloud.control("state")
    alive = [one["id"] for one in found["instances"] if one["state"] in ("pending", "running")]
    groups = [group["name"] for group in found["groups"]]
    return Verdict(what="destroyed", seen=f"{len(alive)} instances, {len(groups)} groups", wrong=(*alive, *groups))
