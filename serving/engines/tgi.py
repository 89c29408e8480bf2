"""The contract of Text Generation Inference (TGI). Read-only: the project is in maintenance mode."""

from typing import Final

from serving import metrics
from serving.engines.contract import (
    Contract,
    EngineDrain,
    EngineEvidenceRule,
    EngineSeries,
    Probes,
    Refresh,
    StopMode,
    TokenError,
    TokenRecord,
    TokenSource,
)
from serving.releases import versions

CONTRACT: Final = Contract(
    kind="tgi",
    title="TGI",
    tested=versions("3.0", "4.0"),
    series=(
        EngineSeries(name="tgi_batch_current_size", measures=metrics.REQUESTS_RUNNING),
        EngineSeries(name="tgi_queue_size", measures=metrics.REQUESTS_WAITING),
        EngineSeries(
            name="tgi_request_input_length_sum",
            measures=metrics.PROMPT_TOKENS,
            refresh=Refresh.REQUEST,
            zero_while_busy=True,
        ),
        EngineSeries(
            name="tgi_request_generated_tokens_sum",
            measures=metrics.GENERATION_TOKENS,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
        EngineSeries(
            name="tgi_request_success",
            measures=metrics.REQUEST_SUCCESS,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
        EngineSeries(
            name="tgi_request_duration",
            measures=metrics.E2E_LATENCY,
            refresh=Refresh.REQUEST_END,
            zero_while_busy=True,
        ),
    ),
    evidence=EngineEvidenceRule(
        work=(
            metrics.REQUESTS_RUNNING,
            metrics.REQUESTS_WAITING,
            metrics.PROMPT_TOKENS,
            metrics.GENERATION_TOKENS,
            metrics.REQUEST_SUCCESS,
        ),
        idle=(metrics.REQUESTS_RUNNING, metrics.REQUESTS_WAITING, metrics.PROMPT_TOKENS, metrics.GENERATION_TOKENS),
    ),
    tokens=TokenRecord(
        source=TokenSource.HISTOGRAM,
        error="input includes requests that failed later: too high; output excludes them: too low",
        errors=(
            TokenError.FAILED_INPUT,
            TokenError.FAILED_OUTPUT,
            TokenError.AFTER_LAST_SCRAPE,
        ),
    ),
    probes=Probes(alive="/health", version="/info"),
    drain=EngineDrain(stop=StopMode.FINISHES),
    sources=("router and launcher of huggingface/text-generation-inference at db931fc",),
)
