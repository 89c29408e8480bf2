"""Runs operators' additions to the program through the real engine: policies refuse each, and one exception allows
each.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.stacks.engine import LIMIT_S, PROJECT, ROOT, Engine, make_engine

pytestmark = pytest.mark.slow

PACK = str(ROOT / "policies")
NOWHERE = "127.45"
"""No cloud answers at this address. A preview of a new stack needs none."""
PROGRAM = Path(__file__).with_name("programs") / "additions.py"
RULE = "resource-type-listed"
ADDED = {
    "aws-dev": {
        "bastion": "aws:ec2/instance:Instance",
        "logs": "aws:s3/bucket:Bucket",
        "name": "aws:route53/record:Record",
        "images": "aws:ecr/repository:Repository",
        # for the reference to another stack, which is only read
        "default": "pulumi:providers:pulumi",
    },
    "gcp-dev": {
        "bastion": "gcp:compute/instance:Instance",
        "logs": "gcp:storage/bucket:Bucket",
        "name": "gcp:dns/recordSet:RecordSet",
    },
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    made = make_engine(tmp_path_factory.mktemp("engine"), NOWHERE)
    (made.folder / "added").mkdir()
    (made.folder / "added" / "__main__.py").write_text(PROGRAM.read_text())
    (made.folder / "Pulumi.yaml").write_text(PROJECT.replace("main: stacks", "main: added"))
    return made


def judged(engine: Engine, stack: str) -> dict[str, Any]:
    """Return the result of `gpufleet policies check` for the same plan."""
    preview = engine.folder / "preview.json"
    shown = engine.run("preview", "--json", "--show-sames", "--stack", stack)
    preview.write_text(shown[: shown.rindex("}") + 1])
    settings = engine.folder / "config" / f"Pulumi.{stack}.yaml"
    command = ["-m", "cli.main", "policies", "check", str(preview), "--settings", str(settings), "--json"]
    done = subprocess.run(
        [str(engine.folder / ".venv" / "bin" / "python"), *command],
        env=engine.environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "stack", [pytest.param(one, marks=() if one == "aws-dev" else pytest.mark.long) for one in sorted(ADDED)]
)
def test_each_addition_needs_one_exception(engine: Engine, stack: str) -> None:
    config = engine.settings(stack)
    engine.run("stack", "select", stack, "--create")
    output = engine.run("preview", "--policy-pack", PACK, "--stack", stack, fails=True)
    for name, kind in ADDED[stack].items():
        assert f"{name} ({kind}): " in output
    found = judged(engine, stack)["violations"]
    assert all(f"{one['message']}. [{one['rule']}] " in output for one in found)
    assert output.count("- [mandatory]") == len(found)
    assert {(one["resource"], one["type"]) for one in found if one["rule"] == RULE} == set(ADDED[stack].items())

    config["config"]["gpu-fleet:fleet"].setdefault("policies", {})["exceptions"] = [
        {"rule": RULE, "type": kind, "resource": name, "owner": "ann", "reason": "wanted", "until": "2999-01-01"}
        for name, kind in ADDED[stack].items()
    ]
    engine.settings(stack, config)
    output = engine.run("preview", "--policy-pack", PACK, "--stack", stack)
    assert "❌" not in output
    found = judged(engine, stack)
    assert (found["violations"], len(found["exceptions"])) == ([], len(ADDED[stack]))
