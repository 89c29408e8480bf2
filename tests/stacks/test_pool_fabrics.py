"""Tests that each pool has its own EFA group, because EFA opens every port among the machines of a group."""

from pathlib import Path
from typing import Any

import yaml

from gpufleet.toolchain.folders import ROOT
from tests.fixtures.fakes import RecordingMocks
from tests.fixtures.stacks.running import run


def test_pools_with_efa_do_not_reach_each_other(mocks: RecordingMocks, tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.aws-local.yaml"
    document = yaml.safe_load((ROOT / "stacks" / "config" / path.name).read_text())
    pools: list[dict[str, Any]] = document["config"]["gpu-fleet:fleet"]["pools"]
    fast = pools[1]
    fast["network"] = "efa"
    fast["capacity"]["spot"]["machine_types"] = ["g6.8xlarge", "g5.8xlarge"]
    pools.append({**fast, "name": "other"})
    path.write_text(yaml.safe_dump(document))
    run(path, mocks)

    groups = {
        template.name.split("-")[0]: {
            group for card in template.inputs["networkInterfaces"] for group in card["securityGroups"]
        }
        for template in mocks.of_type("aws:ec2/launchTemplate:LaunchTemplate")
        if template.name.startswith((fast["name"], "other"))
    }
    shared = groups[fast["name"]] & groups["other"]
    assert shared == {"gpu-fleet-local-instances-id"}
    assert groups["other"] - shared == {"gpu-fleet-local-fabric-other-id"}
    for rule in mocks.of_type("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"):
        to, source = rule.inputs["securityGroupId"], rule.inputs.get("referencedSecurityGroupId")
        if "-fabric-" in to:
            assert source == to, "its own members alone"
        elif to in shared:
            assert source == "gpu-fleet-local-control-id"
