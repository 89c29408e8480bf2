"""Triton with the TensorRT-LLM backend: inference counters change at a request's end, `pending` counts requests that
no model instance has taken yet (docs/user_guide/metrics.md, and pages of a running 2.51.0). An ensemble reports each
request under the names of its parts, too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.engine.reports.base import EngineReport, Outcome, ReportedRequest, sample
from serving.exposition import Sample
from serving.releases import Version

_PARTS: Final = ("ensemble", "preprocessing", "tensorrt_llm", "postprocessing")


@dataclass(slots=True)
class TritonReport(EngineReport):
    version: Version = Version(2, 51)
    prompt: int = 0
    generated: int = 0
    succeeded: int = 0
    cancelled: int = 0
    shown: tuple[int, int] = (0, 0)
    """Running and waiting requests at the last iteration: without an iteration nothing is written."""

    def prefill(self, now: float, request: ReportedRequest, tokens: int) -> None:
        EngineReport.prefill(self, now, request, tokens)
        self.shown = (len(self.running), len(self.waiting))

    def decode(self, now: float, tokens: Mapping[int, int], iterations: int) -> None:
        EngineReport.decode(self, now, tokens, iterations)
        self.shown = (len(self.running), len(self.waiting))

    def end(self, now: float, request: ReportedRequest, outcome: Outcome) -> None:
        EngineReport.end(self, now, request, outcome)
        if outcome is Outcome.FINISHED:
            self.succeeded += 1
            self.prompt += request.prompt
            self.generated += request.generated
        else:
            self.cancelled += 1

    def samples(self, now: float) -> Iterable[Sample]:
        for part in _PARTS:
            labels = {"model": part, "version": "1"}
            yield sample("nv_inference_request_success", self.succeeded, **labels)
            yield sample("nv_inference_request_failure", self.cancelled, reason="CANCELED", **labels)
            yield sample("nv_inference_exec_count", self.succeeded + self.cancelled, **labels)
            yield sample("nv_inference_pending_request_count", 0, **labels)
        backend = {"model": "tensorrt_llm", "version": "1"}
        running, waiting = self.shown
        yield sample("nv_trt_llm_request_metrics", running + waiting, request_type="active", **backend)
        yield sample("nv_trt_llm_request_metrics", running, request_type="scheduled", **backend)
        yield sample("nv_trt_llm_request_metrics", waiting, request_type="waiting", **backend)
        kv = min(1.0, 0.01 * running)
        yield sample("nv_trt_llm_kv_cache_block_metrics", kv, kv_cache_block_type="fraction", **backend)
        total_in = {"response_metric_type": "total_input_tokens", **backend}
        total_out = {"response_metric_type": "total_output_tokens", **backend}
        yield sample("nv_llm_input_token_len_sum", self.prompt, **total_in)
        yield sample("nv_llm_output_token_len_sum", self.generated, **total_out)
        yield sample("nv_llm_output_token_len_count", self.succeeded, **total_out)


@dataclass(slots=True)
class TritonPythonReport(TritonReport):
    """The Python backend of TensorRT-LLM (`llmapi`) in an ensemble whose responses are streams.

    It returns from `execute` when a request starts, and the server counts the request then. The last model of the
    ensemble executes once for each token. The backend has no metrics of its own (a running 2.51.0).
    """

    started: int = 0
    tokens: int = 0

    def accept(self, now: float, request: ReportedRequest) -> None:
        EngineReport.accept(self, now, request)
        self.started += 1

    def decode(self, now: float, tokens: Mapping[int, int], iterations: int) -> None:
        EngineReport.decode(self, now, tokens, iterations)
        self.tokens += sum(tokens.values())

    def samples(self, now: float) -> Iterable[Sample]:
        for part in _PARTS:
            labels = {"model": part, "version": "1"}
            executed = self.tokens if part == "postprocessing" else self.started
            yield sample("nv_inference_request_success", executed, **labels)
            yield sample("nv_inference_exec_count", executed, **labels)
            yield sample("nv_inference_pending_request_count", 0, **labels)


REPORT: Final = TritonReport
