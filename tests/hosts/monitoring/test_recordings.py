"""Recorded series, evaluated by promtool from exporters' series."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hosts.monitoring.rules import RuleSettings, recording_group
from serving.recorded import POOL_ENGINES, POOL_RUNNING, POOL_WAITING

HERE = 'environment="prod",pool="chat"'


pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (make setup installs it)"
)


def test_engines_of_a_pool_are_counted_by_instance(tmp_path: Path) -> None:
    """Each instance counts once, however many series it has; the scale watchdog divides a queue by this number."""
    labels = f'job="engine",{HERE}'
    series = {
        f'gpufleet_engine_requests_running{{{labels},instance_id="{one}",model_name="{model}"}}': "3x20"
        for one, model in [("i-1", "a"), ("i-1", "b"), ("i-2", "a")]
    }
    _evaluate(tmp_path, series, {POOL_ENGINES: 2})


def test_load_is_the_count_of_the_gate_where_gauges_keep_their_last_values(tmp_path: Path) -> None:
    """i-1 has gauges that prove its load, i-2 and i-3 have not; the engine of i-3 does not answer."""
    series = dict[str, str]()
    for instance, evidence in (("i-1", ""), ("i-2", ',evidence="none"')):
        for name in ("running", "waiting"):
            labels = f'job="engine",{HERE},instance_id="{instance}"{evidence}'
            series[f"gpufleet_engine_requests_{name}{{{labels}}}"] = "7x20"
    for instance, answers in (("i-1", 1), ("i-2", 1), ("i-3", 0)):
        series[f'up{{job="engine",{HERE},instance_id="{instance}"}}'] = f"{answers}x20"
        series[f'gpufleet_node_engine_requests{{job="node",{HERE},instance_id="{instance}"}}'] = "2x20"
    _evaluate(tmp_path, series, {POOL_RUNNING: 9, POOL_WAITING: 7, POOL_ENGINES: 2})


def test_load_is_unknown_with_neither_a_gate_nor_gauges_that_prove_it(tmp_path: Path) -> None:
    labels = f'job="engine",{HERE},instance_id="i-1",evidence="none"'
    series = {f"gpufleet_engine_requests_{name}{{{labels}}}": "7x20" for name in ("running", "waiting")}
    series[f'up{{job="engine",{HERE},instance_id="i-1"}}'] = "1x20"
    _evaluate(tmp_path, series, {POOL_RUNNING: None, POOL_WAITING: None, POOL_ENGINES: None})


def _evaluate(folder: Path, series: Mapping[str, str], expected: Mapping[str, float | None]) -> None:
    """Compare recorded series of the pool after three minutes; None: no series."""
    case: dict[str, Any] = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": name,
                "eval_time": "3m",
                "exp_samples": [] if value is None else [{"labels": f"{name}{{{HERE}}}", "value": value}],
            }
            for name, value in expected.items()
        ],
    }
    rules = {"groups": [recording_group(RuleSettings())]}
    (folder / "rules.yml").write_text(json.dumps(rules))
    test = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": [case]}
    (folder / "test.yml").write_text(json.dumps(test))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
