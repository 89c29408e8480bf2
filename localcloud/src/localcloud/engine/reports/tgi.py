"""TGI: gauges of batch and queue at each iteration; input is counted when a request is validated, output when it
succeeds (router of huggingface/text-generation-inference).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from localcloud.engine.reports.base import EngineReport, Outcome, ReportedRequest, sample
from serving.exposition import Sample
from serving.releases import Version


@dataclass(slots=True)
class TgiReport(EngineReport):
    version: Version = Version(3, 3)
    received: int = 0
    input: int = 0
    output: int = 0
    succeeded: int = 0

    def accept(self, now: float, request: ReportedRequest) -> None:
        EngineReport.accept(self, now, request)
        self.received += 1
        self.input += request.prompt

    def end(self, now: float, request: ReportedRequest, outcome: Outcome) -> None:
        EngineReport.end(self, now, request, outcome)
        if outcome is Outcome.FINISHED:
            self.succeeded += 1
            self.output += request.generated

    def samples(self, now: float) -> Iterable[Sample]:
        yield sample("tgi_batch_current_size", len(self.running))
        yield sample("tgi_queue_size", len(self.waiting))
        if self.received:
            yield sample("tgi_request_count", self.received)
            yield sample("tgi_request_input_length_sum", self.input)
        if self.succeeded:
            yield sample("tgi_request_success", self.succeeded)
            yield sample("tgi_request_generated_tokens_sum", self.output)


REPORT: Final = TgiReport
