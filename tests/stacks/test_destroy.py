"""A complete `up` of a shipped environment, policy checks of its state, and a `destroy` that stops at protected
resources.

`destroy` names the step that the docs describe. After that step it succeeds.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.networks import free_network
from tests.fixtures.stacks.engine import ROOT, Engine, embedded_cloud, make_engine

pytestmark = pytest.mark.slow

STACK = "aws-dev"
PROTECTED = ("aws:s3/bucket:Bucket", "aws:ebs/volume:Volume")


def test_protected_resources_stay_until_an_operator_unprotects_them(tmp_path: Path) -> None:
    network = free_network()
    with embedded_cloud(tmp_path / "cloud", network):
        engine = make_engine(tmp_path, network)
        config = engine.settings(STACK)
        fleet: dict[str, Any] = config["config"]["gpu-fleet:fleet"]
        fleet["account"] = "000000000000"
        fleet["network"] = {"kind": "made", "cidr": f"{network}.0.0/16"}
        for pool in fleet["pools"]:
            pool["target"] = pool["min"] = 0
        engine.settings(STACK, config)
        engine.client("ssm").put_parameter(Name="/gpu-fleet/dev/engine-key", Value="e" * 64, Type="SecureString")
        engine.run("stack", "init", STACK)
        # ARNs are known now, so policies can check what they could not check in the preview
        engine.run("up", "--yes", "--skip-preview", "--policy-pack", str(ROOT / "policies"), "--stack", STACK)
        bucket = fleet["bucket"]["name"]
        held = engine.client("s3").list_objects_v2(Bucket=bucket)["Contents"]
        assert {"fleet/fleet.json"} < {found["Key"] for found in held}, "the document, and the agent next to it"

        _judge_what_is_there(engine, config)

        refused = engine.run("destroy", "--yes", "--skip-preview", "--stack", STACK, fails=True)
        assert "pulumi state unprotect" in refused
        assert any(kind in refused for kind in PROTECTED)
        assert "pulumi state unprotect" in (ROOT / "docs" / "guides" / "remove-an-environment.md").read_text()
        assert bucket in {found["Name"] for found in engine.client("s3").list_buckets()["Buckets"]}

        engine.run("state", "unprotect", "--all", "--yes", "--stack", STACK)
        engine.run("destroy", "--yes", "--skip-preview", "--stack", STACK)
        assert bucket not in {found["Name"] for found in engine.client("s3").list_buckets()["Buckets"]}


def _judge_what_is_there(engine: Engine, config: dict[str, Any]) -> None:
    """Run `pulumi policy analyze` on the state. This command passes no stack settings, so the test sets them; the
    pack requires them.
    """
    analyze = ("policy", "analyze", "--policy-pack", str(ROOT / "policies"), "--stack", STACK)
    assert "GPUFLEET_SETTINGS" in engine.run(*analyze, fails=True)
    stricter = engine.folder / "stricter.yaml"
    changed = copy.deepcopy(config)
    changed["config"]["gpu-fleet:fleet"]["budget"] = {"usd_per_month": "10", "usd_per_hour_at_max": "1"}
    changed["config"]["gpu-fleet:fleet"]["policies"]["machine_types"] = ["g5.xlarge"]
    stricter.write_text(yaml.safe_dump(changed))
    engine.environment["GPUFLEET_SETTINGS"] = str(engine.folder / "config" / f"Pulumi.{STACK}.yaml")
    assert "❌" not in engine.run(*analyze)
    engine.environment["GPUFLEET_SETTINGS"] = str(stricter)
    output = engine.run(*analyze, fails=True)
    assert "machine-type-allowed" in output and "within-budget" in output
