"""SGLang: request counters change at a request's end, gauges at each prefill batch and each 40 decode iterations,
live tokens at each iteration. An idle scheduler writes its gauges at once since 0.5.16, before within 30 s of its
last report (srt/observability/metrics_collector.py and srt/managers of 0.5.10 to 0.5.23).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.engine.reports.base import EngineReport, Outcome, ReportedRequest, sample
from serving.engines.contract import Version
from serving.exposition import Sample

_DECODE_LOG_INTERVAL: Final = 40
_IDLE_REPORT_S: Final = 30.0


@dataclass(slots=True)
class SglangReport(EngineReport):
    shown: tuple[int, int] | None = None
    """Running and queued requests of the last report; None: the scheduler has reported nothing yet."""
    reported_at: float = 0.0
    iterations: int = 0
    live: int = 0
    live_prefill: int = 0
    live_cached: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    finished: int = 0
    aborted: int = 0

    def _report(self, now: float) -> None:
        self.shown = (len(self.running), len(self.waiting))
        self.reported_at = now

    def prefill(self, now: float, request: ReportedRequest, tokens: int) -> None:
        first = request.prefilled == 0
        EngineReport.prefill(self, now, request, tokens)
        hit = min(request.cached, tokens) if first else 0
        self.live_cached += hit
        self.live_prefill += tokens - hit
        self._report(now)

    def decode(self, now: float, tokens: Mapping[int, int], iterations: int) -> None:
        EngineReport.decode(self, now, tokens, iterations)
        self.iterations += iterations
        self.live += sum(tokens.values())
        if self.iterations >= _DECODE_LOG_INTERVAL:
            self.iterations %= _DECODE_LOG_INTERVAL
            self._report(now)

    def end(self, now: float, request: ReportedRequest, outcome: Outcome) -> None:
        EngineReport.end(self, now, request, outcome)
        # an aborted request is counted, too
        self.finished += 1
        self.aborted += outcome is Outcome.ABORTED
        self.prompt += request.prompt
        self.cached += request.cached
        self.generated += request.generated

    def tick(self, now: float) -> None:
        wait = 0.0 if self.version >= Version(0, 5, 16) and self.shown != (0, 0) else _IDLE_REPORT_S
        if not self.running and not self.waiting and now - self.reported_at >= wait:
            self._report(now)

    def samples(self, now: float) -> Iterable[Sample]:
        request = {"engine_type": "unified", "model_name": self.model}
        scheduler = {**request, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        if self.shown is not None:
            running, queued = self.shown
            yield sample("sglang:num_running_reqs", running, **scheduler)
            yield sample("sglang:num_queue_reqs", queued, **scheduler)
            yield sample("sglang:token_usage", min(1.0, 0.01 * running), **scheduler)
            yield sample("sglang:realtime_tokens_total", self.live_prefill, mode="prefill_compute", **scheduler)
            yield sample("sglang:realtime_tokens_total", self.live_cached, mode="prefill_cache", **scheduler)
            yield sample("sglang:realtime_tokens_total", self.live, mode="decode", **scheduler)
        if self.finished:
            done = {**request, "is_streaming": "true"} if self.version >= Version(0, 5, 17) else request
            yield sample("sglang:prompt_tokens_total", self.prompt, **done)
            yield sample("sglang:generation_tokens_total", self.generated, **done)
            yield sample("sglang:num_requests_total", self.finished, **done)
            source = {"cache_source": "device"} if self.version >= Version(0, 5, 9) else {}
            yield sample("sglang:cached_tokens_total", self.cached, **source, **request)
        if self.aborted:
            yield sample("sglang:num_aborted_requests_total", self.aborted, **request)
        opened = len(self.running) + len(self.waiting)
        yield sample("sglang:http_requests_active", opened, endpoint="/v1/chat/completions", method="POST")
        yield sample("sglang:http_requests_active", 1, endpoint="/metrics", method="GET")
