"""Metrics pages except the node agent's: names and types that dashboards and alerts use."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.daemon_page import Page
from gpufleet.console.exporter import render
from gpufleet.metrics_page import counter, gauge, page
from serving.router.exporter import RouterSnapshot, metrics
from serving.router.meter import Meter
from tests.fixtures.metrics_text import types, value
from watchdogs.schedule import Job, Schedule


def test_the_ledger_page_has_these_families() -> None:
    assert types(render([])) == {
        "gpufleet_target": "gauge",
        "gpufleet_ledger_known_until_seconds": "gauge",
        "gpufleet_budget_usd_per_month": "gauge",
        "gpufleet_spend_rate_usd_per_hour": "gauge",
        "gpufleet_spend_usd_per_hour": "gauge",
        "gpufleet_preemptions_total": "counter",
        "gpufleet_brakes": "gauge",
        "gpufleet_messages": "gauge",
        "gpufleet_quota_used": "gauge",
        "gpufleet_quota_limit": "gauge",
    }


def test_the_router_page_has_these_families(tmp_path: Path) -> None:
    moment = RouterSnapshot(held={}, ready={}, known={}, excluded={}, certificate_ends=1.0)
    keys = ("requests", "failed", "replica_seconds", "input_tokens", "output_tokens", "unmetered")
    assert types(metrics(Meter(tmp_path / "log", tmp_path / "meter.json"), moment)) == {
        "gpufleet_held_requests": "gauge",
        "gpufleet_router_ready_replicas": "gauge",
        "gpufleet_router_replicas": "gauge",
        "gpufleet_router_excluded_replicas": "gauge",
        "gpufleet_router_problem": "gauge",
        "gpufleet_router_reloads_total": "counter",
        "gpufleet_router_certificate_end_timestamp_seconds": "gauge",
        "gpufleet_router_requests_total": "counter",
        "gpufleet_router_decisions_total": "counter",
        **{f"gpufleet_router_key_{key}_total": "counter" for key in keys},
        "gpufleet_router_answer_seconds": "histogram",
        "gpufleet_router_first_byte_seconds": "histogram",
    }


def test_the_daemon_page_has_these_families() -> None:
    began = datetime(2026, 11, 1, tzinfo=UTC)
    schedule = Schedule([Job(name="idle prod", every=timedelta(minutes=1), run=lambda: True)], lambda: began)
    text = Page(schedule=schedule, calls=Counter({"ec2:describe_instances": 3}), apply=True).metrics()
    assert types(text) == {
        "gpufleet_daemon_runs_total": "counter",
        "gpufleet_daemon_failures_total": "counter",
        "gpufleet_daemon_run_seconds_total": "counter",
        "gpufleet_daemon_skipped_total": "counter",
        "gpufleet_daemon_running": "gauge",
        "gpufleet_daemon_finished_timestamp_seconds": "gauge",
        "gpufleet_daemon_succeeded_timestamp_seconds": "gauge",
        "gpufleet_daemon_api_calls_total": "counter",
        "gpufleet_daemon_started_timestamp_seconds": "gauge",
    }
    job = {"watchdog": "idle", "fleet": "prod"}
    assert value(text, "gpufleet_daemon_runs_total", **job) == 0
    assert value(text, "gpufleet_daemon_finished_timestamp_seconds", **job) is None, "it has not run yet"
    assert value(text, "gpufleet_daemon_api_calls_total", operation="ec2:describe_instances") == 3
    assert value(text, "gpufleet_daemon_started_timestamp_seconds") == began.timestamp()


@pytest.mark.parametrize("name", ['a "quoted" pool', "back\\slash", "two\nlines", "umlaut \u00e4"])
def test_label_values_are_escaped(name: str) -> None:
    assert value(page([gauge("gpufleet_x", "Meaning.", [({"pool": name}, 1.5)])]), "gpufleet_x", pool=name) == 1.5


def test_a_counter_without_total_in_its_name_is_refused() -> None:
    with pytest.raises(ValueError, match="gpufleet_x: the name of a counter must end with _total"):
        counter("gpufleet_x", "Meaning.", [])
