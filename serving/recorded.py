"""Names of the recording rules. `hosts.monitoring` writes the rules; dashboards, alerts and watchdogs read them."""

from typing import Final

from serving import metrics
from serving.engines.reading import EVIDENCE, NO_EVIDENCE

# a share is 0 to 1; DCGM's values for missing data are far higher
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


def at_gate(labels: str = "") -> str:
    """Query for the requests at the gates of engines whose own gauge of running requests proves nothing, by instance.

    They include those that wait. An engine that does not answer is left out. `labels`: matchers, as
    `environment="prod"`.
    """
    more = f",{labels}" if labels else ""
    proving = f'{metrics.REQUESTS_RUNNING}{{job="{metrics.Source.ENGINE}",{EVIDENCE}!="{NO_EVIDENCE}"{more}}}'
    gate = f'{metrics.NODE_ENGINE_REQUESTS}{{job="{metrics.Source.NODE}"{more}}}'
    answers = f'up{{job="{metrics.Source.ENGINE}"{more}}} == 1'
    return f"({gate} and on (instance_id) {answers} unless on (instance_id) {proving})"
