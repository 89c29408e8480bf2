"""The single list of all metric names that this repository reads or serves, with unit and meaning.

Engine metrics have canonical names: `serving.engines` maps each engine's own names to them, and Prometheus renames
them when it scrapes. Five metrics of vLLM keep their names. `serving.accelerators` does the same for accelerators;
only series for people keep the names of dcgm-exporter (etc/default-counters.csv and dcp-metrics-included.csv at
commit d5e5f51). Machine metrics have the names of node_exporter 1.5.0 (from the /metrics page of a running one). The
node agent serves `gpufleet_node_…`. Histograms are listed without `_bucket`, `_sum`, `_count`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MetricKind(StrEnum):
    """The Prometheus metric type. It determines valid queries: a gauge has no rate, for example."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Source(StrEnum):
    """The program that serves a metric. The value is also the name of the Prometheus job."""

    ENGINE = "engine"
    ACCELERATOR = "accelerator"
    """The exporter of the machine's accelerators, whichever kind it has."""
    NODE = "node"
    HOST = "host"
    """node_exporter, when the settings enable it. Only for people: no watchdog and no alert uses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. `str(metric)` is its name, for use in queries."""

    name: str
    kind: MetricKind
    source: Source
    unit: str
    meaning: str

    def __str__(self) -> str:
        return self.name


PORTS: Final[Mapping[Source, int]] = {
    Source.ENGINE: 8000,
    Source.ACCELERATOR: 9400,
    Source.NODE: 9500,
    Source.HOST: 9100,
}
"""Port of each source on an instance's private address; the path is /metrics."""
ROUTER_JOB: Final = "router"
"""The Prometheus job of the routers' own counters. The job excludes series of the same names from instance pages."""


def _engine(name: str, kind: MetricKind, unit: str, meaning: str) -> Metric:
    return Metric(name=f"gpufleet_engine_{name}", kind=kind, source=Source.ENGINE, unit=unit, meaning=meaning)


def _vllm(name: str, kind: MetricKind, unit: str, meaning: str) -> Metric:
    return Metric(name=f"vllm:{name}", kind=kind, source=Source.ENGINE, unit=unit, meaning=meaning)


def _dcgm(name: str, kind: MetricKind, unit: str, meaning: str) -> Metric:
    return Metric(name=f"DCGM_FI_{name}", kind=kind, source=Source.ACCELERATOR, unit=unit, meaning=meaning)


def _node(name: str, kind: MetricKind, unit: str, meaning: str) -> Metric:
    return Metric(name=f"gpufleet_node_{name}", kind=kind, source=Source.NODE, unit=unit, meaning=meaning)


def _host(name: str, kind: MetricKind, unit: str, meaning: str) -> Metric:
    return Metric(name=f"node_{name}", kind=kind, source=Source.HOST, unit=unit, meaning=meaning)


# engine: canonical names, which Prometheus gives to each engine's own (`serving.engines`)
REQUESTS_RUNNING: Final = _engine("requests_running", MetricKind.GAUGE, "requests", "in the running batch now")
REQUESTS_WAITING: Final = _engine("requests_waiting", MetricKind.GAUGE, "requests", "queued in the engine now")
KV_CACHE_USAGE: Final = _engine(
    "kv_cache_usage_ratio", MetricKind.GAUGE, "share 0 to 1", "used blocks of the KV cache"
)
PROMPT_TOKENS: Final = _engine(
    "prompt_tokens_total", MetricKind.COUNTER, "tokens", "input tokens processed, including cached ones"
)
PROMPT_TOKENS_CACHED: Final = _engine(
    "prompt_tokens_cached_total", MetricKind.COUNTER, "tokens", "input tokens served from a prefix cache"
)
GENERATION_TOKENS: Final = _engine("generation_tokens_total", MetricKind.COUNTER, "tokens", "output tokens generated")
PREFIX_CACHE_QUERIES: Final = _vllm(
    "prefix_cache_queries_total", MetricKind.COUNTER, "tokens", "input tokens looked up in the prefix cache"
)
PREFIX_CACHE_HITS: Final = _vllm(
    "prefix_cache_hits_total", MetricKind.COUNTER, "tokens", "input tokens found in the prefix cache"
)
PREEMPTIONS: Final = _vllm("num_preemptions_total", MetricKind.COUNTER, "requests", "removed from a full KV cache")
REQUEST_SUCCESS: Final = _engine(
    "requests_finished_total",
    MetricKind.COUNTER,
    "requests",
    "finished, by finished_reason (stop, length, abort, error, repetition)",
)
ADMISSION_REJECTIONS: Final = _vllm(
    "admission_rejections_total",
    MetricKind.COUNTER,
    "requests",
    "answered 503 because a queue limit was reached, by reason",
)
TIME_TO_FIRST_TOKEN: Final = _engine(
    "time_to_first_token_seconds", MetricKind.HISTOGRAM, "seconds", "arrival to first token, in the engine"
)
INTER_TOKEN_LATENCY: Final = _engine(
    "inter_token_latency_seconds", MetricKind.HISTOGRAM, "seconds", "time between two tokens of a request"
)
E2E_LATENCY: Final = _engine("request_duration_seconds", MetricKind.HISTOGRAM, "seconds", "arrival to last token")
QUEUE_TIME: Final = _engine(
    "queue_time_seconds", MetricKind.HISTOGRAM, "seconds", "time in the queue before the first run"
)
PREFILL_TIME: Final = _engine(
    "prefill_time_seconds", MetricKind.HISTOGRAM, "seconds", "time to process a request's input"
)
DECODE_TIME: Final = _engine("decode_time_seconds", MetricKind.HISTOGRAM, "seconds", "first token to last token")
CACHE_CONFIG: Final = _vllm(
    "cache_config_info", MetricKind.GAUGE, "always 1", "labels: num_gpu_blocks, block_size, kv_cache_size_tokens"
)
LIVE_TOKENS: Final = _engine(
    "live_tokens_total",
    MetricKind.COUNTER,
    "tokens",
    "tokens processed, counted while requests run; only of engines whose other counters change at a request's end",
)
WORK_STEPS: Final = _engine(
    "work_steps_total",
    MetricKind.COUNTER,
    "steps",
    "executions of any model: a change proves work; the value itself has no meaning",
)
OPEN_REQUESTS: Final = _engine(
    "open_requests", MetricKind.GAUGE, "requests", "accepted by the engine's HTTP server and not yet answered"
)
PROCESS_STARTED: Final = "process_start_time_seconds"
"""Start time of the engine's server process. A later value means that its counters restarted."""
PROCESS_CPU: Final = "process_cpu_seconds_total"
"""CPU time of the engine's server process. It increases while the process runs."""

# series for people that only NVIDIA's exporter has; canonical ones of all kinds: `serving.accelerators.metrics`
SM_ACTIVE: Final = _dcgm(
    "PROF_SM_ACTIVE", MetricKind.GAUGE, "share 0 to 1", "SM cycles with a warp; off in the exporter's default list"
)
TENSOR_ACTIVE: Final = _dcgm("PROF_PIPE_TENSOR_ACTIVE", MetricKind.GAUGE, "share 0 to 1", "cycles of the tensor pipe")
DRAM_ACTIVE: Final = _dcgm("PROF_DRAM_ACTIVE", MetricKind.GAUGE, "share 0 to 1", "cycles that moved device memory")
GPU_TEMPERATURE: Final = _dcgm("DEV_GPU_TEMP", MetricKind.GAUGE, "degrees Celsius", "temperature of the GPU")
MEMORY_TEMPERATURE: Final = _dcgm("DEV_MEMORY_TEMP", MetricKind.GAUGE, "degrees Celsius", "temperature of its memory")
SM_CLOCK: Final = _dcgm("DEV_SM_CLOCK", MetricKind.GAUGE, "MHz", "SM clock")
MEM_CLOCK: Final = _dcgm("DEV_MEM_CLOCK", MetricKind.GAUGE, "MHz", "memory clock")
XID_ERRORS: Final = _dcgm(
    "DEV_XID_ERRORS", MetricKind.GAUGE, "XID", "number of the last XID error; 0: none since boot"
)
ECC_DOUBLE_BIT: Final = _dcgm(
    "DEV_ECC_DBE_VOL_TOTAL", MetricKind.COUNTER, "errors", "double-bit ECC errors since the driver was loaded"
)
ECC_SINGLE_BIT: Final = _dcgm(
    "DEV_ECC_SBE_VOL_TOTAL", MetricKind.COUNTER, "errors", "single-bit ECC errors since the driver was loaded"
)
UNCORRECTABLE_REMAPPED_ROWS: Final = _dcgm(
    "DEV_UNCORRECTABLE_REMAPPED_ROWS", MetricKind.COUNTER, "rows", "rows remapped after uncorrectable errors"
)

DCGM_BLANKS: Final = (
    9223372036854775792,
    9223372036854775793,
    9223372036854775794,
    9223372036854775795,
    2147483632,
    2147483633,
    2147483634,
    2147483635,
)
"""DCGM's sentinel values (64 and 32 bits) for blank, not found, not supported, no permission: no measurement."""


def is_blank(value: float) -> bool:
    """Whether a value of the exporter means "no measurement".

    As doubles, the 64-bit sentinels round to one value. DCGM's blank double is 2^47; no real value here reaches
    it (in millijoules, it is six years of an H100 at full power).
    """
    return value >= 2**47 or 2147483632 <= value <= 2147483647


# node agent: labels pool
NODE_PHASE: Final = _node("phase", MetricKind.GAUGE, "0 or 1", "1 for the phase that the instance is in, by phase")
NODE_PHASE_SINCE: Final = _node(
    "phase_since_timestamp_seconds", MetricKind.GAUGE, "Unix seconds", "when the phase was entered"
)
NODE_BOOT_SECONDS: Final = _node(
    "boot_step_seconds", MetricKind.GAUGE, "seconds", "duration of each boot step, by step"
)
NODE_BOOT_ATTEMPTS: Final = _node(
    "boot_attempts_total", MetricKind.COUNTER, "attempts", "attempts of each step, by step"
)
NODE_CACHE_BYTES: Final = _node(
    "cache_bytes_total", MetricKind.COUNTER, "bytes", "model bytes verified, by origin (fetched, kept)"
)
NODE_CACHE_RETRIES: Final = _node("cache_retries_total", MetricKind.COUNTER, "reads", "ranges read again")
NODE_ENGINE_RESTARTS: Final = _node(
    "engine_restarts_total", MetricKind.COUNTER, "starts", "starts of the engine's unit by the agent"
)
NODE_ENGINE_INFO: Final = _node(
    "engine_info", MetricKind.GAUGE, "1", "the engine and its release, as the engine reports it, by kind and version"
)
NODE_ENGINE_MISSING: Final = _node(
    "engine_missing",
    MetricKind.GAUGE,
    "1",
    "a metric that the engine's contract requires but its page does not contain, by name",
)
NODE_ENGINE_STARTED: Final = _node(
    "engine_start_time_seconds", MetricKind.GAUGE, "Unix seconds", "when the main process of the engine started"
)
NODE_ENGINE_CPU: Final = _node(
    "engine_cpu_seconds_total",
    MetricKind.COUNTER,
    "seconds",
    "CPU time of the main process of the engine and of its children",
)
NODE_ENGINE_REQUESTS: Final = _node(
    "engine_requests",
    MetricKind.GAUGE,
    "requests",
    "open at the gate in front of the engine; absent without a gate, and while the gate does not answer",
)
NODE_ENGINE_PASSED: Final = _node(
    "engine_requests_passed_total",
    MetricKind.COUNTER,
    "requests",
    "passed to the engine by its gate: a change proves work between two scrapes; absent as the gauge",
)
NODE_DRAINING: Final = _node("draining", MetricKind.GAUGE, "0 or 1", "1: a drain was requested")
NODE_DRAIN_DEADLINE: Final = _node(
    "drain_deadline_timestamp_seconds",
    MetricKind.GAUGE,
    "Unix seconds",
    "deadline of the drain, with its reason (label reason); absent without a drain",
)
NODE_ORDER_KEY: Final = _node(
    "order_key",
    MetricKind.GAUGE,
    "1",
    "the agent accepts orders signed with this key, by key (SHA-256 of the public key)",
)
NODE_REQUESTS_CUT: Final = _node(
    "requests_cut_total", MetricKind.COUNTER, "requests", "requests still running at the deadline of the drain"
)

# node_exporter
HOST_CPU_SECONDS: Final = _host(
    "cpu_seconds_total",
    MetricKind.COUNTER,
    "seconds",
    "time of each CPU in each mode; Prometheus keeps idle and iowait",
)
HOST_MEMORY_TOTAL: Final = _host("memory_MemTotal_bytes", MetricKind.GAUGE, "bytes", "memory of the machine")
HOST_MEMORY_AVAILABLE: Final = _host(
    "memory_MemAvailable_bytes", MetricKind.GAUGE, "bytes", "memory that is available to programs"
)
HOST_DISK_SIZE: Final = _host(
    "filesystem_size_bytes", MetricKind.GAUGE, "bytes", "size of each file system, by mountpoint"
)
HOST_DISK_FREE: Final = _host(
    "filesystem_avail_bytes", MetricKind.GAUGE, "bytes", "free space for programs, by mountpoint"
)

ALL: Final[Mapping[str, Metric]] = {
    metric.name: metric for metric in tuple(globals().values()) if isinstance(metric, Metric)
}
"""All metrics, by name."""

_ALSO_READ: Final[Mapping[Source, tuple[str, ...]]] = {
    Source.ENGINE: (PROCESS_STARTED, PROCESS_CPU),
}
"""Series without a `Metric` above: metrics of every process."""


def series_names(source: Source) -> tuple[str, ...]:
    """Return the sorted names of all series of a source that this repository reads or documents."""
    found = list(_ALSO_READ.get(source, ()))
    for metric in ALL.values():
        if metric.source is source:
            parts = ("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",)
            found += [f"{metric.name}{part}" for part in parts]
    return tuple(sorted(found))
