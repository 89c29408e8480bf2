"""Plays runs on the report model of an engine, in virtual time: one iteration is 1/30 s."""

from typing import Final

from localcloud.engine.reports.base import EngineReport, Outcome, ReportedRequest

from benchmarks.comparison.player import (
    CAPACITY,
    CONTEXT,
    QUEUE,
    REFUSED,
    Exchange,
    Player,
    ScriptedRequest,
    contract_of,
    release,
)
from serving.engines.contract import StopMode

_ITERATION_S: Final = 1 / 30
_CHUNK: Final = 2048
_BLOCK: Final = {"vllm": 32, "sglang": 1}
"""Tokens of a block of the prefix cache."""
_ALIVE_IN_DRAIN: Final = {"vllm": "200", "sglang": "503", "triton": REFUSED}
"""Status of the probe `alive` after SIGTERM, while a request runs."""


class ModelExchange(Exchange):
    """A request of the model."""

    def __init__(self, player: "ModelPlayer", request: ScriptedRequest, status: str) -> None:
        self._player, self.request, self.status = player, request, status
        self.report = ReportedRequest(prompt=request.prompt)
        self._ended = status != "200"

    @property
    def tokens(self) -> int:
        return self.report.generated

    @property
    def ended(self) -> bool:
        return self._ended

    def close(self) -> None:
        """No more tokens will come."""
        self._ended = True

    def reach(self, tokens: int) -> None:
        while self.tokens < tokens and not self._ended:
            self._player.iterate()

    def leave(self) -> None:
        self._player.leave(self)

    def finish(self) -> str:
        self.reach(self.request.output)
        return "cut" if self.status == "200" and self.tokens != self.request.output else self.status


class ModelPlayer(Player):
    """Plays on a report model, with the responses of the engine's API."""

    def __init__(self, kind: str, report: type[EngineReport]) -> None:
        super().__init__()
        self.contract, self.version = contract_of(kind), release(kind)
        self._kind, self._report_type = kind, report
        self.restart()

    def restart(self) -> None:
        self._now = 1000.0
        self._report = self._report_type(version=self.version, model="tiny")
        self._waiting: list[ModelExchange] = []
        self._running: list[ModelExchange] = []
        self._known: dict[int, int] = {}
        self._draining = False

    def send(self, request: ScriptedRequest, *, stream: bool = True) -> Exchange:
        exchange = ModelExchange(self, request, self._status(request))
        if not exchange.ended:
            self._report.accept(self._now, exchange.report)
            self._waiting.append(exchange)
            self._start()
        return exchange

    def _status(self, request: ScriptedRequest) -> str:
        if self._draining and self.contract.drain.stop is StopMode.FINISHES:
            # vLLM answers 200 without a token to a prompt of token IDs
            return "cut" if self._kind == "vllm" else REFUSED
        if request.prompt > CONTEXT:
            return "400"
        if len(self._waiting) < QUEUE or self._kind == "triton":
            return "200"
        return "error in the stream" if self._kind == "sglang" else "503"

    def _start(self) -> None:
        while self._waiting and len(self._running) < CAPACITY:
            exchange = self._waiting.pop(0)
            request = exchange.request
            if block := _BLOCK.get(self._kind):
                known = min(self._known.get(request.number, 0), request.prompt - 1)
                exchange.report.cached = known // block * block
            self._known[request.number] = request.prompt
            self._report.start(self._now, exchange.report)
            self._running.append(exchange)

    def iterate(self) -> None:
        """One iteration of the scheduler: a part of a prompt, or a token of each running request."""
        self._now += _ITERATION_S
        filling = next((one for one in self._running if one.report.prefilled < one.request.prompt), None)
        if filling is not None:
            tokens = min(_CHUNK, filling.request.prompt - filling.report.prefilled)
            self._report.prefill(self._now, filling.report, tokens)
        decoding = [one for one in self._running if one.report.prefilled >= one.request.prompt]
        if decoding:
            indexes = {self._running.index(one): 1 for one in decoding}
            self._report.decode(self._now, indexes, 1)
        for one in [one for one in decoding if one.report.generated >= one.request.output]:
            self._end(one, Outcome.FINISHED)
        self._start()
        self._report.tick(self._now)

    def leave(self, exchange: ModelExchange) -> None:
        """The client of a request disconnected. Triton runs the request to its end."""
        if self._kind == "triton":
            exchange.close()
        elif not exchange.ended:
            self._end(exchange, Outcome.ABORTED)

    def _end(self, exchange: ModelExchange, outcome: Outcome) -> None:
        self._report.end(self._now, exchange.report, outcome)
        (self._running if exchange in self._running else self._waiting).remove(exchange)
        exchange.close()

    def page(self) -> str:
        return self._report.page(self._now)

    def until_idle(self) -> None:
        while self._running or self._waiting:
            self.iterate()
        self._now += max(series.lag.total_seconds() for series in self.contract.series) + 1

    def until_waiting(self, count: int) -> None:
        for _ in range(45):  # SGLang writes its gauges each 40 iterations
            self.iterate()

    def probe(self, name: str) -> str:
        return _ALIVE_IN_DRAIN[self._kind] if name == "alive" and self._draining else "200"

    def key_facts(self) -> dict[str, str]:
        return {} if self.contract.launch is None else {"without the key": "401", "key on a command line": "no"}

    def version_text(self) -> str:
        return str(self.version)

    def terminate(self) -> None:
        self._draining = True

    def exit_code(self) -> int | None:
        return 0
