"""The final check uses only scrapes after `drained` was received: the report of an agent alone is not enough."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from gpufleet.domain.decisions import Action, Decision, Outcome, OutcomeKind, Reason
from gpufleet.domain.drains import DrainOwner
from tests.fixtures.watchdogs.fake_fleet import FakeFleet, idle_fleet, mark
from tests.fixtures.watchdogs.fake_ports import FakeMetrics
from tests.fixtures.watchdogs.plain import QUIET, QUIET_ENGINE, QUIET_GPU, START, document, instance
from watchdogs import signals
from watchdogs.idle.final_check import DrainConfirmed, DrainUnconfirmed, FinalChecks
from watchdogs.idle.watchdog import IdleWatchdog
from watchdogs.policy import digests

FIRST = instance(1).id


@dataclass
class Scraping(FakeMetrics):
    """A store that reads the instance each `every` of its own clock, which is `ahead` of ours."""

    every: timedelta = timedelta(seconds=15)
    ahead: timedelta = timedelta(0)
    works_from: datetime | None = None
    """By the local clock: the engine has two requests since then."""
    engine_ends: datetime | None = None
    gpu_works_from: datetime | None = None
    exporter_ends: datetime | None = None
    queries: int = 0

    def now(self) -> datetime:
        return super().now() + self.ahead

    def interval(self, job: str) -> timedelta | None:
        return self.every

    def query(self, expression: str, at: datetime) -> Sequence[tuple[Mapping[str, str], float]]:
        self.queries += 1
        read = self._read(min(at, self.now()))
        real = read - self.ahead
        engine = replace(QUIET_ENGINE, newest_age=at - read, running_max=2.0 if _past(self.works_from, real) else 0.0)
        gpu = replace(QUIET_GPU, newest_age=at - read, active_max=0.9 if _past(self.gpu_works_from, real) else 0.0)
        if self.exporter_ends is not None and _past(self.exporter_ends, real):
            gpu = replace(gpu, newest_age=at - self._read(self.exporter_ends + self.ahead))
        seen = replace(QUIET, interval=self.every, gpu=gpu)
        seen = replace(seen, engine=None if _past(self.engine_ends, real) else engine)
        self.fleet.evidence = dict.fromkeys(self.fleet.instances, seen)
        if "timestamp(up{" not in expression:
            return super().query(expression, at)
        rows = super().query(expression, at)
        # an engine that is gone is still asked at each interval
        return [(k, read.timestamp() if k["stat"] == "engine" else value) for k, value in rows]

    def _read(self, moment: datetime) -> datetime:
        """The last time before a moment at which it read."""
        return moment - (moment - datetime(2026, 1, 1, tzinfo=UTC)) % self.every


def _past(since: datetime | None, moment: datetime) -> bool:
    return since is not None and moment >= since


def due(every: float = 15, ahead: float = 0, *, takes: timedelta = timedelta(0)) -> tuple[FakeFleet, Scraping]:
    """An instance whose grace is over and whose agent says `drained` so long after it was asked; its store."""
    fleet = idle_fleet(1)
    mark(fleet, 1, START - timedelta(hours=1))
    fleet.drain_takes = takes
    # the drain is not at the moment of a scrape
    fleet.now += timedelta(seconds=every * 0.4)
    fleet.seen.add(("idle", "batch", digests(document(), "idle")["batch"]))
    return fleet, Scraping(fleet, every=timedelta(seconds=every), ahead=timedelta(seconds=ahead))


def watch(fleet: FakeFleet, store: Scraping) -> Outcome:
    (outcome,) = IdleWatchdog(document(), replace(fleet.ports(), metrics=store)).apply().outcomes
    return outcome


CLOCKS = [
    pytest.param(1, 0, id="1 s"),
    pytest.param(1, 1, id="1 s, store ahead"),
    pytest.param(15, 0, id="15 s"),
    pytest.param(15, 50, id="15 s, store ahead"),
    pytest.param(15, -12, id="15 s, store behind"),
    pytest.param(60, 0, id="60 s"),
    pytest.param(60, 50, id="60 s, store ahead"),
    pytest.param(60, -50, id="60 s, store behind"),
]


@pytest.mark.parametrize(("every", "ahead"), CLOCKS)
def test_work_after_the_last_scrape_is_detected_whatever_the_agent_reports(every: float, ahead: float) -> None:
    fleet, store = due(every, ahead)
    store.works_from = fleet.now + timedelta(milliseconds=1)
    outcome = watch(fleet, store)
    assert (outcome.kind, fleet.ended) == (OutcomeKind.WAITING, [])
    assert "but requests in flight: 2 running" in outcome.detail
    store.works_from = None
    assert watch(fleet, store).kind is OutcomeKind.DONE
    assert fleet.ended == [FIRST] and fleet.drains == [FIRST]


@pytest.mark.parametrize(("every", "ahead"), CLOCKS)
def test_an_honest_drain_ends_within_two_scrapes(every: float, ahead: float) -> None:
    fleet, store = due(every, ahead, takes=timedelta(seconds=3))
    began = fleet.now
    store.engine_ends = began + timedelta(seconds=2)
    assert watch(fleet, store).kind is OutcomeKind.DONE
    assert fleet.ended == [FIRST]
    assert fleet.now - began <= timedelta(seconds=3 + 1.25 * every + 2)


def test_a_gpu_that_computes_after_its_engine_stopped_is_not_ended() -> None:
    fleet, store = due()
    store.engine_ends = store.gpu_works_from = fleet.now
    outcome = watch(fleet, store)
    assert outcome.kind is OutcomeKind.WAITING and "but GPU active" in outcome.detail
    assert not fleet.ended


def test_missing_scrapes_block_the_end_and_are_notified_once() -> None:
    fleet, store = due()
    store.engine_ends = store.exporter_ends = fleet.now
    for _ in range(3):
        began = fleet.now
        outcome = watch(fleet, store)
        assert outcome.kind is OutcomeKind.WAITING
        assert outcome.detail.startswith(f"{Reason.METRICS_STALE.sentence}: no scrape of its GPU exporter since")
        assert timedelta(seconds=30) <= fleet.now - began <= timedelta(seconds=45), "two intervals and a little"
        fleet.now += timedelta(hours=2)  # far behind the drain's deadline
    assert not fleet.ended and fleet.drains == [FIRST] and fleet.targets["batch"].value == 1
    (message,) = (text for key, text in fleet.messages.items() if key.startswith("unheard:"))
    assert "Prometheus has not scraped its GPU exporter since" in message and "costs 0.25 USD/h" in message
    store.exporter_ends = None
    assert watch(fleet, store).kind is OutcomeKind.DONE


@pytest.mark.parametrize(
    ("rows", "silent"),
    [
        pytest.param({}, ("engine", "GPU exporter"), id="no targets"),
        pytest.param({"engine": 1}, ("GPU exporter",), id="no exporter"),
        pytest.param({"gpu": 1}, ("engine",), id="no engine"),
        pytest.param({"engine": 0, "gpu": 1}, ("engine",), id="engine scraped at that very moment"),
        pytest.param({"engine": 1, "gpu": -9}, ("GPU exporter",), id="exporter scraped before"),
        pytest.param({"engine": 1, "gpu": 1}, (), id="both since"),
        pytest.param({"engine": float("nan"), "gpu": 1}, ("engine",), id="no time"),
    ],
)
def test_a_source_counts_when_it_was_scraped_later(rows: dict[str, float], silent: tuple[str, ...]) -> None:
    @dataclass
    class PrometheusDuringDrain(FakeMetrics):
        def query(self, expression: str, at: datetime) -> Sequence[tuple[Mapping[str, str], float]]:
            return [({"instance_id": FIRST, "stat": k}, START.timestamp() + value) for k, value in rows.items()]

    found = signals.scrapes(PrometheusDuringDrain(FakeFleet()), signals.of_environment("test"), [FIRST])
    assert found.get(FIRST, signals.Scrapes()).silent_since(START) == silent


def decision(number: int) -> Decision:
    return Decision(
        resource=instance(number).id, pool="batch", action=Action.END, reason=Reason.STILL_IDLE, detail="idle"
    )


@pytest.mark.parametrize("count", [1, 20])
def test_parallel_waits_for_scrapes_share_one_query(count: int) -> None:
    fleet = idle_fleet(count)
    fleet.now += timedelta(seconds=4)
    store = Scraping(fleet)
    ports = replace(fleet.ports(), metrics=store)
    drains = [(decision(number), instance(number)) for number in range(1, count + 1)]
    for _, one in drains:
        ports.agents.drain(one, DrainOwner.IDLE, "idle", timedelta(seconds=90))
    began, looks = fleet.now, FinalChecks(ports, signals.of_environment("test"))
    results = list(looks.wait(drains, timedelta(seconds=90)))
    assert [type(look) for look in results] == [DrainConfirmed] * count
    assert fleet.now - began <= timedelta(seconds=25) and store.queries <= 6


def test_an_instance_that_never_reports_drained_does_not_block_the_others() -> None:
    fleet = idle_fleet(2)
    ports = replace(fleet.ports(), metrics=Scraping(fleet))
    ports.agents.drain(instance(1), DrainOwner.IDLE, "idle", timedelta(seconds=90))
    began, given = fleet.now, list[tuple[str, timedelta]]()
    drains = [(decision(1), instance(1)), (decision(2), instance(2))]
    for look in FinalChecks(ports, signals.of_environment("test")).wait(drains, timedelta(seconds=90)):
        given.append((look.decision.resource, fleet.now - began))
        assert isinstance(look, DrainConfirmed if look.decision.resource == FIRST else DrainUnconfirmed)
    assert given[0][0] == FIRST and given[0][1] < timedelta(seconds=30)
    assert given[1][1] >= timedelta(seconds=100), "its drain's deadline and ten seconds"
