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
from tests.chaos.evidence import Places, Played, Verdict
from tests.chaos.fault import Fault, Memory, draw
from tests.chaos.faults import FAULTS, silence_slack
from tests.chaos.ground import set_up
from tests.chaos.stage import GROUP_INTERVAL, STACK, Stage
from tests.fixtures.e2e.embedded_cloud import wait_for
from tests.fixtures.local_token import BEARER

SETTLE_S: Final = 600.0
"""Generous, because a loaded machine needs minutes for what an idle one does in seconds."""


def play(
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
    with set_up(folder, network, log) as stage:
        silence_slack(stage, seed)
        order = draw(seed, faults)
        until = time.monotonic() + (minutes or 0) * 60
        for number, fault in enumerate(order):
            if number >= len(faults) and time.monotonic() >= until:
                break
            _one(stage, fault, fault.lasts_s if minutes is None else fault.long_s)
        verdicts = _judge(stage)
        log("pulumi destroy")
        stage.engine.run("destroy", "--yes", "--skip-preview", "--stack", STACK)
        verdicts.append(_empty(stage))
    verdicts.append(checker.left_over(folder, network))
    log("done")
    return verdicts


def _one(stage: Stage, fault: Fault, lasts_s: float) -> None:
    if fault.needs_whole:
        wait_for(f"chat whole before {fault.name!r}", stage.is_whole, SETTLE_S)
    stage.announce(f"fault: {fault.name}, for {lasts_s:.0f} s")
    memory, failed = Memory(), len(stage.traffic.failures())
    fault.inject(stage, memory)
    time.sleep(lasts_s)
    fault.heal(stage, memory)
    stage.announce(f"cleared: {fault.name}; {_counted(stage.traffic.counted())}")
    for lost in stage.traffic.failures()[failed:]:
        stage.announce(f"  failed: {lost.message} after {lost.ended - lost.began:.1f} s")


def _counted(counted: Counted) -> str:
    return f"{counted.answered} answered, {counted.failed} failed, slowest {counted.slowest_s} s"


def _judge(stage: Stage) -> list[Verdict]:
    stage.announce("all faults are cleared: waiting for recovery")
    httpx.post(f"{stage.slack_url}/faults", json={"share": 0.0}, headers=BEARER, timeout=60).raise_for_status()
    wait_for("chat whole, batch at its floor", lambda: stage.is_whole() and not stage.instances("batch"), SETTLE_S)
    quiet = _Quiet(stage)
    if not _within(quiet.long_enough, SETTLE_S):
        stage.announce("alerts still fire, or Prometheus has not counted all losses: the checks report which")
    for part in ("alertmanager", "console"):
        stage.end(part)  # the checks cause no notifications
    wait_for("every message delivered", lambda: _nothing_waits(stage), SETTLE_S)
    stage.end("watchdogs")  # before the clients: without them chat is idle, and is rightly terminated
    counted = stage.traffic.stop()
    drift = _drift(stage)
    verify = stage.gpufleet("ledger", "verify")
    stage.gpufleet("watch", "cost", "--quiet")
    report = json.loads(stage.gpufleet("report", "cost", "--since", "3h", "--json").stdout)
    stage.announce(f"{_counted(counted)}, {stage.traffic.refused} connections refused and tried again")
    places = Places(
        cloud=stage.cloud.url,
        slack=stage.slack_url,
        prometheus=stage.prometheus_url,
        ledger=stage.ledger,
        folder=stage.folder,
    )
    played = Played(
        answered=counted.answered,
        failures=[(one.began, one.ended, one.message) for one in stage.traffic.failures()],
        kills=tuple(stage.kills),
        taken=frozenset(stage.taken),
        broken=stage.broken,
        notices=stage.notices,
        dry=stage.dry,
        blind=stage.blind,
    )
    return [
        *checker.after_chaos(places, played, report),
        drift,
        Verdict(what="ledger verify", seen=verify.stdout.strip()),
    ]


def _drift(stage: Stage) -> Verdict:
    """Check that `pulumi up` changes nothing. It holds if no one edits the program or the agent during the run."""
    try:
        seen = stage.engine.run("preview", "--expect-no-changes", "--stack", STACK)
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

    stage: Stage
    _since: float | None = None

    def long_enough(self) -> bool:
        if self._fires() or self._counted() < len(self.stage.notices):
            self._since = None
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since > 3 * GROUP_INTERVAL.total_seconds()

    def _fires(self) -> bool:
        active = httpx.get(f"{self.stage.alertmanager_url}/api/v2/alerts", timeout=60).json()
        return bool({one["labels"]["alertname"] for one in active} & {"GpuErrors", "GpuGone"})

    def _counted(self) -> float:
        """Losses of chat that Prometheus has counted."""
        query = {"query": 'max(gpufleet_preemptions_total{pool="chat"})'}
        answer = httpx.get(f"{self.stage.prometheus_url}/api/v1/query", params=query, timeout=60).json()
        found = answer["data"]["result"]
        return float(found[0]["value"][1]) if found else -1


def _nothing_waits(stage: Stage) -> bool:
    import sqlite3

    with sqlite3.connect(f"file:{stage.ledger}?mode=ro", uri=True) as ledger:
        [[count]] = ledger.execute("SELECT count(*) FROM outbox WHERE state IN ('waiting', 'sending')")
    return count == 0


def _empty(stage: Stage) -> Verdict:
    found = stage.cloud.control("state")
    alive = [one["id"] for one in found["instances"] if one["state"] in ("pending", "running")]
    groups = [group["name"] for group in found["groups"]]
    return Verdict(what="destroyed", seen=f"{len(alive)} instances, {len(groups)} groups", wrong=(*alive, *groups))
