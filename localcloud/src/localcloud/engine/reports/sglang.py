"""SGLang: request counters change at a request's end, gauges at each prefill batch and each 40 decode iterations,
live tokens at each iteration. A prefill batch is not in the gauge of running requests that it writes. An idle
scheduler writes its gauges within 30 s of its last report; since 0.5.16 at once if requests were shown as running
(srt/observability/metrics_collector.py and srt/managers of 0.5.10 to 0.5.23, and ten runs of a running 0.5.23).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.engine.reports.base import EngineReport, Outcome, ReportedRequest, sample
from serving.exposition import Sample
from serving.releases import Version

_DECODE_LOG_INTERVAL: Final = 40
_IDLE_REPORT_S: Final = 30.0
_KV_TOKENS: Final = 16384
"""Capacity of the KV cache."""


@dataclass(slots=True)
class SglangReport(EngineReport):
    version: Version = Version(0, 5, 23)
    shown: tuple[int, int] | None = None
    """Running and queued requests of the last report; None: the scheduler has reported nothing yet."""
    usage: float = 0.0
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

    def _report(self, now: float, prefilling: ReportedRequest | None = None) -> None:
        decoding = [one for one in self.running if one is not prefilling and one.prefilled >= one.prompt]
        self.shown = (len(decoding), len(self.waiting))
        used = sum(one.prefilled + one.generated for one in self.running)
        self.usage = min(1.0, round(used / _KV_TOKENS, 2))
        self.reported_at = now

    def prefill(self, now: float, request: ReportedRequest, tokens: int) -> None:
        first = request.prefilled == 0
        EngineReport.prefill(self, now, request, tokens)
        hit = min(request.cached, tokens) if first else 0
        self.live_cached += hit
        self.live_prefill += tokens - hit
        self._report(now, request)

    def decode(self, now: float, tokens: Mapping[int, int], iterations: int) -> None:
        # the prefill makes the first token of a request
        first = sum(self.running[index].generated == 0 for index in tokens)
        EngineReport.decode(self, now, tokens, iterations)
        self.iterations += iterations
        self.live += sum(tokens.values()) - first
        if self.iterations >= _DECODE_LOG_INTERVAL:
            self.iterations %= _DECODE_LOG_INTERVAL
            self._report(now)

    def end(self, now: float, request: ReportedRequest, outcome: Outcome) -> None:
        waited = request in self.waiting
        EngineReport.end(self, now, request, outcome)
        self.aborted += outcome is Outcome.ABORTED
        if waited:
            return
        # an aborted request is counted, too
        self.finished += 1
        self.prompt += request.prompt
        self.cached += request.cached
        self.generated += request.generated

    def tick(self, now: float) -> None:
        stale = self.shown is None or self.shown[0] != 0
        wait = 0.0 if self.version >= Version(0, 5, 16) and stale else _IDLE_REPORT_S
        if not self.running and not self.waiting and now - self.reported_at >= wait:
            self._report(now)

    def samples(self, now: float) -> Iterable[Sample]:
        request = {"engine_type": "unified", "model_name": self.model}
        scheduler = {**request, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        if self.shown is not None:
            running, queued = self.shown
            yield sample("sglang:num_running_reqs", running, **scheduler)
            yield sample("sglang:num_queue_reqs", queued, **scheduler)
            yield sample("sglang:token_usage", self.usage, **scheduler)
            yield sample("sglang:realtime_tokens_total", self.live_prefill, mode="prefill_compute", **scheduler)
            yield sample("sglang:realtime_tokens_total", self.live_cached, mode="prefill_cache", **scheduler)
            yield sample("sglang:realtime_tokens_total", self.live, mode="decode", **scheduler)
        if self.finished:
            done = {**request, "is_streaming": "true"} if self.version >= Version(0, 5, 17) else request
            yield sample("sglang:prompt_tokens_total", self.prompt, **done)
            yield sample("sglang:generation_tokens_total", self.generated, **done)
            yield sample("sglang:num_requests_total", self.finished, **done)
        if self.cached:
            source = {"cache_source": "device"} if self.version >= Version(0, 5, 9) else {}
            yield sample("sglang:cached_tokens_total", self.cached, **source, **request)
        if self.aborted:
            yield sample("sglang:num_aborted_requests_total", self.aborted, **request)
        opened = len(self.running) + len(self.waiting)
        yield sample("sglang:http_requests_active", opened, endpoint="/v1/chat/completions", method="POST")
        yield sample("sglang:http_requests_active", 1, endpoint="/metrics", method="GET")


REPORT: Final = SglangReport
