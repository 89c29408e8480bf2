"""vLLM: gauges and token counters change at each iteration (vllm/v1/metrics/loggers.py). A request whose client
disconnects is not counted as ended (a running 0.32.0).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.engine.reports.base import EngineReport, Outcome, ReportedRequest, sample
from serving.exposition import Sample
from serving.releases import Version


@dataclass(slots=True)
class VllmReport(EngineReport):
    version: Version = Version(0, 32)
    shown: tuple[int, int] = (0, 0)
    """Running and waiting requests at the last iteration."""
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    finished: int = 0

    def _iterated(self) -> None:
        self.shown = (len(self.running), len(self.waiting))

    def prefill(self, now: float, request: ReportedRequest, tokens: int) -> None:
        EngineReport.prefill(self, now, request, tokens)
        if request.prefilled >= request.prompt:
            # the prompt is counted with the first token
            self.prompt += request.prompt
            self.cached += request.cached
        self._iterated()

    def decode(self, now: float, tokens: Mapping[int, int], iterations: int) -> None:
        EngineReport.decode(self, now, tokens, iterations)
        self.generated += sum(tokens.values())
        self._iterated()

    def end(self, now: float, request: ReportedRequest, outcome: Outcome) -> None:
        EngineReport.end(self, now, request, outcome)
        self.finished += outcome is Outcome.FINISHED
        self._iterated()

    def samples(self, now: float) -> Iterable[Sample]:
        labels = {"engine": "0", "model_name": self.model}
        running, waiting = self.shown
        yield sample("vllm:num_requests_running", running, **labels)
        yield sample("vllm:num_requests_waiting", waiting, **labels)
        yield sample("vllm:kv_cache_usage_perc", min(1.0, 0.01 * running), **labels)
        yield sample("vllm:prompt_tokens_total", self.prompt, **labels)
        yield sample("vllm:prompt_tokens_cached_total", self.cached, **labels)
        yield sample("vllm:generation_tokens_total", self.generated, **labels)
        yield sample("vllm:request_success_total", self.finished, finished_reason="stop", **labels)
        yield sample("vllm:request_success_total", 0, finished_reason="abort", **labels)


REPORT: Final = VllmReport
