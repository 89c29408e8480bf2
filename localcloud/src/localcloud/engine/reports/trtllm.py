"""TensorRT-LLM (`trtllm-serve`): counters change at a request's end; gauges come from a loop that sleeps until a
request ends and then reads the statistics of the iterations so far (tensorrt_llm/serve/openai_server.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from localcloud.engine.reports.base import EngineReport, Outcome, ReportedRequest, sample
from serving.exposition import Sample
from serving.releases import Version


@dataclass(slots=True)
class TrtllmReport(EngineReport):
    version: Version = Version(1, 3)
    shown: tuple[int, int] = (0, 0)
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    finished: int = 0

    def end(self, now: float, request: ReportedRequest, outcome: Outcome) -> None:
        # the last iteration before the end still contains the request
        self.shown = (len(self.running), len(self.waiting))
        EngineReport.end(self, now, request, outcome)
        if outcome is Outcome.FINISHED:
            self.finished += 1
            self.prompt += request.prompt
            self.cached += request.cached
            self.generated += request.generated

    def samples(self, now: float) -> Iterable[Sample]:
        labels = {"model_name": "undefined", "engine_type": "undefined"}
        running, waiting = self.shown
        yield sample("trtllm_num_requests_running", running, **labels)
        yield sample("trtllm_num_requests_waiting", waiting, **labels)
        yield sample("trtllm_kv_cache_utilization", min(1.0, 0.01 * running), **labels)
        yield sample("trtllm_prompt_tokens_total", self.prompt, **labels)
        yield sample("trtllm_prompt_cached_tokens_total", self.cached, **labels)
        yield sample("trtllm_generation_tokens_total", self.generated, **labels)
        yield sample("trtllm_request_success_total", self.finished, finished_reason="stop", **labels)


REPORT: Final = TrtllmReport
