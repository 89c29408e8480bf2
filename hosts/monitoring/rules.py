"""Recording rules: each signal is defined once, under one name, for alerts, dashboards and console. No I/O."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from gpufleet.domain.durations import render as render_duration
from serving import metrics

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


# A share of a GPU is 0 to 1; DCGM's values for missing data are far higher.
GPU_ACTIVE: Final = "gpufleet:gpu_active:instance"
GPU_MEMORY: Final = "gpufleet:gpu_memory_share:instance"
GPU_TEMPERATURE: Final = "gpufleet:gpu_temperature:instance"
GPU_ECC_ERRORS: Final = "gpufleet:ecc_double_bit_errors:gpu"
RUNNING: Final = "gpufleet:requests_running:instance"
WAITING: Final = "gpufleet:requests_waiting:instance"
KV_CACHE: Final = "gpufleet:kv_cache_share:instance"
TOKENS_OUT: Final = "gpufleet:output_tokens_per_second:instance"
POOL_GPU_ACTIVE: Final = "gpufleet:gpu_active:pool"
POOL_RUNNING: Final = "gpufleet:requests_running:pool"
POOL_WAITING: Final = "gpufleet:requests_waiting:pool"
POOL_ENGINES: Final = "gpufleet:engines:pool"
POOL_TOKENS_OUT: Final = "gpufleet:output_tokens_per_second:pool"
POOL_TOKENS_IN: Final = "gpufleet:input_tokens_per_second:pool"
POOL_P99: Final = "gpufleet:answer_seconds_p99:pool"
POOL_TTFT_P95: Final = "gpufleet:first_token_seconds_p95:pool"
POOL_ITL_P95: Final = "gpufleet:inter_token_seconds_p95:pool"
POOL_ERRORS: Final = "gpufleet:error_share:pool"
POOL_REQUESTS: Final = "gpufleet:requests_per_second:pool"
POOL_INSTANCES: Final = "gpufleet:instances:pool"


def recordings(settings: RuleSettings) -> tuple[Recording, ...]:
    """Return all recording rules. A rule follows the rules that it uses."""
    window = render_duration(settings.rate_window)
    return (*_of_instances(window), *_of_pools(window))


def _of_instances(window: str) -> tuple[Recording, ...]:
    memory = " + ".join(f"sum by ({BY_INSTANCE}) ({name} < 1e9)" for name in (metrics.FB_USED, metrics.FB_FREE))
    return (
        Recording(
            name=GPU_ACTIVE,
            expression=f"avg by ({BY_INSTANCE}) ({metrics.GPU_ACTIVE} <= 1)",
            unit="share",
            meaning="time in which the instance's GPUs computed",
        ),
        Recording(
            name=GPU_MEMORY,
            expression=f"sum by ({BY_INSTANCE}) ({metrics.FB_USED} < 1e9) / ({memory})",
            unit="share",
            meaning="GPU memory in use",
        ),
        Recording(
            name=GPU_TEMPERATURE,
            expression=f"max by ({BY_INSTANCE}) ({metrics.GPU_TEMPERATURE} < 200)",
            unit="°C",
            meaning="the instance's hottest GPU",
        ),
        Recording(
            # Without the filter, a change to or from DCGM's value for missing data looks like an increase.
            name=GPU_ECC_ERRORS,
            expression=f"{metrics.ECC_DOUBLE_BIT} < 1e9",
            unit="errors",
            meaning="a GPU's double-bit ECC errors since its driver was loaded",
        ),
        Recording(
            name=RUNNING,
            expression=f"sum by ({BY_INSTANCE}) ({metrics.REQUESTS_RUNNING})",
            unit="requests",
            meaning="in the running batch",
        ),
        Recording(
            name=WAITING,
            expression=f"sum by ({BY_INSTANCE}) ({metrics.REQUESTS_WAITING})",
            unit="requests",
            meaning="queued in the engine",
        ),
        Recording(
            name=KV_CACHE,
            expression=f"max by ({BY_INSTANCE}) ({metrics.KV_CACHE_USAGE})",
            unit="share",
            meaning="used blocks of the KV cache",
        ),
        Recording(
            name=TOKENS_OUT,
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
            name=POOL_INSTANCES,
            expression=f'count by ({BY_POOL}, capacity_type) (up{{job="node"}} == 1)',
            unit="instances",
            meaning="instances whose agent responds",
        ),
        Recording(
            name=POOL_GPU_ACTIVE,
            expression=f"avg by ({BY_POOL}) ({GPU_ACTIVE})",
            unit="share",
            meaning="time in which the pool's GPUs computed",
        ),
        Recording(
            name=POOL_RUNNING, expression=f"sum by ({BY_POOL}) ({RUNNING})", unit="requests", meaning="running now"
        ),
        Recording(
            name=POOL_WAITING, expression=f"sum by ({BY_POOL}) ({WAITING})", unit="requests", meaning="queued now"
        ),
        Recording(
            name=POOL_ENGINES,
            expression=f"count by ({BY_POOL}) ({RUNNING})",
            unit="instances",
            meaning="instances whose engine responds",
        ),
        Recording(
            name=POOL_TOKENS_OUT,
            expression=f"sum by ({BY_POOL}) ({TOKENS_OUT})",
            unit="tokens/s",
            meaning="output tokens generated",
        ),
        Recording(
            name=POOL_TOKENS_IN,
            expression=f"sum by ({BY_POOL}) (rate({metrics.PROMPT_TOKENS}[{window}]))",
            unit="tokens/s",
            meaning="input tokens processed",
        ),
        Recording(
            name=POOL_P99,
            expression=_quantile(0.99, metrics.E2E_LATENCY.name, window),
            unit="s",
            meaning="99th percentile of arrival to last token, in the engine",
        ),
        Recording(
            name=POOL_TTFT_P95,
            expression=_quantile(0.95, metrics.TIME_TO_FIRST_TOKEN.name, window),
            unit="s",
            meaning="95th percentile of arrival to first token, in the engine",
        ),
        Recording(
            name=POOL_ITL_P95,
            expression=_quantile(0.95, metrics.INTER_TOKEN_LATENCY.name, window),
            unit="s",
            meaning="95th percentile of one token to the next, in the engine",
        ),
        Recording(
            name=POOL_REQUESTS, expression=every, unit="requests/s", meaning="requests that the router answered"
        ),
        Recording(
            name=POOL_ERRORS,
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
