"""Alert rules: condition, severity and runbook entry. No I/O.

A rule that compares a signal does not fire if the signal is missing, so separate rules detect missing signals.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

import yaml

from gpufleet.domain.durations import render as render_duration
from gpufleet.settings.document.alerts import AlertSettings
from hosts.monitoring import rules
from hosts.monitoring.rules import RuleSettings, recording_group
from serving import metrics, recorded
from serving.accelerators import metrics as accelerators
from serving.accelerators.queries import DEVICE_LABEL, scaled

RUNBOOK: Final = "docs/runbook.md"

# Prometheus replaces these templates in a summary.
_POOL: Final = "{{ $labels.pool }}"
_INSTANCE: Final = "{{ $labels.instance_id }}"
_ENVIRONMENT: Final = "{{ $labels.environment }}"
_JOB: Final = "{{ $labels.job }}"
_WATCHDOG: Final = "{{ $labels.watchdog }}"
_QUOTA: Final = "{{ $labels.quota }}"
_WHAT: Final = "{{ $labels.what }}"
_ROUTER: Final = f'{{job="{metrics.ROUTER_JOB}"}}'
_ACCELERATOR: Final = metrics.Source.ACCELERATOR.value
_NUMBER: Final = "{{ $value }}"
_VALUE: Final = "{{ $value | humanize }}"
_COUNT: Final = '{{ $value | printf "%.0f" }}'
_PERCENT: Final = "{{ $value | humanizePercentage }}"
_LENGTH: Final = "{{ $value | humanizeDuration }}"


class Severity(StrEnum):
    """How soon an operator must react."""

    PAGE = "page"
    """Immediately: requests fail, or costs rise fast."""
    TICKET = "ticket"
    """The same day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert rule. `summary` is a Prometheus template, with `{{ $labels.pool }}` for example."""

    name: str
    expression: str
    lasts: timedelta
    severity: Severity
    summary: str


def alerts(settings: AlertSettings) -> tuple[Alert, ...]:
    """Return all alert rules."""
    return (
        *_gpu(settings),
        *_serving(settings),
        *_money(settings),
        *_evidence(settings),
        *_machines(settings),
        *_routers(settings),
    )


def render(settings: AlertSettings, rule_settings: RuleSettings) -> str:
    """Return the text of the rule file: recording rules, then alerts."""
    group: dict[str, Any] = {
        "name": "gpufleet-alerts",
        "rules": [
            {
                "alert": alert.name,
                "expr": alert.expression,
                "for": render_duration(alert.lasts),
                "labels": {"severity": alert.severity.value},
                "annotations": {"summary": alert.summary, "runbook": f"{RUNBOOK}#{alert.name.lower()}"},
            }
            for alert in alerts(settings)
        ],
    }
    document = {"groups": [recording_group(rule_settings), group]}
    return "# Written by gpufleet; changes made here are lost.\n" + yaml.safe_dump(
        document, sort_keys=False, width=118
    )


def _minutes(count: int) -> timedelta:
    return timedelta(minutes=count)


def _gpu(settings: AlertSettings) -> tuple[Alert, ...]:
    memory, growth = recorded.GPU_MEMORY, settings.gpu_memory_growth
    healthy = f"min by ({rules.BY_INSTANCE}, {DEVICE_LABEL}) {scaled(accelerators.HEALTHY)}"
    errors = f"increase({recorded.GPU_ECC_ERRORS}[1h]) > 0 or {healthy} == 0"
    # Report an error even if its series ends with the GPU or the instance.
    xid = f"max_over_time(({metrics.XID_ERRORS} > 0 and {metrics.XID_ERRORS} < 1000)[2m:])"
    # Power and health are reported at rest, too. After a restart, an exporter can give the same GPU other labels.
    each = f"{rules.BY_INSTANCE}, {DEVICE_LABEL}"
    always = f'{{__name__=~"{accelerators.POWER}|{accelerators.HEALTHY}"}}'
    known = f"count by ({each}) (last_over_time({always}[1h]))"
    missing = f"count by ({rules.BY_INSTANCE}) ({known} unless count by ({each}) ({always}))"
    return (
        Alert(
            name="GpuWasted",
            expression=f"{recorded.POOL_GPU_ACTIVE} < {settings.gpu_active_below}",
            lasts=settings.gpu_active_for,
            severity=Severity.TICKET,
            summary=f"Pool {_POOL} uses {_PERCENT} of its GPUs' time",
        ),
        Alert(
            name="GpuSaturated",
            expression=f"{recorded.POOL_GPU_ACTIVE} > {settings.gpu_active_above}",
            lasts=settings.gpu_active_for,
            severity=Severity.TICKET,
            summary=f"The GPUs of pool {_POOL} are busy {_PERCENT} of the time",
        ),
        Alert(
            name="GpuMemoryGrowing",
            expression=f"{memory} > {settings.gpu_memory_above} and ({memory} - {memory} offset 1h) > {growth}",
            lasts=_minutes(10),
            severity=Severity.TICKET,
            summary=f"GPU memory of {_INSTANCE} ({_POOL}) grew to {_PERCENT}",
        ),
        Alert(
            name="GpuHot",
            expression=f"{recorded.GPU_TEMPERATURE} > {settings.temperature_above}",
            lasts=_minutes(5),
            severity=Severity.TICKET,
            summary=f"A GPU of {_INSTANCE} ({_POOL}) is at {_NUMBER} °C",
        ),
        Alert(
            name="GpuErrors",
            expression=f"{xid} > 0 or {errors}",
            lasts=timedelta(0),
            severity=Severity.TICKET,
            summary=f"A GPU of {_INSTANCE} ({_POOL}) reports errors: XID, uncorrectable memory, or unhealthy",
        ),
        Alert(
            name="GpuGone",
            expression=f'{missing} > 0 and on (instance_id) up{{job="{_ACCELERATOR}"}} == 1',
            # An exporter that has just started reports no GPU before its first collection.
            lasts=_minutes(2),
            severity=Severity.TICKET,
            summary=f"{_INSTANCE} ({_POOL}) has missing GPUs ({_NUMBER}): their activity is unknown",
        ),
    )


def _serving(settings: AlertSettings) -> tuple[Alert, ...]:
    boot = f'sum by ({rules.BY_INSTANCE}) ({metrics.NODE_BOOT_SECONDS}{{step=~"cache|engine|warm-up"}})'
    running = f"avg_over_time({recorded.RUNNING}[10m])"
    # An instance that boots or drains receives none of the waiting requests.
    away = f'{metrics.NODE_PHASE}{{phase="ready"}} == 0'
    return (
        *_latency(settings),
        *_tokens(settings),
        Alert(
            name="BatchesTooSmall",
            expression=f"({running} < {settings.running_below} and on ({rules.BY_POOL}) {recorded.POOL_WAITING} > 0)"
            f" unless on (instance_id) {away}",
            lasts=_minutes(10),
            severity=Severity.TICKET,
            summary=f"{_INSTANCE} ({_POOL}) runs {_VALUE} requests at once while others of its pool wait",
        ),
        Alert(
            name="QueueGrowing",
            expression=f"deriv({recorded.POOL_WAITING}[10m]) > 0"
            f" and {recorded.POOL_WAITING} >= {settings.queue_from}",
            lasts=_minutes(10),
            severity=Severity.PAGE,
            summary=f"The queue of pool {_POOL} has been growing for 10 minutes",
        ),
        Alert(
            name="ColdStartSlow",
            expression=f"{boot} > {settings.cold_start_above.total_seconds():.0f}",
            lasts=timedelta(0),
            severity=Severity.TICKET,
            summary=f"{_INSTANCE} ({_POOL}) took {_LENGTH} to load its model",
        ),
        Alert(
            name="KvCacheFull",
            expression=f"{recorded.KV_CACHE} > {settings.kv_cache_above}",
            lasts=_minutes(10),
            severity=Severity.TICKET,
            summary=f"The KV cache of {_INSTANCE} ({_POOL}) is {_PERCENT} full",
        ),
        Alert(
            name="ErrorsHigh",
            expression=f"{recorded.POOL_ERRORS} > {settings.errors_above}",
            lasts=_minutes(5),
            severity=Severity.PAGE,
            summary=f"{_PERCENT} of the requests to pool {_POOL} fail",
        ),
        Alert(
            name="RequestsHeld",
            expression=f"sum by (environment, pool) (gpufleet_held_requests{_ROUTER}) > 0",
            lasts=_minutes(5),
            severity=Severity.PAGE,
            summary=f"Pool {_POOL} has requests that wait for a first replica ({_NUMBER})",
        ),
    )


def _latency(settings: AlertSettings) -> tuple[Alert, ...]:
    judged = [f'{recorded.POOL_P99}{{pool="{pool}"}} > {s}' for pool, s in sorted(settings.latency_p99_s.items())]
    if not judged:
        return ()
    return (
        Alert(
            name="LatencyHigh",
            expression=" or ".join(judged),
            lasts=_minutes(10),
            severity=Severity.PAGE,
            summary=f"The slowest 1 % of the responses of pool {_POOL} take longer than {_LENGTH}",
        ),
    )


def _tokens(settings: AlertSettings) -> tuple[Alert, ...]:
    now = f"avg_over_time({recorded.POOL_TOKENS_OUT}[1h])"
    least = 1 - settings.tokens_drop
    # An hour with few requests is not a fault: only a pool with waiting requests must produce tokens.
    busy = f"{recorded.POOL_WAITING} > 0"
    parts = [f"({now} < {least} * {now.replace('[1h])', '[1h] offset 1w)')} and {busy})"]
    parts += [
        f'({recorded.POOL_TOKENS_OUT}{{pool="{pool}"}} < {least * reference} and {busy})'
        for pool, reference in sorted(settings.reference_tokens_per_s.items())
    ]
    return (
        Alert(
            name="TokensDropped",
            expression=" or ".join(parts),
            lasts=_minutes(15),
            severity=Severity.TICKET,
            summary=f"Pool {_POOL} generates {_VALUE} tokens/s, less than expected, while requests wait",
        ),
    )


def _money(settings: AlertSettings) -> tuple[Alert, ...]:
    spend = "sum by (environment, pool) (gpufleet_spend_usd_per_hour)"
    idle = spend.replace("hour)", 'hour{state="idle"})')
    lost = "sum by (environment, pool) (increase(gpufleet_preemptions_total[1h]))"
    rate = "gpufleet_spend_rate_usd_per_hour"
    # Hours per month: 8760 / 12.
    even = "gpufleet_budget_usd_per_month / 730"
    return (
        Alert(
            name="SpotLossHigh",
            expression=f"{lost} > {settings.preemptions_per_hour}",
            lasts=timedelta(0),
            severity=Severity.TICKET,
            summary=f"Pool {_POOL} lost {_COUNT} spot instances within an hour",
        ),
        *_fallback(settings, spend),
        Alert(
            name="IdleSpend",
            expression=f"{idle} / {spend} > {settings.idle_share_above}",
            lasts=timedelta(hours=1),
            severity=Severity.TICKET,
            summary=f"{_PERCENT} of the cost of pool {_POOL} is idle",
        ),
        Alert(
            name="BudgetBurnFast",
            expression=f'{rate}{{window="1h"}} > on (environment) {settings.burn_fast} * {even}',
            lasts=_minutes(15),
            severity=Severity.PAGE,
            summary=f"{_ENVIRONMENT} spends {_VALUE} USD/h: the month's budget will not last",
        ),
        Alert(
            name="BudgetBurnSlow",
            expression=f'{rate}{{window="24h"}} > on (environment) {settings.burn_slow} * {even}',
            lasts=timedelta(hours=1),
            severity=Severity.TICKET,
            summary=f"{_ENVIRONMENT} spent {_VALUE} USD/h over a day, above its budget",
        ),
    )


def _fallback(settings: AlertSettings, spend: str) -> tuple[Alert, ...]:
    if not settings.spot_pools:
        return ()
    labels = f'capacity_type="on-demand",pool=~"{"|".join(sorted(settings.spot_pools))}"'
    on_demand = spend.replace("hour)", f"hour{{{labels}}})")
    return (
        Alert(
            name="FallbackExpensive",
            expression=f"{on_demand} / {spend} > {settings.fallback_share_above}",
            lasts=timedelta(hours=1),
            severity=Severity.TICKET,
            summary=f"{_PERCENT} of the cost of pool {_POOL}, which has spot, is on-demand",
        ),
    )


def _evidence(settings: AlertSettings) -> tuple[Alert, ...]:
    silent = settings.watchdog_silent.total_seconds()
    return (
        Alert(
            name="MetricsMissing",
            expression=_silent(),
            lasts=settings.metrics_missing,
            severity=Severity.TICKET,
            summary=f"Metrics of {_JOB} of {_INSTANCE} ({_POOL}) are missing: watchdogs keep the instance",
        ),
        Alert(
            name="AllMetricsMissing",
            expression=f'absent(up{{job="{_ACCELERATOR}"}}) and on () count(up{{job="node"}} == 1) > 0',
            lasts=settings.metrics_missing,
            severity=Severity.PAGE,
            summary="No GPU exporter is found, although instances run: check the targets file and port 9400",
        ),
        Alert(
            name="WatchdogSilent",
            expression=f"time() - gpufleet_daemon_succeeded_timestamp_seconds > {silent:.0f}"
            f" or (gpufleet_daemon_runs_total - gpufleet_daemon_failures_total == 0"
            f" and on () time() - gpufleet_daemon_started_timestamp_seconds > {silent:.0f})",
            lasts=timedelta(0),
            severity=Severity.PAGE,
            summary=f"Watchdog {_WATCHDOG} had no successful pass for over "
            f"{render_duration(settings.watchdog_silent)}",
        ),
        Alert(
            name="LedgerGap",
            expression=f"time() - gpufleet_ledger_known_until_seconds > {settings.ledger_gap.total_seconds():.0f}",
            lasts=timedelta(0),
            severity=Severity.TICKET,
            summary=f"Costs of {_ENVIRONMENT} are unknown for the last {_LENGTH}",
        ),
        Alert(
            name="ExporterGone",
            expression='absent(up{job="watchdogs"} == 1)',
            lasts=_minutes(5),
            severity=Severity.PAGE,
            summary="Whether watchdogs run is unknown: the exporter of the ledger does not respond",
        ),
    )


def _machines(settings: AlertSettings) -> tuple[Alert, ...]:
    failed = f'{metrics.NODE_PHASE}{{phase="failed"}} == 1'
    served = f'max_over_time({metrics.NODE_PHASE}{{phase="ready"}}[1h]) == 1'
    # A restart by the agent, of an engine that was ready before and is not switching its revision.
    restarted = (
        f"increase({metrics.NODE_ENGINE_RESTARTS}[15m]) > 0 and on (instance_id) "
        f'{metrics.NODE_PHASE}{{phase="ready"}} offset 15m == 1 unless on (instance_id) '
        f'max_over_time({metrics.NODE_PHASE}{{phase=~"cache|engine"}}[15m]) == 1'
    )
    return (
        Alert(
            name="BootFailing",
            expression=f"{failed} unless on (instance_id) {served}",
            lasts=timedelta(0),
            severity=Severity.TICKET,
            summary=f"{_INSTANCE} ({_POOL}) did not boot",
        ),
        Alert(
            name="EngineCrashing",
            expression=f"count by ({rules.BY_POOL})"
            f" ({restarted} or on (instance_id) ({failed} and on (instance_id) {served}))",
            lasts=timedelta(0),
            severity=Severity.TICKET,
            summary=f"Pool {_POOL} has engines that crashed after they had served ({_NUMBER})",
        ),
        Alert(
            name="CacheSyncFailing",
            expression=_cache_failing(settings),
            lasts=timedelta(0),
            severity=Severity.TICKET,
            summary=f"{_INSTANCE} ({_POOL}) cannot fetch its model from the bucket",
        ),
        Alert(
            name="QuotaNear",
            expression=f"gpufleet_quota_used / gpufleet_quota_limit > {settings.quota_above}",
            lasts=_minutes(15),
            severity=Severity.TICKET,
            summary=f"{_ENVIRONMENT} uses {_PERCENT} of quota {_QUOTA}",
        ),
    )


def _routers(settings: AlertSettings) -> tuple[Alert, ...]:
    ends = settings.certificate_ends.total_seconds()
    return (
        Alert(
            name="CertificateEnding",
            expression=f"gpufleet_router_certificate_end_timestamp_seconds{_ROUTER} - time() < {ends:.0f}",
            lasts=timedelta(0),
            severity=Severity.TICKET,
            summary=f"The router's certificate expires in {_LENGTH}",
        ),
        Alert(
            name="RouterGone",
            expression='up{job=~"router|haproxy"} == 0 or absent(up{job="router"})',
            lasts=_minutes(2),
            severity=Severity.PAGE,
            summary="A router does not respond, or no router is found",
        ),
        Alert(
            name="RouterProblem",
            expression=f"gpufleet_router_problem{_ROUTER} == 1",
            lasts=_minutes(2),
            severity=Severity.PAGE,
            summary=f"The router has a problem ({_WHAT}): on its machine, `gpufleet router status` shows it",
        ),
        Alert(
            name="ReplicasExcluded",
            expression=f"gpufleet_router_excluded_replicas{_ROUTER} > 0",
            lasts=_minutes(10),
            severity=Severity.TICKET,
            summary=f"Pool {_POOL} has replicas that keep failing ({_NUMBER})",
        ),
    )


def _silent() -> str:
    # An engine stops with its drain. If its GPU exporter does not respond after that, no watchdog ends the instance.
    ready, drained = (
        f'on (instance_id) {metrics.NODE_PHASE}{{phase="{phase}"}} == 1' for phase in ("ready", "drained")
    )
    return (
        f'up{{job=~"engine|{_ACCELERATOR}"}} == 0 and {ready} or up{{job="{_ACCELERATOR}"}} == 0 and {drained}'
        ' or up{job="node"} == 0'
    )


def _cache_failing(settings: AlertSettings) -> str:
    tries = f'{metrics.NODE_BOOT_ATTEMPTS}{{step="cache"}}'
    failed = f'{metrics.NODE_PHASE}{{phase="failed"}} == 1'
    # Only a successful step has a duration.
    done = f'{metrics.NODE_BOOT_SECONDS}{{step="cache"}}'
    return (
        f"({tries} > 1 or {tries} and on (instance_id) {failed}) unless on (instance_id) {done}"
        f" or increase({metrics.NODE_CACHE_RETRIES}[10m]) > {settings.cache_retries_above:.0f}"
    )
