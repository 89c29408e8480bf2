"""The router's own metrics, as Prometheus reads them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from serving.router.meter import BOUNDS_MS, Histogram, Meter

HELD: Final = "gpufleet_held_requests"
REQUESTS: Final = "gpufleet_router_requests_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is true now, beside the counters."""

    held: Mapping[str, int]
    """Pool to requests that wait for its first replica."""
    ready: Mapping[str, int]
    """Pool to replicas that get requests."""
    known: Mapping[str, int]
    resting: Mapping[str, int]
    problems: Mapping[str, bool] = field(default_factory=dict[str, bool])
    reloads: int = 0
    certificate_ends: float | None = None


def metrics(meter: Meter, moment: Moment) -> str:
    """The whole page."""
    lines: list[str] = []
    _family(lines, HELD, "gauge", "Requests that wait for a pool's first replica.", _by_pool(moment.held))
    _family(lines, "gpufleet_router_ready_replicas", "gauge", "Replicas that get requests.", _by_pool(moment.ready))
    _family(lines, "gpufleet_router_replicas", "gauge", "Replicas that are known.", _by_pool(moment.known))
    _family(
        lines, "gpufleet_router_resting_replicas", "gauge", "Replicas that rest for errors.", _by_pool(moment.resting)
    )
    problems = [({"what": what}, int(is_so)) for what, is_so in moment.problems.items()]
    _family(
        lines, "gpufleet_router_problem", "gauge", "1: this is wrong now and the last good one is used.", problems
    )
    _family(lines, "gpufleet_router_reloads_total", "counter", "Reloads of HAProxy.", [({}, moment.reloads)])
    if moment.certificate_ends is not None:
        name = "gpufleet_router_certificate_end_timestamp_seconds"
        _family(lines, name, "gauge", "When the certificate ends.", [({}, moment.certificate_ends)])
    _traffic(lines, meter)
    return "\n".join(lines) + "\n"


def _traffic(lines: list[str], meter: Meter) -> None:
    by_status = [({"pool": pool, "status": status}, n) for (pool, status), n in meter.by_status.items()]
    _family(lines, REQUESTS, "counter", "Requests answered, by pool and status.", by_status)
    by_reason = [({"pool": pool, "reason": why}, n) for (pool, why), n in meter.by_reason.items()]
    _family(lines, "gpufleet_router_decisions_total", "counter", "Why a pool was chosen.", by_reason)
    labels = [({"key": key, "model": model, "pool": pool}, use) for (key, model, pool), use in meter.use.items()]
    for name, text, values in (
        ("requests", "Requests of a key.", [(label, use.requests) for label, use in labels]),
        ("failed", "Requests of a key that failed.", [(label, use.failed) for label, use in labels]),
        ("replica_seconds", "Time on replicas.", [(label, use.replica_ms / 1000) for label, use in labels]),
        ("input_tokens", "Input tokens that answers reported.", [(label, use.tokens_in) for label, use in labels]),
        ("output_tokens", "Output tokens that answers reported.", [(label, use.tokens_out) for label, use in labels]),
        ("unmetered", "Answers that reported no tokens.", [(label, use.unmetered) for label, use in labels]),
    ):
        _family(lines, f"gpufleet_router_key_{name}_total", "counter", text, values)
    _histograms(lines, "gpufleet_router_answer_seconds", "Arrival to last byte, of answers 2xx.", meter.all_ms)
    _histograms(lines, "gpufleet_router_first_byte_seconds", "Arrival to first byte, of 2xx.", meter.first_ms)


def _by_pool(values: Mapping[str, int]) -> list[tuple[dict[str, str], float]]:
    return [({"pool": pool}, value) for pool, value in values.items()]


def _family(
    lines: list[str], name: str, kind: str, text: str, values: Iterable[tuple[Mapping[str, str], float]]
) -> None:
    lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_labels(labels)} {value}" for labels, value in values]


def _histograms(lines: list[str], name: str, text: str, histograms: Mapping[str, Histogram]) -> None:
    lines += [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
    for pool, histogram in histograms.items():
        seen = 0
        for bound, count in zip((*(str(ms / 1000) for ms in BOUNDS_MS), "+Inf"), histogram.counts, strict=True):
            seen += count
            lines.append(f"{name}_bucket{_labels({'pool': pool, 'le': bound})} {seen}")
        lines.append(f"{name}_sum{_labels({'pool': pool})} {histogram.total_ms / 1000}")
        lines.append(f"{name}_count{_labels({'pool': pool})} {seen}")


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    escaped = ((k, v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for k, v in labels.items())
    return "{" + ",".join(f'{k}="{v}"' for k, v in escaped) + "}"
