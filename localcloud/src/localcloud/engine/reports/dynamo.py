"""Dynamo's frontend: a request is in flight from its arrival to its last token, and queued until its first token;
output tokens are counted live, input tokens with the first token (lib/llm/src/http/service/metrics.rs).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.engine.reports.base import EngineReport, Outcome, ReportedRequest, sample
from serving.exposition import Sample
from serving.releases import Version


@dataclass(slots=True)
class DynamoReport(EngineReport):
    version: Version = Version(1, 6, 1)
    input: int = 0
    cached: int = 0
    output: int = 0
    finished: int = 0
    failed: int = 0

    def prefill(self, now: float, request: ReportedRequest, tokens: int) -> None:
        EngineReport.prefill(self, now, request, tokens)
        if request.prefilled >= request.prompt:
            self.input += request.prompt
            self.cached += request.cached

    def decode(self, now: float, tokens: Mapping[int, int], iterations: int) -> None:
        EngineReport.decode(self, now, tokens, iterations)
        self.output += sum(tokens.values())

    def end(self, now: float, request: ReportedRequest, outcome: Outcome) -> None:
        EngineReport.end(self, now, request, outcome)
        self.finished += outcome is Outcome.FINISHED
        self.failed += outcome is Outcome.ABORTED

    def samples(self, now: float) -> Iterable[Sample]:
        labels = {"model": self.model.lower()}
        first = sum(request.generated == 0 for request in self.running) + len(self.waiting)
        opened = len(self.running) + len(self.waiting)
        yield sample("dynamo_frontend_inflight_requests", opened, **labels)
        if self.version >= Version(1, 3):
            yield sample("dynamo_frontend_active_requests", opened, **labels)
        yield sample("dynamo_frontend_queued_requests", first, **labels)
        yield sample("dynamo_frontend_input_sequence_tokens_sum", self.input, **labels)
        yield sample("dynamo_frontend_cached_tokens_sum", self.cached, **labels)
        yield sample("dynamo_frontend_output_tokens_total", self.output, **labels)
        done = {"endpoint": "chat_completions", "request_type": "stream", **labels}
        yield sample("dynamo_frontend_requests_total", self.finished, status="success", **done)
        yield sample("dynamo_frontend_requests_total", self.failed, status="error", **done)


REPORT: Final = DynamoReport
