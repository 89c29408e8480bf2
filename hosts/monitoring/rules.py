"""Recording rules: each signal is defined once, under one name, for alerts, dashboards and console. No I/O."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from gpufleet.domain.durations import render as render_duration
from serving import metrics, recorded
from serving.accelerators import metrics as accelerators
from serving.accelerators.queries import activity, memory
from serving.engines.reading import EVIDENCE, NO_EVIDENCE

BY_INSTANCE: Final = "environment, pool, capacity_type, zone, machine_type, group, instance_id"
BY_POOL: Final = "environment, pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recording rule."""

    name: str
    expression: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """Settings of the recording rules."""

    rate_window: timedelta = timedelta(minutes=5)
    """Window of rates: at least four scrape intervals."""


def recordings(settings: RuleSettings) -> tuple[Recording, ...]:
    """Return all recording rules. A rule follows the rules that it uses."""
    window = render_duration(settings.rate_window)
    return (*_of_instances(window), *_of_pools(window))


def _of_instances(window: str) -> tuple[Recording, ...]:
    used, free, total = (
        memory(metric, BY_INSTANCE)
        for metric in (accelerators.MEMORY_USED, accelerators.MEMORY_FREE, accelerators.MEMORY_TOTAL)
    )
    whole = f"sum by ({BY_INSTANCE}) ({total} or {used} + {free})"
    proving = f'{{{EVIDENCE}!="{NO_EVIDENCE}"}}'
    return (
        Recording(
            name=recorded.GPU_ACTIVE,
            expression=f"avg by ({BY_INSTANCE}) ({activity(BY_INSTANCE)})",
            unit="share",
            meaning="time in which the instance's GPUs or slices computed",
        ),
        Recording(
            name=recorded.GPU_MEMORY,
            # a larger share shows that one of the two numbers is in a wrong unit
            expression=f"sum by ({BY_INSTANCE}) ({used}) / {whole} <= 1",
            unit="share",
            meaning="GPU memory in use",
        ),
        Recording(
            name=recorded.GPU_TEMPERATURE,
            expression=f"max by ({BY_INSTANCE}) ({metrics.GPU_TEMPERATURE} < 200)",
            unit="°C",
            meaning="the instance's hottest GPU",
        ),
        Recording(
            # Without the filter, a change to or from DCGM's value for missing data looks like an increase.
            name=recorded.GPU_ECC_ERRORS,
            expression=f"{metrics.ECC_DOUBLE_BIT} < 1e9",
            unit="errors",
            meaning="a GPU's double-bit ECC errors since its driver was loaded",
        ),
        Recording(
            name=recorded.RUNNING,
            expression=f"sum by ({BY_INSTANCE}) ({metrics.REQUESTS_RUNNING}{proving} or {recorded.at_gate()})",
            unit="requests",
            meaning="in the running batch; open at the gate of an engine whose own number proves nothing",
        ),
        Recording(
            name=recorded.WAITING,
            expression=f"sum by ({BY_INSTANCE}) ({metrics.REQUESTS_WAITING}{proving})",
            unit="requests",
            meaning="queued in the engine; absent where its number proves nothing",
        ),
        Recording(
            name=recorded.KV_CACHE,
            expression=f"max by ({BY_INSTANCE}) ({metrics.KV_CACHE_USAGE})",
            unit="share",
            meaning="used blocks of the KV cache",
        ),
        Recording(
            name=recorded.TOKENS_OUT,
            expression=f"sum by ({BY_INSTANCE}) (rate({metrics.GENERATION_TOKENS}[{window}]))",
            unit="tokens/s",
            meaning="output tokens generated",
        ),
    )


def _of_pools(window: str) -> tuple[Recording, ...]:
    requests = f'gpufleet_router_requests_total{{job="{metrics.ROUTER_JOB}"'
    failed = f'sum by ({BY_POOL}) (rate({requests},status=~"5xx|cut"}}[{window}]))'
    every = f"sum by ({BY_POOL}) (rate({requests}}}[{window}]))"
    return (
        Recording(
            name=recorded.POOL_INSTANCES,
            expression=f'count by ({BY_POOL}, capacity_type) (up{{job="node"}} == 1)',
            unit="instances",
            meaning="instances whose agent responds",
        ),
        Recording(
            name=recorded.POOL_GPU_ACTIVE,
            expression=f"avg by ({BY_POOL}) ({recorded.GPU_ACTIVE})",
            unit="share",
            meaning="time in which the pool's GPUs computed",
        ),
        Recording(
            name=recorded.POOL_RUNNING,
            expression=f"sum by ({BY_POOL}) ({recorded.RUNNING})",
            unit="requests",
            meaning="running now",
        ),
        Recording(
            name=recorded.POOL_WAITING,
            expression=f"sum by ({BY_POOL}) ({recorded.WAITING})",
            unit="requests",
            meaning="queued now",
        ),
        Recording(
            name=recorded.POOL_ENGINES,
            expression=f"count by ({BY_POOL}) ({recorded.RUNNING})",
            unit="instances",
            meaning="instances whose engine responds",
        ),
        Recording(
            name=recorded.POOL_TOKENS_OUT,
            expression=f"sum by ({BY_POOL}) ({recorded.TOKENS_OUT})",
            unit="tokens/s",
            meaning="output tokens generated",
        ),
        Recording(
            name=recorded.POOL_TOKENS_IN,
            expression=f"sum by ({BY_POOL}) (rate({metrics.PROMPT_TOKENS}[{window}]))",
            unit="tokens/s",
            meaning="input tokens processed",
        ),
        Recording(
            name=recorded.POOL_P99,
            expression=_quantile(0.99, metrics.E2E_LATENCY.name, window),
            unit="s",
            meaning="99th percentile of arrival to last token, in the engine",
        ),
        Recording(
            name=recorded.POOL_TTFT_P95,
            expression=_quantile(0.95, metrics.TIME_TO_FIRST_TOKEN.name, window),
            unit="s",
            meaning="95th percentile of arrival to first token, in the engine",
        ),
        Recording(
            name=recorded.POOL_ITL_P95,
            expression=_quantile(0.95, metrics.INTER_TOKEN_LATENCY.name, window),
            unit="s",
            meaning="95th percentile of one token to the next, in the engine",
        ),
        Recording(
            name=recorded.POOL_REQUESTS,
            expression=every,
            unit="requests/s",
            meaning="requests that the router answered",
        ),
        Recording(
            name=recorded.POOL_ERRORS,
            # No failed series means a share of 0 if there are requests; without requests there is no share.
            expression=f"({failed} or {every} * 0) / ({every} > 0)",
            unit="share",
            meaning="requests that failed with 5xx or were interrupted",
        ),
    )


def _quantile(share: float, name: str, window: str) -> str:
    return f"histogram_quantile({share}, sum by ({BY_POOL}, le) (rate({name}_bucket[{window}])))"


def recording_group(settings: RuleSettings) -> dict[str, Any]:
    """Return the rule group in the format of Prometheus' rule file."""
    rules = [{"record": rule.name, "expr": rule.expression} for rule in recordings(settings)]
    return {"name": "gpufleet-signals", "rules": rules}
