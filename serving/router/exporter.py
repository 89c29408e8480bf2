"""The router's own metrics in Prometheus's text format. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from prometheus_client.core import Metric

from gpufleet.metrics_page import Labels, counter, gauge, histogram, page
from serving.router.meter import BOUNDS_MS, LatencyHistogram, Meter

HELD: Final = "gpufleet_held_requests"
REQUESTS: Final = "gpufleet_router_requests_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSnapshot:
    """The current values besides the counters."""

    held: Mapping[str, int]
    """Requests that wait for the first replica, by pool."""
    ready: Mapping[str, int]
    """Replicas that receive requests, by pool."""
    known: Mapping[str, int]
    excluded: Mapping[str, int]
    problems: Mapping[str, bool] = field(default_factory=dict[str, bool])
    reloads: int = 0
    certificate_ends: float | None = None


def metrics(meter: Meter, moment: RouterSnapshot) -> str:
    """Return the whole page."""
    return page((*_now(moment), *_traffic(meter)))


def _now(moment: RouterSnapshot) -> Iterator[Metric]:
    yield gauge(HELD, "Requests that wait for a pool's first replica.", _by_pool(moment.held))
    yield gauge("gpufleet_router_ready_replicas", "Replicas that receive requests.", _by_pool(moment.ready))
    yield gauge("gpufleet_router_replicas", "Replicas that are known.", _by_pool(moment.known))
    yield gauge("gpufleet_router_excluded_replicas", "Replicas excluded after errors.", _by_pool(moment.excluded))
    problems = [({"what": what}, int(is_so)) for what, is_so in moment.problems.items()]
    yield gauge("gpufleet_router_problem", "1: this part of the router has a problem now.", problems)
    yield counter("gpufleet_router_reloads_total", "Reloads of HAProxy.", [({}, moment.reloads)])
    if moment.certificate_ends is not None:
        name = "gpufleet_router_certificate_end_timestamp_seconds"
        yield gauge(name, "When the certificate ends.", [({}, moment.certificate_ends)])


def _traffic(meter: Meter) -> Iterator[Metric]:
    by_status = [({"pool": pool, "status": status}, n) for (pool, status), n in meter.by_status.items()]
    yield counter(REQUESTS, "Requests answered, by pool and status.", by_status)
    by_reason = [({"pool": pool, "reason": why}, n) for (pool, why), n in meter.by_reason.items()]
    yield counter("gpufleet_router_decisions_total", "Why a pool was chosen.", by_reason)
    labels = [({"key": key, "model": model, "pool": pool}, use) for (key, model, pool), use in meter.use.items()]
    for name, meaning, values in (
        ("requests", "Requests of a key.", [(label, use.requests) for label, use in labels]),
        ("failed", "Requests of a key that failed.", [(label, use.failed) for label, use in labels]),
        ("replica_seconds", "Time on replicas.", [(label, use.replica_ms / 1000) for label, use in labels]),
        ("input_tokens", "Input tokens that answers reported.", [(label, use.tokens_in) for label, use in labels]),
        ("output_tokens", "Output tokens that answers reported.", [(label, use.tokens_out) for label, use in labels]),
        ("unmetered", "Answers that reported no tokens.", [(label, use.unmetered) for label, use in labels]),
    ):
        yield counter(f"gpufleet_router_key_{name}_total", meaning, values)
    all_ms, first_ms = _histograms(meter.all_ms), _histograms(meter.first_ms)
    yield histogram("gpufleet_router_answer_seconds", "From arrival to the last byte of 2xx responses.", all_ms)
    yield histogram(
        "gpufleet_router_first_byte_seconds", "From arrival to the first byte of 2xx responses.", first_ms
    )


def _by_pool(values: Mapping[str, int]) -> list[tuple[Labels, float]]:
    return [({"pool": pool}, value) for pool, value in values.items()]


def _histograms(
    histograms: Mapping[str, LatencyHistogram],
) -> Iterator[tuple[Labels, list[tuple[str, float]], float]]:
    bounds = (*(str(ms / 1000) for ms in BOUNDS_MS), "+Inf")
    for pool, one in histograms.items():
        yield {"pool": pool}, [*zip(bounds, accumulate(one.counts), strict=True)], one.total_ms / 1000
