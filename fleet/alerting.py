"""Thresholds of the alerts, with the defaults that the issue of them names. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """All thresholds. Shares are 0 to 1."""

    gpu_active_below: float = 0.30
    gpu_active_above: float = 0.95
    gpu_active_for: timedelta = timedelta(minutes=15)
    gpu_memory_above: float = 0.90
    gpu_memory_growth: float = 0.02
    """Share of the memory, in an hour: vLLM takes its memory at the start, so only growth is news."""
    temperature_above: float = 83
    """°C."""
    latency_p99_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Objective of each pool; a pool without one is not judged."""
    tokens_drop: float = 0.20
    reference_tokens_per_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """What a pool is known to make when it is busy; without it the same hour of last week counts."""
    running_below: float = 4
    queue_from: float = 10
    cold_start_above: timedelta = timedelta(seconds=120)
    kv_cache_above: float = 0.90
    errors_above: float = 0.01
    preemptions_per_hour: float = 3
    fallback_share_above: float = 0.30
    idle_share_above: float = 0.30
    burn_fast: float = 2.0
    """Times the budget's even rate, over an hour."""
    burn_slow: float = 1.2
    """The same over a day."""
    watchdog_silent: timedelta = timedelta(minutes=15)
    ledger_gap: timedelta = timedelta(minutes=10)
    certificate_ends: timedelta = timedelta(days=14)
    metrics_missing: timedelta = timedelta(minutes=5)
    cache_retries_above: float = 50
    """Ranges of a model read again, within ten minutes."""
    quota_above: float = 0.80
    """Share of an account's quota that runs."""
