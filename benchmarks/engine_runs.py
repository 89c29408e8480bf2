"""Runs of a simulated engine in virtual time: requests, pages as they are scraped, and the truth.

A run is one behaviour (a burst, one long request, a restart, …) with random sizes. The engine reports as its own
source documents (`localcloud.engine.reports`). One step is one second.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from localcloud.engine.reports import REPORTS
from localcloud.engine.reports.base import EngineReport, Outcome, ReportedRequest
from localcloud.engine.reports.triton import TritonPythonReport

from serving.engines import CONTRACTS
from serving.releases import Version

WINDOW_S: Final = 600
CONTEXT: Final = 1_050_000
"""Highest number of tokens of one request, prompt and answer."""
LONGEST_REQUEST_S: Final = 540
"""The router's limit of one request."""
_RUNNING_AT_ONCE: Final = 8
"""Requests that run at the same time."""
_CHUNK: Final = 2048
"""Prompt tokens of one iteration."""
_ITERATIONS_PER_S: Final = 30
_BOOT_S: Final = 60


class Behaviour(StrEnum):
    """What happens in a run."""

    BURSTS = "bursts"
    LONG_REQUEST = "one long request"
    LONG_PREFILL = "long prefill"
    IDLE = "idle"
    DRAIN = "drain"
    RESTART = "restart"
    TWO_VERSIONS = "two versions"
    MISSING_NAMES = "missing names"
    SLOW_SCRAPE = "slow scrape"
    ABORTS = "aborted requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request that arrives."""

    at: int
    prompt: int
    cached: int
    output: int
    aborts_after: int | None = None
    """The client disconnects this many seconds after its arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One attempt to read the page. `text`: None if the engine did not answer."""

    at: float
    text: str | None
    opened: int
    """Requests that are open at the gate."""
    passed: int
    """Requests that the gate passed since it started."""
    version: Version
    started: float


@dataclass(slots=True, kw_only=True)
class Run:
    """A finished run."""

    kind: str
    behaviour: Behaviour
    interval_s: int
    scrapes: list[Scrape] = field(default_factory=list[Scrape])
    open: list[bool] = field(default_factory=list[bool])
    """By second: whether a request was open."""
    prompt: int = 0
    """Prompt tokens processed."""
    output: int = 0
    requests: int = 0
    """Requests that the router sent."""
    cut: int = 0
    """Requests that their clients left, as the router counts them."""
    restarts: int = 0

    @property
    def length(self) -> int:
        return len(self.open)


def runs(kind: str, count: int, seed: int) -> Iterator[Run]:
    """Yield that many runs of an engine; the behaviours take turns."""
    behaviours = list(Behaviour)
    for number in range(count):
        dice = Random(f"{seed}/{kind}/{number}")
        yield play(kind, behaviours[number % len(behaviours)], dice)


def play(kind: str, behaviour: Behaviour, dice: Random) -> Run:
    """Simulate one run."""
    interval = dice.choice((45, 60)) if behaviour is Behaviour.SLOW_SCRAPE else dice.choice((10, 15))
    run = Run(kind=kind, behaviour=behaviour, interval_s=interval)
    arrivals = _ARRIVALS.get(behaviour, _bursts)(dice)
    end_of_work = max((one.at for one in arrivals), default=300)
    length = end_of_work + LONGEST_REQUEST_S + WINDOW_S + 20 * interval
    _Engine(run=run, arrivals=arrivals, dice=dice).play(length)
    return run


@dataclass(slots=True, kw_only=True)
class _Active:
    arrival: Arrival
    report: ReportedRequest
    left: int
    """Output tokens still to generate."""


@dataclass(slots=True, kw_only=True)
class _Engine:
    run: Run
    arrivals: list[Arrival]
    dice: Random
    report: EngineReport = field(init=False)
    version: Version = field(init=False)
    renamed: int = 0
    """Number of the name that the page lacks, in runs with a missing name. Odd: Triton has its Python backend."""
    started: float = 0.0
    up_at: int = 0
    queued: list[_Active] = field(default_factory=list["_Active"])
    running: list[_Active] = field(default_factory=list["_Active"])

    def play(self, length: int) -> None:
        self.renamed = self.dice.randrange(100)
        self._boot(0)
        restart = self._restart_at(length)
        offset = self.dice.randrange(self.run.interval_s)
        waiting = sorted(self.arrivals, key=lambda one: one.at)
        for now in range(length):
            if now in restart:
                self._restart(now)
            while waiting and waiting[0].at <= now:
                arrival = waiting.pop(0)
                if now >= self.up_at:
                    self._accept(now, arrival)
            if now >= self.up_at:
                self._step(now)
            self.run.open.append(bool(self.queued or self.running))
            if now % self.run.interval_s == offset:
                self._scrape(now)

    def _restart_at(self, length: int) -> set[int]:
        if self.run.behaviour in (Behaviour.RESTART, Behaviour.TWO_VERSIONS):
            return {self.dice.randrange(200, length - WINDOW_S - 400)}
        return set()

    def _boot(self, now: int) -> None:
        python_backend = self.run.kind == "triton" and self.renamed % 2
        self.report = (TritonPythonReport if python_backend else REPORTS[self.run.kind])()
        self.started = float(now)
        self.version = _version(self.run.kind, second=now > 0 and self.run.behaviour is Behaviour.TWO_VERSIONS)
        self.report.version = self.version
        # the agent's warm-up request
        self._accept(now, Arrival(at=now, prompt=4, cached=0, output=4))

    def _restart(self, now: int) -> None:
        self.run.restarts += 1
        self.queued.clear()
        self.running.clear()
        self.up_at = now + _BOOT_S
        self._boot(now + _BOOT_S)

    def _accept(self, now: int, arrival: Arrival) -> None:
        self.run.requests += 1
        reported = ReportedRequest(prompt=arrival.prompt, cached=arrival.cached)
        self.report.accept(now, reported)
        self.queued.append(_Active(arrival=arrival, report=reported, left=arrival.output))

    def _step(self, now: int) -> None:
        while self.queued and len(self.running) < _RUNNING_AT_ONCE:
            active = self.queued.pop(0)
            self.report.start(now, active.report)
            self.running.append(active)
        self._disconnect(now)
        filling = next((one for one in self.running if one.report.prefilled < one.arrival.prompt), None)
        if filling is not None:
            tokens = min(_CHUNK, filling.arrival.prompt - filling.report.prefilled)
            self.report.prefill(now, filling.report, tokens)
            if filling.report.prefilled >= filling.arrival.prompt:
                self.run.prompt += filling.arrival.prompt
        decoding = {
            index: min(_ITERATIONS_PER_S, one.left)
            for index, one in enumerate(self.running)
            if one.report.prefilled >= one.arrival.prompt and one.left
        }
        if decoding:
            self.report.decode(now, decoding, _ITERATIONS_PER_S)
            for index, tokens in decoding.items():
                self.running[index].left -= tokens
                self.run.output += tokens
        for one in [one for one in self.running if not one.left and one.report.prefilled >= one.arrival.prompt]:
            self.running.remove(one)
            self.report.end(now, one.report, Outcome.FINISHED)
        self.report.tick(now)

    def _disconnect(self, now: int) -> None:
        for group in (self.queued, self.running):
            for one in list(group):
                limit = LONGEST_REQUEST_S if one.arrival.aborts_after is None else one.arrival.aborts_after
                if now - one.report.accepted >= limit:
                    group.remove(one)
                    self.run.cut += 1
                    self.report.end(now, one.report, Outcome.ABORTED)

    def _scrape(self, now: int) -> None:
        text = None if now < self.up_at or self.dice.random() < 0.005 else self.report.page(now)
        if text is not None and self.run.behaviour is Behaviour.MISSING_NAMES:
            text = _without(text, self.run.kind, self.version, self.renamed)
        self.run.scrapes.append(
            Scrape(
                at=now,
                text=text,
                opened=len(self.queued) + len(self.running),
                passed=self.run.requests,
                version=self.version,
                started=self.started,
            )
        )


def _version(kind: str, *, second: bool) -> Version:
    """The first and the second release of a run: the lowest and the highest that the contract covers."""
    tested = CONTRACTS[kind].tested
    assert tested.since is not None
    assert tested.before is not None
    if not second:
        return tested.since
    before = tested.before
    if before.patch:
        return Version(before.major, before.minor, before.patch - 1)
    return Version(before.major, before.minor - 1) if before.minor else Version(before.major - 1, 999)


def _without(text: str, kind: str, version: Version, which: int) -> str:
    """The page of a release that renamed a number of the evidence."""
    contract = CONTRACTS[kind]
    names = [series.name for series in contract.at(version) if series.measures in contract.evidence.idle]
    name = names[which % len(names)]
    return text.replace(name, f"{name}_renamed")


def _bursts(dice: Random) -> list[Arrival]:
    """Three bursts with pauses."""
    found: list[Arrival] = []
    at = dice.randrange(60, 200)
    for _ in range(3):
        for _ in range(dice.randrange(5, 40)):
            found.append(_arrival(dice, at + dice.randrange(60), output=dice.randrange(10, 2000)))
        at += dice.randrange(200, 900)
    return found


def _arrival(dice: Random, at: int, *, output: int, prompt: int | None = None) -> Arrival:
    size = dice.randrange(10, 4000) if prompt is None else prompt
    return Arrival(at=at, prompt=size, cached=dice.randrange(size), output=output)


def _long_request(dice: Random) -> list[Arrival]:
    """A request that takes almost as long as the router allows, first of its engine or after others."""
    at = dice.randrange(60, 1500)
    seconds = dice.randrange(LONGEST_REQUEST_S // 2, LONGEST_REQUEST_S - 10)
    before = [_arrival(dice, dice.randrange(20, 60), output=50) for _ in range(dice.randrange(3))]
    return [*before, _arrival(dice, at, output=seconds * _ITERATIONS_PER_S, prompt=100)]


def _long_prefill(dice: Random) -> list[Arrival]:
    """Prompts of up to a million tokens and short answers."""
    start = dice.randrange(60, 900)
    prompts = (dice.randrange(200_000, 1_000_000) for _ in range(dice.randrange(1, 3)))
    return [_arrival(dice, start + 5 * n, output=20, prompt=prompt) for n, prompt in enumerate(prompts)]


def _idle(dice: Random) -> list[Arrival]:
    """No request, or one early."""
    return [_arrival(dice, 30, output=100)] if dice.random() < 0.5 else []


def _aborts(dice: Random) -> list[Arrival]:
    """Clients that disconnect, also from the queue."""
    start = dice.randrange(60, 300)
    return [
        Arrival(
            at=start + dice.randrange(120),
            prompt=dice.randrange(10, 4000),
            cached=0,
            output=dice.randrange(100, 9000),
            aborts_after=dice.choice((None, 1, 5, 30, 120)),
        )
        for _ in range(dice.randrange(5, 30))
    ]


_ARRIVALS: Final[dict[Behaviour, Callable[[Random], list[Arrival]]]] = {
    Behaviour.LONG_REQUEST: _long_request,
    Behaviour.LONG_PREFILL: _long_prefill,
    Behaviour.IDLE: _idle,
    Behaviour.ABORTS: _aborts,
    Behaviour.SLOW_SCRAPE: _long_request,
}
