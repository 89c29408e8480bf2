"""Data that a smaller target needs and that is missing. Pure. Missing data is not zero: it keeps the target."""

from typing import Final

from gpufleet.domain.durations import approximate
from watchdogs.scale.view import Pressure, ScalePoolView

MIN_COVERAGE: Final = 0.9
"""Share of `down_after` that the metrics store must have samples of, or the peak of the window is unknown."""


def missing(view: ScalePoolView) -> str | None:
    """What is unknown of the load of a pool; None: everything that a smaller target needs is known."""
    seen, policy = view.pressure, view.policy
    read = 0 if seen is None else min(seen.reporting, view.ready - view.without_metrics)
    if seen is None or read < view.ready:
        return f"{read} of {view.ready} replicas report all load metrics"
    if seen.coverage is not None and seen.coverage < MIN_COVERAGE:
        return f"the metrics store has {seen.coverage:.0%} of the last {approximate(policy.down_after)}"
    if view.demand is None and policy.requests_per_replica is not None:
        return "requests in flight are not reported"
    if view.demand is None and policy.tokens_per_second_per_replica is not None:
        return "tokens per second are not reported"
    if view.demand is None and seen.kv_cache_peak is None:
        return "the use of the KV cache is not reported, and the policy has no other measure of load"
    return _objective(view, seen)


def _objective(view: ScalePoolView, seen: Pressure) -> str | None:
    if seen.running_peak <= 0:
        return None  # without traffic there is no latency
    for what, peak, objective in (
        ("first", seen.first_token_peak_s, view.policy.first_token_s),
        ("next", seen.inter_token_peak_s, view.policy.inter_token_s),
    ):
        if objective is not None and peak is None:
            return f"seconds to the {what} token are not reported, and have an objective"
    return None
