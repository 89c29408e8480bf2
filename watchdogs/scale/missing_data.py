"""What a pool would have to be told before it may shrink. Pure: missing is not zero, so what is not told keeps it."""

from typing import Final

from watchdogs.scale.view import Pressure, ScalePool

LEAST_COVERAGE: Final = 0.9
"""Share of `down_after` that the store must have samples of: who has seen a minute knows no peak of twenty."""


def missing(view: ScalePool) -> str | None:
    """What is not known of a pool's load; None: nothing that a smaller target needs."""
    seen, policy = view.pressure, view.policy
    read = 0 if seen is None else min(seen.reporting, view.ready - view.unread)
    if seen is None or read < view.ready:
        return f"{read} of {view.ready} replicas tell all that load is judged by"
    if seen.coverage is not None and seen.coverage < LEAST_COVERAGE:
        return f"the store has {seen.coverage:.0%} of the last {policy.down_after}"
    if view.demand is None and policy.requests_per_replica is not None:
        return "requests in flight are not reported"
    if view.demand is None and policy.tokens_per_second_per_replica is not None:
        return "tokens per second are not reported"
    if view.demand is None and seen.kv_cache_peak is None:
        return "the use of the KV cache is not reported, and the policy knows no other measure of load"
    return _objective(view, seen)


def _objective(view: ScalePool, seen: Pressure) -> str | None:
    if seen.running_peak <= 0:
        return None  # a pool without traffic has no latency
    for what, peak, objective in (
        ("first", seen.first_token_peak_s, view.policy.first_token_s),
        ("next", seen.inter_token_peak_s, view.policy.inter_token_s),
    ):
        if objective is not None and peak is None:
            return f"seconds to the {what} token are not reported, and have an objective"
    return None
