"""Each alert fires exactly when it should; promtool evaluates the rules."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.monitoring_files import alert_settings
from gpufleet.settings.document import FleetDocument
from gpufleet.settings.document.alerts import AlertsEntry, AlertSettings
from gpufleet.toolchain.folders import ROOT
from hosts.monitoring.alerts import alerts, render
from hosts.monitoring.rules import RuleSettings, recordings
from tests.fixtures.console import fleet as fleets

LABELS = (
    'environment="prod",pool="chat",capacity_type="spot",zone="z",machine_type="m",group="g",instance_id="{id}"{more}'
)
SETTINGS = AlertSettings(
    latency_p99_s={"chat": 10}, reference_tokens_per_s={"chat": 100}, spot_pools=("chat", "code")
)

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (make setup installs it)"
)


def on(name: str, values: str, more: str = "", instance: str = "i-1") -> tuple[str, str]:
    """Return a series of one instance; `values` in promtool's notation."""
    return f"{name}{{{LABELS.format(id=instance, more=',' + more if more else '')}}}", values


def of(name: str, values: str, labels: str = 'environment="prod",pool="chat"') -> tuple[str, str]:
    """Return a series of a pool or a fleet. A router's series gets the routers' job, unless `labels` name another."""
    whose = (
        ',job="router"' if name.startswith(("gpufleet_router_", "gpufleet_held_")) and "job=" not in labels else ""
    )
    return f"{name}{{{labels}{whose}}}", values


@dataclass(frozen=True)
class Case:
    alert: str
    why: str
    fires: int
    """Number of firing alerts at the end."""
    series: tuple[tuple[str, str], ...]
    at: str = "30m"
    step: str = "1m"
    """Time between two values, and between two evaluations."""


GPU, RATIO = "gpufleet_accelerator_active_ratio", 'unit="ratio"'
XID = "DCGM_FI_DEV_XID_ERRORS"
USED, FREE = "gpufleet_accelerator_memory_used_bytes", "gpufleet_accelerator_memory_free_bytes"
MIB = 'unit="mebibytes"'
POWER, HEALTHY = "gpufleet_accelerator_power_watts", "gpufleet_accelerator_healthy"
A, B = 'unit="watts",accelerator_device="a"', 'unit="watts",accelerator_device="b"'
RUNS, WAITS = "gpufleet_engine_requests_running", "gpufleet_engine_requests_waiting"
TOKENS = "gpufleet_engine_generation_tokens_total"
LATENCY = "gpufleet_engine_request_duration_seconds_bucket"
ROUTED = "gpufleet_router_requests_total"
OTHER = 'environment="prod",pool="other"'
SPEND = "gpufleet_spend_usd_per_hour"
BOOT = "gpufleet_node_boot_step_seconds"
PHASE, STARTS = "gpufleet_node_phase", "gpufleet_node_engine_restarts_total"
TRIES = "gpufleet_node_boot_attempts_total"
QUOTA = 'environment="prod",quota="L-3819A6DF",unit="vCPUs"'

CASES = (
    Case("GpuWasted", "29 % for half an hour", 1, (on(GPU, "0.29x40", RATIO),)),
    Case("GpuWasted", "31 %", 0, (on(GPU, "0.31x40", RATIO),)),
    Case("GpuWasted", "not long enough", 0, (on(GPU, "0.9x20 0.1x10", RATIO),)),
    Case("GpuWasted", "a blank of DCGM is not a measurement", 0, (on(GPU, "140737488355328x40", RATIO),)),
    Case("GpuWasted", "a pool without the metric is not wasteful", 0, (on(RUNS, "0x40"),)),
    Case("GpuSaturated", "96 %", 1, (on(GPU, "0.96x40", RATIO),)),
    Case("GpuSaturated", "94 %", 0, (on(GPU, "0.94x40", RATIO),)),
    Case("GpuMemoryGrowing", "grew by a third of a tenth", 1,
         (on(USED, "88000x60 95000x60", MIB), on(FREE, "12000x60 5000x60", MIB)), "100m"),
    Case("GpuMemoryGrowing", "full since its start, as vLLM is", 0,
         (on(USED, "95000x120", MIB), on(FREE, "5000x120", MIB)), "100m"),
    Case("GpuHot", "84 °C", 1, (on("DCGM_FI_DEV_GPU_TEMP", "84x40"),)),
    Case("GpuHot", "83 °C", 0, (on("DCGM_FI_DEV_GPU_TEMP", "83x40"),)),
    Case("GpuHot", "a blank", 0, (on("DCGM_FI_DEV_GPU_TEMP", "2147483632x40"),)),
    Case("GpuErrors", "an XID", 1, (on("DCGM_FI_DEV_XID_ERRORS", "0x10 79x30"),)),
    Case("GpuErrors", "an XID, and a minute later no GPU", 1, (on(XID, "0x28 79 stale"),)),
    Case("GpuErrors", "an XID long ago", 0, (on(XID, "0x10 79x5 0x20"),)),
    Case("GpuErrors", "a double-bit error", 1, (on("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "0x10 1x30"),)),
    Case("GpuErrors", "old errors", 0, (on("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "5x40"),)),
    Case("GpuErrors", "a blank", 0, (on("DCGM_FI_DEV_XID_ERRORS", "2147483632x40"),)),
    Case("GpuErrors", "a counter that turns blank and back", 0, (on("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "0x10 9223372036854775792x10 0x20"),)),
    Case("GpuErrors", "a double-bit error after blanks", 1, (on("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "0x10 2147483632x10 1x20"),)),
    Case("GpuErrors", "its exporter reports a hardware error", 1, (on(HEALTHY, "0x10 1x30", 'unit="0_is_healthy",accelerator_device="a"'),)),
    Case("GpuErrors", "healthy by an exporter that reports 1", 0, (on(HEALTHY, "1x40", 'unit="1_is_healthy",accelerator_device="a"'),)),
    Case("GpuGone", "one of two fell off the bus", 1,
         (on(POWER, "60x60", A), on(POWER, "60x20 stale", B), on("up", "1x60", 'job="accelerator"'))),
    Case("GpuGone", "all of them", 1, (on(POWER, "60x20 stale", A), on("up", "1x60", 'job="accelerator"'))),
    Case("GpuGone", "the exporter began again with other labels", 0,
         (on(POWER, "60x20 stale", A + ',Hostname="x"'), on(POWER, "_x20 60x20", A + ',Hostname="y"'), on("up", "1x60", 'job="accelerator"'))),
    Case("GpuGone", "the exporter is silent, which MetricsMissing reports", 0,
         (on(POWER, "60x20 stale", A), on("up", "1x20 0x40", 'job="accelerator"'))),
    Case("GpuGone", "the instance ended", 0, (on(POWER, "60x20 stale", A), on("up", "1x20 stale", 'job="accelerator"'))),
    Case("LatencyHigh", "p99 at 20 s", 1,
         (on(LATENCY, "0+1x40", 'le="10"'), on(LATENCY, "0+10x40", 'le="20"'), on(LATENCY, "0+10x40", 'le="+Inf"'))),
    Case("LatencyHigh", "all under 5 s", 0,
         (on(LATENCY, "0+10x40", 'le="5"'), on(LATENCY, "0+10x40", 'le="20"'), on(LATENCY, "0+10x40", 'le="+Inf"'))),
    Case("TokensDropped", "half the reference while requests wait", 1,
         (on(TOKENS, "0+3000x60"), on(WAITS, "3x60")), "40m"),
    Case("TokensDropped", "half the reference, and no request waits", 0,
         (on(TOKENS, "0+3000x60"), on(WAITS, "0x60")), "40m"),
    Case("TokensDropped", "nearly the reference", 0, (on(TOKENS, "0+5000x60"), on(WAITS, "3x60")), "40m"),
    Case("TokensDropped", "less than last week at this hour", 1,
         (of("gpufleet:output_tokens_per_second:pool", "1000x20 500x1100", OTHER), of(WAITS, "3x1100", OTHER)),
         "10200m", "10m"),
    Case("TokensDropped", "as last week at this hour", 0,
         (of("gpufleet:output_tokens_per_second:pool", "1000x1100", OTHER), of(WAITS, "3x1100", OTHER)),
         "10200m", "10m"),
    Case("BatchesTooSmall", "3 run and others wait", 1, (on(RUNS, "3x40"), on(WAITS, "2x40"))),
    Case("BatchesTooSmall", "one is nearly empty, and its neighbour has a queue: the pool's mean is high", 1,
         (on(RUNS, "1x40"), on(WAITS, "0x40"), on(RUNS, "60x40", instance="i-2"), on(WAITS, "9x40", instance="i-2"))),
    Case("BatchesTooSmall", "requests wait in another pool", 0,
         (on(RUNS, "1x40"), on(WAITS, "0x40"), of(WAITS, "9x40", OTHER))),
    Case("BatchesTooSmall", "it drains, and its neighbour has a queue", 0,
         (on(RUNS, "1x40"), on("gpufleet_node_phase", "0x40", 'phase="ready"'), on("gpufleet_node_phase", "1x40", 'phase="draining"'),
          on(RUNS, "60x40", instance="i-2"), on(WAITS, "9x40", instance="i-2"))),
    Case("BatchesTooSmall", "5 run", 0, (on(RUNS, "5x40"), on(WAITS, "2x40"))),
    Case("BatchesTooSmall", "no request waits", 0, (on(RUNS, "1x40"), on(WAITS, "0x40"))),
    Case("BatchesTooSmall", "nothing is known of what runs", 0, (on(WAITS, "2x40"),)),
    Case("QueueGrowing", "one more each minute", 1, (on(WAITS, "5+1x40"),)),
    Case("QueueGrowing", "long, but shrinking", 0, (on(WAITS, "90-1x40"),)),
    Case("QueueGrowing", "growing, but short", 0, (on(WAITS, "0+0.1x40"),)),
    Case("ColdStartSlow", "150 s in two steps", 1, (on(BOOT, "100x40", 'step="cache"'), on(BOOT, "50x40", 'step="engine"'))),
    Case("ColdStartSlow", "110 s", 0, (on(BOOT, "60x40", 'step="cache"'), on(BOOT, "50x40", 'step="engine"'))),
    Case("KvCacheFull", "95 %", 1, (on("gpufleet_engine_kv_cache_usage_ratio", "0.95x40"),)),
    Case("KvCacheFull", "85 %", 0, (on("gpufleet_engine_kv_cache_usage_ratio", "0.85x40"),)),
    Case("ErrorsHigh", "2 %", 1,
         (of(ROUTED, "0+98x40", 'environment="prod",pool="chat",status="2xx"'),
          of(ROUTED, "0+2x40", 'environment="prod",pool="chat",status="5xx"'))),
    Case("ErrorsHigh", "none", 0, (of(ROUTED, "0+98x40", 'environment="prod",pool="chat",status="2xx"'),)),
    Case("ErrorsHigh", "clients' mistakes", 0,
         (of(ROUTED, "0+98x40", 'environment="prod",pool="chat",status="2xx"'),
          of(ROUTED, "0+20x40", 'environment="prod",pool="chat",status="4xx"'))),
    Case("RequestsHeld", "3 wait", 1, (of("gpufleet_held_requests", "3x40"),)),
    Case("RequestsHeld", "at two routers, one alert", 1,
         (of("gpufleet_held_requests", "3x40", 'environment="prod",pool="chat",instance="a"'),
          of("gpufleet_held_requests", "2x40", 'environment="prod",pool="chat",instance="b"'))),
    Case("RequestsHeld", "an engine's page that claims to hold some", 0,
         (of("gpufleet_held_requests", "3x40", 'environment="prod",pool="chat",job="engine"'),)),
    Case("RequestsHeld", "for a moment", 0, (of("gpufleet_held_requests", "0x28 3x3"),)),
    Case("SpotLossHigh", "6 within the hour", 1, (of("gpufleet_preemptions_total", "0x10 6x60"),), "60m"),
    Case("SpotLossHigh", "one", 0, (of("gpufleet_preemptions_total", "0x10 1x60"),), "60m"),
    Case("FallbackExpensive", "half of it", 1, (of(SPEND, "1x100", 'environment="prod",pool="chat",capacity_type="on-demand",state="used"'),
         of(SPEND, "1x100", 'environment="prod",pool="chat",capacity_type="spot",state="used"')), "90m"),
    Case("FallbackExpensive", "a tenth", 0, (of(SPEND, "1x100", 'environment="prod",pool="chat",capacity_type="on-demand",state="used"'),
         of(SPEND, "9x100", 'environment="prod",pool="chat",capacity_type="spot",state="used"')), "90m"),
    Case("FallbackExpensive", "all of a pool without spot", 0,
         (of(SPEND, "1x100", 'environment="prod",pool="batch",capacity_type="on-demand",state="used"'),), "90m"),
    Case("IdleSpend", "half of it", 1, (of(SPEND, "1x100", 'environment="prod",pool="chat",capacity_type="spot",state="idle"'),
         of(SPEND, "1x100", 'environment="prod",pool="chat",capacity_type="spot",state="used"')), "90m"),
    Case("IdleSpend", "none", 0, (of(SPEND, "1x100", 'environment="prod",pool="chat",capacity_type="spot",state="used"'),), "90m"),
    Case("BudgetBurnFast", "3 times the rate", 1,
         (of("gpufleet_spend_rate_usd_per_hour", "3x40", 'environment="prod",window="1h"'),
          of("gpufleet_budget_usd_per_month", "730x40", 'environment="prod"'))),
    Case("BudgetBurnFast", "the even rate", 0,
         (of("gpufleet_spend_rate_usd_per_hour", "1x40", 'environment="prod",window="1h"'),
          of("gpufleet_budget_usd_per_month", "730x40", 'environment="prod"'))),
    Case("BudgetBurnFast", "no budget", 0, (of("gpufleet_spend_rate_usd_per_hour", "9x40", 'environment="prod",window="1h"'),)),
    Case("BudgetBurnSlow", "a third too much", 1,
         (of("gpufleet_spend_rate_usd_per_hour", "1.3x100", 'environment="prod",window="24h"'),
          of("gpufleet_budget_usd_per_month", "730x100", 'environment="prod"')), "90m"),
    Case("BudgetBurnSlow", "a tenth too much", 0,
         (of("gpufleet_spend_rate_usd_per_hour", "1.1x100", 'environment="prod",window="24h"'),
          of("gpufleet_budget_usd_per_month", "730x100", 'environment="prod"')), "90m"),
    Case("MetricsMissing", "a ready instance without its exporter", 1,
         (on("up", "0x40", 'job="accelerator"'), on("gpufleet_node_phase", "1x40", 'phase="ready"'), on("up", "1x40", 'job="node"'))),
    Case("MetricsMissing", "it boots", 0,
         (on("up", "0x40", 'job="accelerator"'), on("gpufleet_node_phase", "0x40", 'phase="ready"'), on("up", "1x40", 'job="node"'))),
    Case("MetricsMissing", "a drained one without its exporter, which no watchdog terminates then", 1,
         (on("up", "0x40", 'job="accelerator"'), on("gpufleet_node_phase", "1x40", 'phase="drained"'), on("up", "1x40", 'job="node"'))),
    Case("MetricsMissing", "a drained one, whose engine has ended", 0,
         (on("up", "0x40", 'job="engine"'), on("up", "1x40", 'job="accelerator"'), on("gpufleet_node_phase", "1x40", 'phase="drained"'), on("up", "1x40", 'job="node"'))),
    Case("MetricsMissing", "the agent itself", 1, (on("up", "0x40", 'job="node"'),)),
    Case("MetricsMissing", "its node exporter alone, by which nothing is judged", 0,
         (on("up", "0x40", 'job="host"'), on("gpufleet_node_phase", "1x40", 'phase="ready"'), on("up", "1x40", 'job="node"'))),
    Case("AllMetricsMissing", "agents, and no exporter", 1, (on("up", "1x40", 'job="node"'),)),
    Case("AllMetricsMissing", "both", 0, (on("up", "1x40", 'job="node"'), on("up", "1x40", 'job="accelerator"'))),
    Case("AllMetricsMissing", "an empty fleet", 0, (of("gpufleet_held_requests", "0x40"),)),
    Case("WatchdogSilent", "20 minutes", 1, (of("gpufleet_daemon_succeeded_timestamp_seconds", "600x40", 'watchdog="idle"'),)),
    Case("WatchdogSilent", "10 minutes", 0, (of("gpufleet_daemon_succeeded_timestamp_seconds", "1200x40", 'watchdog="idle"'),)),
    Case("WatchdogSilent", "never well since its start", 1,
         (of("gpufleet_daemon_runs_total", "5x40", 'watchdog="idle"'), of("gpufleet_daemon_failures_total", "5x40", 'watchdog="idle"'),
          of("gpufleet_daemon_started_timestamp_seconds", "0x40", 'job="watchdogs"'))),
    Case("LedgerGap", "20 minutes", 1, (of("gpufleet_ledger_known_until_seconds", "600x40", 'environment="prod"'),)),
    Case("LedgerGap", "5 minutes", 0, (of("gpufleet_ledger_known_until_seconds", "1500x40", 'environment="prod"'),)),
    Case("ExporterGone", "it is down", 1, (of("up", "0x40", 'job="watchdogs"'),)),
    Case("ExporterGone", "there is none", 1, (of("up", "1x40", 'job="node"'),)),
    Case("ExporterGone", "it is up", 0, (of("up", "1x40", 'job="watchdogs"'),)),
    Case("BootFailing", "failed", 1, (on("gpufleet_node_phase", "1x40", 'phase="failed"'),)),
    Case("BootFailing", "ready", 0, (on("gpufleet_node_phase", "0x40", 'phase="failed"'),)),
    Case("BootFailing", "it served before: a crash", 0,
         (on("gpufleet_node_phase", "0x25 1x15", 'phase="failed"'), on(PHASE, "1x25 0x15", 'phase="ready"'))),
    Case("EngineCrashing", "its agent gave it up", 1,
         (on(PHASE, "0x25 1x15", 'phase="failed"'), on(PHASE, "1x25 0x15", 'phase="ready"'))),
    Case("EngineCrashing", "its agent started it again", 1,
         (on(PHASE, "1x40", 'phase="ready"'), on(STARTS, "1x25 2x15"))),
    Case("EngineCrashing", "two of a pool are one alert", 1,
         (on(PHASE, "1x40", 'phase="ready"'), on(STARTS, "1x25 2x15"),
          on(PHASE, "1x40", 'phase="ready"', "i-2"), on(STARTS, "1x25 3x15", instance="i-2"))),
    Case("EngineCrashing", "its first start", 0,
         (on(PHASE, "0x25 1x15", 'phase="ready"'), on(STARTS, "0x20 1x20"))),
    Case("EngineCrashing", "it switches its revision", 0,
         (on(PHASE, "1x20 0x5 1x15", 'phase="ready"'), on(PHASE, "0x20 1x5 0x15", 'phase="engine"'), on(STARTS, "1x22 2x18"))),
    Case("EngineCrashing", "its boot failed", 0,
         (on(PHASE, "1x40", 'phase="failed"'), on(PHASE, "0x40", 'phase="ready"'), on(STARTS, "0x10 1x30"))),
    Case("CacheSyncFailing", "ranges read again and again", 1, (on("gpufleet_node_cache_retries_total", "0+10x40"),)),
    Case("CacheSyncFailing", "a few ranges read again, long ago", 0, (on("gpufleet_node_cache_retries_total", "3x40"),)),
    Case("CacheSyncFailing", "tried again and not here yet", 1, (on(TRIES, "1x10 2x30", 'step="cache"'),)),
    Case("CacheSyncFailing", "the first attempt is still running", 0, (on(TRIES, "1x40", 'step="cache"'),)),
    Case("CacheSyncFailing", "the second try did it", 0, (on(TRIES, "2x40", 'step="cache"'), on(BOOT, "9x40", 'step="cache"'))),
    Case("CacheSyncFailing", "the first try was hopeless", 1,
         (on(TRIES, "1x40", 'step="cache"'), on("gpufleet_node_phase", "1x40", 'phase="failed"'))),
    Case("CacheSyncFailing", "its engine failed, its model is here", 0,
         (on(TRIES, "1x40", 'step="cache"'), on(BOOT, "9x40", 'step="cache"'), on("gpufleet_node_phase", "1x40", 'phase="failed"'))),
    Case("QuotaNear", "90 of 100 vCPUs", 1, (of("gpufleet_quota_used", "90x40", QUOTA), of("gpufleet_quota_limit", "100x40", QUOTA))),
    Case("QuotaNear", "79 of 100 vCPUs", 0, (of("gpufleet_quota_used", "79x40", QUOTA), of("gpufleet_quota_limit", "100x40", QUOTA))),
    Case("QuotaNear", "an unknown limit", 0, (of("gpufleet_quota_used", "90x40", QUOTA),)),
    Case("QuotaNear", "for a moment", 0, (of("gpufleet_quota_used", "9x25 90x10", QUOTA), of("gpufleet_quota_limit", "100x40", QUOTA))),
    Case("CertificateEnding", "in 10 days", 1, (of("gpufleet_router_certificate_end_timestamp_seconds", "864000x40", 'environment="prod"'),)),
    Case("CertificateEnding", "in 20 days", 0, (of("gpufleet_router_certificate_end_timestamp_seconds", "1728000x40", 'environment="prod"'),)),
    Case("RouterGone", "one of two", 1, (of("up", "0x40", 'job="router",instance="a"'), of("up", "1x40", 'job="router",instance="b"'))),
    Case("RouterGone", "none is found", 1, (of("up", "1x40", 'job="node"'),)),
    Case("RouterGone", "its HAProxy's page is beyond a limit", 1,
         (of("up", "1x40", 'job="router",instance="a"'), of("up", "0x40", 'job="haproxy",instance="a"'))),
    Case("RouterGone", "both answer", 0, (of("up", "1x40", 'job="router",instance="a"'), of("up", "1x40", 'job="router",instance="b"'))),
    Case("RouterGone", "started again", 0, (of("up", "1x29 0x1 1x10", 'job="router",instance="a"'),)),
    Case("RouterProblem", "an old configuration", 1, (of("gpufleet_router_problem", "1x40", 'environment="prod",what="config"'),)),
    Case("RouterProblem", "well", 0, (of("gpufleet_router_problem", "0x40", 'environment="prod",what="config"'),)),
    Case("ReplicasExcluded", "one", 1, (of("gpufleet_router_excluded_replicas", "1x40"),)),
    Case("ReplicasExcluded", "none", 0, (of("gpufleet_router_excluded_replicas", "0x40"),)),
)  # fmt: skip
# ruff: noqa: E501


def _test(case: Case) -> dict[str, Any]:
    expected = [{"labels": "{}", "value": case.fires}] if case.fires else []
    query = f'count(ALERTS{{alertname="{case.alert}",alertstate="firing"}})'
    return {
        "interval": case.step,
        "input_series": [{"series": name, "values": values} for name, values in case.series],
        "promql_expr_test": [{"expr": query, "eval_time": case.at, "exp_samples": expected}],
    }


def _run(folder: Path, cases: Sequence[Case], step: str) -> str:
    """Return promtool's error output."""
    (folder / "rules.yml").write_text(render(SETTINGS, RuleSettings()))
    tests = [_test(case) for case in cases]
    # Without a group order promtool uses a random one, and a signal of ten minutes ago is lost.
    order = ["gpufleet-signals", "gpufleet-alerts"]
    document = {"rule_files": ["rules.yml"], "evaluation_interval": step, "group_eval_order": order, "tests": tests}
    (folder / "test.yml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("step", ["1m", "10m"])
def test_alerts_fire_only_in_their_cases(tmp_path: Path, step: str) -> None:
    cases = [case for case in CASES if case.step == step]
    if together := _run(tmp_path, cases, step):
        each = [(case, _run(tmp_path, [case], step)) for case in cases]
        alone = "\n".join(f"{case.alert}, {case.why}: {errors[-300:]}" for case, errors in each if errors)
        pytest.fail(alone or f"each alone passes, together: {together[-2000:]}")


@needs_promtool
def test_a_wrong_expectation_is_detected(tmp_path: Path) -> None:
    case = CASES[0]
    assert "FAILED" in _run(tmp_path, [replace(case, fires=0)], "1m")


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    for alert in alerts(SETTINGS):
        fires = {bool(case.fires) for case in CASES if case.alert == alert.name}
        assert fires == {True, False}, alert.name


def test_every_alert_has_a_section_in_the_runbook() -> None:
    text = (ROOT / "docs" / "runbook.md").read_text()
    sections = set(re.findall(r"^## (\w+)$", text, re.MULTILINE))
    assert sections >= {alert.name for alert in alerts(SETTINGS)}


def test_names_of_alerts_and_recordings_are_unique() -> None:
    names = [alert.name for alert in alerts(SETTINGS)] + [rule.name for rule in recordings(RuleSettings())]
    assert len(names) == len(set(names))


def fleet_of(**more: object) -> FleetDocument:
    """Return a document with its own thresholds, as `pulumi up` writes it from the settings."""
    return FleetDocument.model_validate(fleets.document("chat").model_dump() | more)


@pytest.mark.parametrize("name", AlertsEntry.model_fields)
def test_every_threshold_comes_from_the_settings(name: str) -> None:
    known = getattr(AlertSettings(), name)
    other = "17m" if isinstance(known, timedelta) else known / 2
    given = fleet_of(alerts={name: other}).alerts.settings({}, {}, ["chat"])
    assert getattr(given, name) != known
    assert render(given, RuleSettings()) != render(AlertSettings(spot_pools=("chat",)), RuleSettings())


def test_objectives_of_pools_come_from_the_settings() -> None:
    pool = fleets.document("chat").pools[0].model_dump()
    pool |= {"objectives": {"latency_p99": "8s", "tokens_per_second": 900}}
    text = render(alert_settings(fleet_of(pools=[pool]), []), RuleSettings())
    assert 'gpufleet:answer_seconds_p99:pool{pool="chat"} > 8.0' in text
    assert '{pool="chat"} < 720.0' in text
    overridden = alert_settings(fleet_of(pools=[pool]), ["chat=3s"])
    assert overridden.latency_p99_s == {"chat": 3}, "the command line wins"
    assert "LatencyHigh" not in render(alert_settings(fleet_of(), []), RuleSettings()), "no objective is not judged"
