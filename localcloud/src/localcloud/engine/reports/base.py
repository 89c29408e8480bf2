"""What an engine reports about its requests: one model per engine, from the engine's own source, not from our
contract.

A model receives the events of requests at their times and renders the page as that engine would at that time. The
benchmark drives it with a virtual clock, the simulated engine with the real one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from serving.exposition import Sample, render_sample
from serving.releases import Version


class Outcome(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(slots=True, kw_only=True, eq=False)
class ReportedRequest:
    """A request as the engine knows it. Times are in seconds."""

    prompt: int
    """Tokens of the prompt."""
    cached: int = 0
    """Tokens of the prompt that the prefix cache provides."""
    accepted: float = 0.0
    prefilled: int = 0
    generated: int = 0


@dataclass(slots=True)
class EngineReport(ABC):
    """The numbers that an engine keeps. A subclass decides when its page shows them."""

    model: str = "m"
    version: Version = Version(0, 0)
    """The release whose names and labels the page has."""
    waiting: list[ReportedRequest] = field(default_factory=list[ReportedRequest])
    running: list[ReportedRequest] = field(default_factory=list[ReportedRequest])

    def accept(self, now: float, request: ReportedRequest) -> None:
        """A request arrived and is queued."""
        request.accepted = now
        self.waiting.append(request)

    def start(self, now: float, request: ReportedRequest) -> None:
        """A request left the queue."""
        self.waiting.remove(request)
        self.running.append(request)

    def prefill(self, now: float, request: ReportedRequest, tokens: int) -> None:
        """A part of a prompt was processed, in one iteration."""
        request.prefilled += tokens

    def decode(self, now: float, tokens: Mapping[int, int], iterations: int) -> None:
        """Running requests (by index) generated tokens in a number of iterations."""
        for index, count in tokens.items():
            self.running[index].generated += count

    def end(self, now: float, request: ReportedRequest, outcome: Outcome) -> None:
        """A request ended; it may still be in the queue."""
        (self.running if request in self.running else self.waiting).remove(request)

    def tick(self, now: float) -> None:
        """Let the engine's own timers run, up to now. Called before each page and at least each second."""
        return

    @abstractmethod
    def samples(self, now: float) -> Iterable[Sample]:
        """The samples of the page."""

    def page(self, now: float) -> str:
        """The text of the page, without comments."""
        self.tick(now)
        return "".join(f"{render_sample(sample)}\n" for sample in self.samples(now))


def sample(name: str, value: float, **labels: str) -> Sample:
    return Sample(name=name, labels=labels, value=value)
