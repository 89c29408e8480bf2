"""What a scripted run does with an engine, and what it observes. A player drives a real engine or a model."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from localcloud.engine.reports import REPORTS

from serving.engines import CONTRACTS
from serving.engines.contract import Contract, Probes
from serving.exposition import Sample, parse
from serving.metrics import Metric, MetricKind
from serving.releases import Version

CAPACITY: Final = 4
"""Requests that each engine runs at the same time."""
QUEUE: Final = 8
"""Requests that wait at most."""
CONTEXT: Final = 2048
REFUSED: Final = "connection refused"


_KSERVE: Final = Probes(alive="/v2/health/ready", version="/v2", metrics_port=8002)
"""Probes of Triton's own server. The fleet starts it with another frontend, which is in no package."""


def contract_of(kind: str) -> Contract:
    """The contract of an engine as it runs here."""
    contract = CONTRACTS[kind]
    return replace(contract, probes=_KSERVE, launch=None) if kind == "triton" else contract


def release(kind: str) -> Version:
    """The release that runs here, and that the simulators have."""
    return REPORTS[kind]().version


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRequest:
    """A request with random tokens. Requests with different numbers share no prefix."""

    number: int
    prompt: int = 20
    output: int = 8


class Exchange(ABC):
    """A request that was sent, and what came back."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Output tokens that were received so far."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether no more will come."""

    @abstractmethod
    def reach(self, tokens: int) -> None:
        """Wait until that many tokens were received, or until the response ended."""

    @abstractmethod
    def leave(self) -> None:
        """Close the connection."""

    @abstractmethod
    def finish(self) -> str:
        """Wait for the end. Return the status: `200`, `503`, `connection refused`, …; `cut` if tokens are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The page of an engine at one step of a run, and other facts of the step."""

    run: str
    step: str
    page: str
    is_at_rest: bool
    """Whether no request was open: counters are final."""
    varying: tuple[str, ...] = ()
    """Canonical metrics whose values depend on the speed at which a client left."""
    facts: dict[str, str] = field(default_factory=dict[str, str])
    """Statuses, by name."""

    def samples(self) -> list[Sample]:
        """The samples of the page."""
        return list(parse(self.page))


class Player(ABC):
    """Plays runs on an engine."""

    contract: Contract
    version: Version

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self._run = ""
        self._number = 0

    def begin(self, run: str) -> None:
        """Name the run to which the next observations belong."""
        self._run = run

    def warm_up(self) -> None:
        """Send a request as the node agent does when an engine starts."""
        self.send(self.request(output=4), stream=False).finish()
        self.until_idle()

    def request(self, **sizes: int) -> ScriptedRequest:
        """Return a request with tokens of its own."""
        self._number += 1
        return ScriptedRequest(number=self._number, **sizes)

    def observe(
        self,
        step: str,
        *,
        is_at_rest: bool = False,
        varying: Sequence[Metric] = (),
        facts: dict[str, str] | None = None,
    ) -> Observation:
        """Record the page."""
        found = Observation(
            run=self._run,
            step=step,
            page="\n".join(self._of_contract(self.page())) + "\n",
            is_at_rest=is_at_rest,
            varying=tuple(str(metric) for metric in varying),
            facts=facts or {},
        )
        self.observations.append(found)
        return found

    def _of_contract(self, page: str) -> Iterator[str]:
        """The lines that the contract names, without buckets of histograms and without times of creation."""
        names = {
            series.name + part
            for series in self.contract.at(self.version)
            for part in (("_count", "_sum") if series.measures.kind is MetricKind.HISTOGRAM else ("",))
        }
        kinds = {series.name for series in self.contract.at(self.version)}
        for line in page.splitlines():
            if line.startswith("# TYPE "):
                if line.split()[2] in names | kinds:
                    yield line
            elif line.partition("{")[0].partition(" ")[0] in names:
                yield line

    @abstractmethod
    def send(self, request: ScriptedRequest, *, stream: bool = True) -> Exchange:
        """Send a request and return at once."""

    @abstractmethod
    def page(self) -> str:
        """The text of the metrics page."""

    @abstractmethod
    def until_idle(self) -> None:
        """Wait until the gauges are at 0, or as long as the contract allows."""

    @abstractmethod
    def until_waiting(self, count: int) -> None:
        """Wait until that many requests wait, or as long as the contract allows."""

    @abstractmethod
    def probe(self, name: str) -> str:
        """The status of a probe of the contract: `alive`, `version` or `metrics`."""

    @abstractmethod
    def key_facts(self) -> dict[str, str]:
        """The status of a request without the key, and whether a command line contains the key. Empty: no key."""

    @abstractmethod
    def version_text(self) -> str:
        """The release that the engine reports."""

    @abstractmethod
    def terminate(self) -> None:
        """Send SIGTERM to the engine."""

    @abstractmethod
    def exit_code(self) -> int | None:
        """Wait for the end of the process. None: it did not end."""

    @abstractmethod
    def restart(self) -> None:
        """Start a new engine with the same arguments."""
