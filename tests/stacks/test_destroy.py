"""`pulumi destroy` stops at what is protected and names the step that the docs describe; after it, it goes on."""

from pathlib import Path
from typing import Any

import pytest

from tests.networks import free_network
from tests.stacks.engine import ROOT, embedded_cloud, make_engine

pytestmark = pytest.mark.slow

STACK = "aws-dev"
PROTECTED = ("aws:s3/bucket:Bucket", "aws:ebs/volume:Volume")


def test_what_is_protected_stays_until_somebody_unprotects_it(tmp_path: Path) -> None:
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
        engine.client("ssm").put_parameter(Name="/gpu-fleet/dev/agent-token", Value="x" * 32, Type="SecureString")
        engine.run("stack", "init", STACK)
        engine.run("up", "--yes", "--skip-preview", "--stack", STACK)
        bucket = fleet["bucket"]["name"]
        held = engine.client("s3").list_objects_v2(Bucket=bucket)["Contents"]
        assert {"fleet/fleet.json"} < {found["Key"] for found in held}, "the document, and the agent beside it"

        refused = engine.run("destroy", "--yes", "--skip-preview", "--stack", STACK, fails=True)
        assert "pulumi state unprotect" in refused
        assert any(kind in refused for kind in PROTECTED)
        assert "pulumi state unprotect" in (ROOT / "docs" / "security.md").read_text()
        assert bucket in {found["Name"] for found in engine.client("s3").list_buckets()["Buckets"]}

        engine.run("state", "unprotect", "--all", "--yes", "--stack", STACK)
        engine.run("destroy", "--yes", "--skip-preview", "--stack", STACK)
        assert bucket not in {found["Name"] for found in engine.client("s3").list_buckets()["Buckets"]}
