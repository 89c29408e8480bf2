"""Recorded series, evaluated by promtool from exporters' series."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from hosts.monitoring.rules import POOL_ENGINES, RuleSettings, recording_group

HERE = 'environment="prod",pool="chat"'


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (make setup installs it)")
def test_engines_of_a_pool_are_counted_by_instance(tmp_path: Path) -> None:
    """Each instance counts once, however many series it has; the scale watchdog divides a queue by this number."""
    series = [("i-1", "a"), ("i-1", "b"), ("i-2", "a")]
    labels = f'job="engine",{HERE}'
    case = {
        "interval": "15s",
        "input_series": [
            {
                "series": f'gpufleet_engine_requests_running{{{labels},instance_id="{one}",model_name="{model}"}}',
                "values": "3x20",
            }
            for one, model in series
        ],
        "promql_expr_test": [
            {
                "expr": POOL_ENGINES,
                "eval_time": "3m",
                "exp_samples": [{"labels": f"{POOL_ENGINES}{{{HERE}}}", "value": 2}],
            }
        ],
    }
    rules = {"groups": [recording_group(RuleSettings())]}
    (tmp_path / "rules.yml").write_text(json.dumps(rules))
    test = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": [case]}
    (tmp_path / "test.yml").write_text(json.dumps(test))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
