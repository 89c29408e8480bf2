"""Load of the pools from a metrics store: two queries for all pools of an environment.

The second query reads recorded series (hosts/monitoring/rules.py) over a day; without them its values are unknown.
"""

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Final

from gpufleet.domain.policies import ScalePolicy
from serving import metrics, recorded
from serving.engines.reading import EVIDENCE, NO_EVIDENCE
from watchdogs.ports import Metrics
from watchdogs.scale.view import Demand, Pressure

HELD: Final = "gpufleet_held_requests"
RATE_WINDOW: Final = timedelta(minutes=2)
RECORDED_SPAN: Final = timedelta(minutes=6)
"""Window of recorded percentiles, unless the monitoring settings differ, plus a step of one minute."""
QUANTILE: Final = 0.95
SLOW_QUANTILE: Final = 0.25
"""Quantile over the minutes of a day in which an objective was missed. docs/watchdog-defaults.md compares others."""
_STAT: Final = "stat"
_INSTANCE: Final = "instance_id"
_ENGINE: Final = "engine"
"""Stat of the instances whose engines report their running requests and their queue."""
_IN_FLIGHT: Final = "in_flight"
"""Stat of these instances and of those whose gate counts the requests: how many of them wait is unknown."""
_COUNTING: Final = "counting"
"""Stat of the instances in flight whose engines also report token counters."""

_EACH: Final = f"pool, {_INSTANCE}, instance, engine, model_name"
"""Labels that distinguish the engines of a pool. Engines of an instance without the last two count as one."""

Stats = Mapping[str, Mapping[str, float]]
"""By pool, by stat."""
Row = tuple[Mapping[str, str], float]


def read(store: Metrics, environment: str, policies: Mapping[str, ScalePolicy], now: datetime) -> "Readings":
    """Everything about the pools, over the longest `down_after` of them. Raises OSError."""
    down_after = max((policy.down_after for policy in policies.values()), default=timedelta(0))
    if not policies:
        return Readings(present={}, past={}, policies=policies, engines={})
    present = store.query(present_query(environment, down_after), now)
    return Readings(
        present=_stats(present),
        past=_stats(store.query(past_query(environment, policies), now)),
        policies=policies,
        engines=_engines(present, policies),
    )


class Readings:
    """Answers of the metrics store, as inputs of `decide`."""

    def __init__(
        self,
        *,
        present: Stats,
        past: Stats,
        policies: Mapping[str, ScalePolicy],
        engines: Mapping[str, AbstractSet[str]],
    ) -> None:
        self._present = present
        self._past = past
        self._policies = policies
        self._engines = engines

    def without_metrics(self, pool: str, ready: AbstractSet[str]) -> int:
        """How many of the ready instances have no metrics; 0 if the metrics have no instance label."""
        return len(ready - self._engines[pool]) if pool in self._engines else 0

    def held_requests(self, pool: str) -> float:
        """Requests that the activator of the router holds. It reports a pool only while it holds some."""
        return self._present.get(pool, {}).get("held", 0.0)

    def held_requests_peak(self, pool: str) -> float:
        """Maximum number of requests held at once over `down_after`."""
        return self._present.get(pool, {}).get("held_peak", 0.0)

    def pressure(self, pool: str) -> Pressure | None:
        """Load of the engines; None: no engine of the pool reports all required metrics."""
        seen = self._present.get(pool, {})
        stated = _states_capacity(self._policies[pool])
        reporting = "reporting_in_flight" if stated else "reporting"
        # a policy that states what a replica carries needs no queue: the requests at a gate include those that wait
        needed = (reporting, "running_peak", *(() if stated else ("waiting", "waiting_peak")))
        if any(name not in seen for name in needed):
            return None
        return Pressure(
            reporting=int(seen[reporting]),
            # a subquery may count the steps at both of its ends
            coverage=None if (coverage := seen.get("coverage")) is None else min(1.0, coverage),
            waiting=seen.get("waiting", 0.0),
            running_peak=seen["running_peak"],
            waiting_peak=seen.get("waiting_peak", 0.0),
            kv_cache=seen.get("kv_cache"),
            kv_cache_peak=seen.get("kv_cache_peak"),
            first_token_s=seen.get("first_token"),
            first_token_peak_s=seen.get("first_token_peak"),
            inter_token_s=seen.get("inter_token"),
            inter_token_peak_s=seen.get("inter_token_peak"),
            tokens_peak=seen.get("tokens_peak"),
            full=self._past.get(pool, {}).get("full"),
            slow=self._past.get(pool, {}).get("slow"),
        )

    def demand(self, pool: str) -> Demand | None:
        """Work in replicas, by the capacity that the policy states for one; None: not stated or not reported."""
        policy = self._policies[pool]
        if policy.requests_per_replica is not None:
            return self._demand(pool, "requests", policy.requests_per_replica)
        if policy.tokens_per_second_per_replica is not None:
            return self._demand(pool, "tokens", policy.tokens_per_second_per_replica)
        return None

    def _demand(self, pool: str, unit: str, per_replica: float) -> Demand | None:
        present = self._present.get(pool, {})
        at_once, peak = present.get(unit), present.get(f"{unit}_peak")
        if at_once is None or peak is None:
            return None
        return Demand(now=at_once / per_replica, peak=max(peak, at_once) / per_replica)


def present_query(environment: str, down_after: timedelta) -> str:
    """Now and over `down_after`, in one expression."""
    here = f'{{job="engine",environment="{environment}"}}'
    # gauges that prove nothing by the engine's contract carry this label
    proving = f'{{job="engine",environment="{environment}",{EVIDENCE}!="{NO_EVIDENCE}"}}'
    whole, step = f"{_seconds(down_after)}s", f"{_step(down_after)}s"
    gauge, queue = (f"{name}{proving}" for name in (metrics.REQUESTS_RUNNING, metrics.REQUESTS_WAITING))
    gate = recorded.at_gate(f'environment="{environment}"')
    running = f"sum by (pool) ({gauge} or {gate})"
    waiting = f"sum by (pool) ({queue})"
    # engines have different labels on their gauges, and some report a queue in parts
    loads = [f"sum by ({_EACH}) ({name})" for name in (gauge, queue)]
    both = f"sum by (pool) ({' + '.join(loads)} or {gate})"
    # such a gauge of the KV cache may keep its last value: without a request at the gate, no block is in use
    used = f"{metrics.KV_CACHE_USAGE}{here}"
    at_work = f"clamp_max(max by ({_INSTANCE}) ({gate}), 1)"
    kept = f"{used} * on ({_INSTANCE}) group_left () {at_work}"
    kv_cache = f"avg by (pool) ({kept} or {used} unless on ({_INSTANCE}) {gate})"
    short = f"{_seconds(min(RATE_WINDOW, down_after))}s"
    tokens = _rates(here, short)
    # two routers hold different requests
    router = f'{HELD}{{job="{metrics.ROUTER_JOB}",environment='
    held = f'sum by (pool) ({router}"{environment}"}} or {router}""}})'
    # an instance with an engine that does not report its queue is not read: its load would be underestimated
    engines = " == ".join(f"count by (pool, {_INSTANCE}) ({series})" for series in (" + ".join(loads), *loads))
    in_flight = f"({engines} or count by (pool, {_INSTANCE}) ({gate}))"
    counters = (
        f"sum by ({_EACH}) (rate({name}{here}[{short}]))"
        for name in (metrics.GENERATION_TOKENS, metrics.PROMPT_TOKENS)
    )
    counting = " == ".join((in_flight, *(f"count by (pool, {_INSTANCE}) ({series})" for series in counters)))
    steps = _seconds(down_after) / _step(down_after)
    return _union(
        {
            _ENGINE: engines,
            _IN_FLIGHT: in_flight,
            _COUNTING: counting,
            "reporting": f"count by (pool) ({engines})",
            "reporting_in_flight": f"count by (pool) ({in_flight})",
            "coverage": f"count_over_time(({running})[{whole}:{step}]) / {steps:g}",
            "waiting": waiting,
            "running_peak": f"max_over_time(({running})[{whole}:{step}])",
            "waiting_peak": f"max_over_time(({waiting})[{whole}:{step}])",
            "kv_cache": kv_cache,
            "kv_cache_peak": f"max_over_time(({kv_cache})[{whole}:{step}])",
            "first_token": _quantile(metrics.TIME_TO_FIRST_TOKEN.name, here, short),
            "first_token_peak": _quantile(metrics.TIME_TO_FIRST_TOKEN.name, here, whole),
            "inter_token": _quantile(metrics.INTER_TOKEN_LATENCY.name, here, short),
            "inter_token_peak": _quantile(metrics.INTER_TOKEN_LATENCY.name, here, whole),
            "requests": f"max_over_time(({both})[{short}:{step}])",
            "requests_peak": f"max_over_time(({both})[{whole}:{step}])",
            "tokens": tokens,
            "tokens_peak": f"max_over_time(({tokens})[{whole}:{step}])",
            "held": held,
            "held_peak": f"max_over_time(({held})[{whole}:{step}])",
        }
    )


def past_query(environment: str, policies: Mapping[str, ScalePolicy]) -> str:
    """Requests per replica of the last day when queues were too long, and when latency was, from recorded series.

    Pools with the same queue limit share a part of the expression, and so do pools with the same objectives: its
    length does not grow with the number of pools.
    """
    queues = dict[float, list[str]]()
    objectives = dict[tuple[float | None, float | None], list[str]]()
    for pool, policy in sorted(policies.items()):
        queues.setdefault(policy.waiting_per_replica_above, []).append(pool)
        if policy.first_token_s is not None or policy.inter_token_s is not None:
            objectives.setdefault((policy.first_token_s, policy.inter_token_s), []).append(pool)
    return " or ".join(
        (
            *(_full(environment, names, bound) for bound, names in sorted(queues.items())),
            *(_slow(environment, names, *both) for both, names in objectives.items()),
        )
    )


def _full(environment: str, pools: Sequence[str], bound: float) -> str:
    """Median of running requests per replica over the minutes with too long a queue."""
    running, waiting, engines = (
        _by_pool(environment, pools, name)
        for name in (recorded.POOL_RUNNING, recorded.POOL_WAITING, recorded.POOL_ENGINES)
    )
    queued = f"{running} / {engines} and {waiting} > {bound:g} * {engines}"
    return _union({"full": f"quantile_over_time(0.5, ({queued})[1d:1m])"})


def _slow(environment: str, pools: Sequence[str], first_token_s: float | None, inter_token_s: float | None) -> str:
    """Lower quartile of running requests per replica over the minutes in which latency missed its objective.

    In most of these minutes the pool had grown already, or waited for new replicas. A recorded percentile lags behind
    its load by up to `RECORDED_SPAN`: so the highest load of that span counts.
    """
    running, engines = (_by_pool(environment, pools, name) for name in (recorded.POOL_RUNNING, recorded.POOL_ENGINES))
    missed = " or ".join(
        f"{_by_pool(environment, pools, name)} > {objective:g}"
        for name, objective in ((recorded.POOL_TTFT_P95, first_token_s), (recorded.POOL_ITL_P95, inter_token_s))
        if objective is not None
    )
    ran = f"max_over_time(({running} / {engines})[{_seconds(RECORDED_SPAN)}s:1m])"
    return _union({"slow": f"quantile_over_time({SLOW_QUANTILE}, ({ran} and ({missed}))[1d:1m])"})


def _by_pool(environment: str, pools: Sequence[str], name: str) -> str:
    return f"sum by (pool) ({name}{_of(environment, pools)})"


def _of(environment: str, pools: Sequence[str]) -> str:
    return f'{{environment="{environment}",pool=~"{"|".join(pools)}"}}'


def _rates(here: str, window: str) -> str:
    made = f"sum by (pool) (rate({metrics.GENERATION_TOKENS}{here}[{window}]))"
    taken = f"sum by (pool) (rate({metrics.PROMPT_TOKENS}{here}[{window}]))"
    return f"({made} + {taken})"


def _quantile(name: str, here: str, window: str) -> str:
    return f"histogram_quantile({QUANTILE}, sum by (pool, le) (rate({name}_bucket{here}[{window}])))"


def _union(parts: Mapping[str, str]) -> str:
    return " or ".join(f'label_replace({part}, "{_STAT}", "{name}", "", "")' for name, part in parts.items())


def _stats(rows: Sequence[Row]) -> Stats:
    found: dict[str, dict[str, float]] = {}
    for labels, value in rows:
        # a quantile of no requests is NaN: not reported
        if "pool" in labels and _INSTANCE not in labels and math.isfinite(value):
            found.setdefault(labels["pool"], {})[labels[_STAT]] = value
    return found


def _engines(rows: Sequence[Row], policies: Mapping[str, ScalePolicy]) -> Mapping[str, AbstractSet[str]]:
    """By pool: the instances that report all metrics by which its policy measures load."""
    needed = {pool: _needed(policy) for pool, policy in policies.items()}
    found: dict[str, set[str]] = {}
    for labels, _ in rows:
        if "pool" in labels and labels.get(_INSTANCE):
            pool = labels["pool"]
            read = found.setdefault(pool, set())
            if labels[_STAT] == needed.get(pool, _ENGINE):
                read.add(labels[_INSTANCE])
    return found


def _needed(policy: ScalePolicy) -> str:
    """The stat of the instances whose load is measured as the policy states it."""
    if policy.requests_per_replica is not None:
        return _IN_FLIGHT
    return _ENGINE if policy.tokens_per_second_per_replica is None else _COUNTING


def _states_capacity(policy: ScalePolicy) -> bool:
    return _needed(policy) != _ENGINE


def _seconds(span: timedelta) -> int:
    return max(1, int(span.total_seconds()))


def _step(span: timedelta) -> int:
    """Step of a subquery in seconds: a hundredth of the span, between 1 s and 30 s."""
    return max(1, min(30, _seconds(span) // 100))
