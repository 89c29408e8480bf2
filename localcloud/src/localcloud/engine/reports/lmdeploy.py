"""LMDeploy: tokens at each iteration, gauges each 10 s (lmdeploy/metrics/loggers.py of 0.16.0)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.engine.reports.base import EngineReport, Outcome, ReportedRequest, sample
from serving.exposition import Sample
from serving.releases import Version

_LOG_INTERVAL_S: Final = 10.0


@dataclass(slots=True)
class LmdeployReport(EngineReport):
    version: Version = Version(0, 16)
    shown: tuple[int, int] = (0, 0)
    logged_at: float = 0.0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    finished: int = 0
    failed: int = 0

    def prefill(self, now: float, request: ReportedRequest, tokens: int) -> None:
        EngineReport.prefill(self, now, request, tokens)
        if request.prefilled >= request.prompt:
            self.prompt += request.prompt

    def decode(self, now: float, tokens: Mapping[int, int], iterations: int) -> None:
        EngineReport.decode(self, now, tokens, iterations)
        self.generated += sum(tokens.values())

    def end(self, now: float, request: ReportedRequest, outcome: Outcome) -> None:
        EngineReport.end(self, now, request, outcome)
        if outcome is Outcome.FINISHED:
            self.finished += 1
            self.cached += request.cached
        self.failed += outcome is Outcome.ABORTED

    def tick(self, now: float) -> None:
        if now - self.logged_at >= _LOG_INTERVAL_S:
            self.shown, self.logged_at = (len(self.running), len(self.waiting)), now

    def samples(self, now: float) -> Iterable[Sample]:
        labels = {"model_name": self.model, "engine": "0"}
        running, waiting = self.shown
        yield sample("lmdeploy:num_requests_running", running, **labels)
        yield sample("lmdeploy:num_requests_waiting", waiting, **labels)
        yield sample("lmdeploy:num_api_requests_waiting", 0, **labels)
        yield sample("lmdeploy:gpu_cache_usage_perc", min(1.0, 0.01 * running), **labels)
        yield sample("lmdeploy:prompt_tokens_total", self.prompt, **labels)
        yield sample("lmdeploy:cached_tokens_total", self.cached, **labels)
        yield sample("lmdeploy:generation_tokens_total", self.generated, **labels)
        yield sample("lmdeploy:request_success_total", self.finished, finished_reason="stop", **labels)
        yield sample("lmdeploy:num_requests_failed", self.failed, **labels)


REPORT: Final = LmdeployReport
