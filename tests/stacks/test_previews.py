"""Every shipped environment goes through the real engine and the policy pack, before anything is made."""

import json
from typing import Any

import pytest

from tests.stacks.engine import ROOT, Engine, make_engine

pytestmark = pytest.mark.slow

PACK = str(ROOT / "policies")
NOWHERE = "127.44"
"""No cloud answers there: a preview of a new stack asks none."""


STACKS = [f"{cloud}-{environment}" for cloud in ("aws", "gcp") for environment in ("local", "dev", "staging", "prod")]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return make_engine(tmp_path_factory.mktemp("engine"), NOWHERE)


@pytest.mark.parametrize("stack", STACKS)
def test_the_policy_pack_lets_the_shipped_settings_pass(engine: Engine, stack: str) -> None:
    engine.settings(stack)
    engine.run("stack", "select", stack, "--create")
    said = engine.run("preview", "--policy-pack", PACK, "--stack", stack)
    assert "to create" in said
    assert "❌" not in said


def opened(fleet: dict[str, Any]) -> None:
    fleet["policies"]["machine_types"] = ["g5.xlarge"]


def dear(fleet: dict[str, Any]) -> None:
    fleet["budget"] = {"usd_per_month": "10", "usd_per_hour_at_max": "1"}


@pytest.mark.parametrize(
    ("change", "rule"),
    [pytest.param(opened, "machine", id="machine type"), pytest.param(dear, "within-budget", id="budget")],
)
def test_the_policy_pack_refuses_what_the_environment_does_not_allow(engine: Engine, change: Any, rule: str) -> None:
    stack = "aws-dev"
    config = engine.settings(stack)
    change(config["config"]["gpu-fleet:fleet"])
    other = engine.folder / "changed.yaml"
    other.write_text(json.dumps(config))
    engine.run("stack", "select", stack, "--create")
    said = engine.run("preview", "--policy-pack", PACK, "--stack", stack, "--config-file", str(other), fails=True)
    assert rule in said
    assert "❌" in said
