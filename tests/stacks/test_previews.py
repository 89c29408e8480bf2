"""Previews every shipped environment with the real engine and the policy pack, before any resource exists."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gpufleet.prices.plan.preview import parse
from policies.context import from_config
from policies.pack import check
from policies.preview import resources_of
from policies.settings import FROM_FILE, config_of
from tests.fixtures.stacks.engine import ROOT, Engine, make_engine

pytestmark = pytest.mark.slow

PACK = str(ROOT / "policies")
NOWHERE = "127.44"
"""No cloud answers at this address. A preview of a new stack needs none."""


STACKS = [f"{cloud}-{environment}" for cloud in ("aws", "gcp") for environment in ("local", "dev", "staging", "prod")]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return make_engine(tmp_path_factory.mktemp("engine"), NOWHERE)


@pytest.mark.parametrize("stack", STACKS)
def test_the_policy_pack_allows_the_shipped_settings(engine: Engine, stack: str) -> None:
    engine.settings(stack)
    engine.run("stack", "select", stack, "--create")
    output = engine.run("preview", "--json", "--show-sames", "--policy-pack", PACK, "--stack", stack)
    plan = output[: output.rindex("}") + 1]
    assert json.loads(plan)["changeSummary"]["create"] > 1
    # the same check without the engine
    config = config_of({FROM_FILE: str(engine.folder / "config" / f"Pulumi.{stack}.yaml")})
    found = check(resources_of(parse(plan)), from_config(config, datetime.now(UTC).date()))
    assert [rule.message(violation) for rule, violation in found] == []


def with_other_machine_type(fleet: dict[str, Any]) -> None:
    fleet["policies"]["machine_types"] = ["g5.xlarge"]


def with_low_budget(fleet: dict[str, Any]) -> None:
    fleet["budget"] = {"usd_per_month": "10", "usd_per_hour_at_max": "1"}


def in_one_zone(fleet: dict[str, Any]) -> None:
    spot = fleet["pools"][0]["capacity"]["spot"]
    spot["zones"] = spot["zones"][:1]


def wide_clients(fleet: dict[str, Any]) -> None:
    # each network alone could belong to one company
    fleet["control"]["client_networks"] = ["8.0.0.0/8", "9.0.0.0/8"]


@pytest.mark.parametrize(
    ("stack", "change", "rule"),
    [
        pytest.param("aws-dev", with_other_machine_type, "machine", id="machine type"),
        pytest.param("aws-dev", with_low_budget, "within-budget", id="budget"),
        pytest.param("aws-prod", in_one_zone, "spot-spread", id="spot in one zone, AWS"),
        pytest.param("gcp-prod", in_one_zone, "spot-spread", id="spot in one zone, Google Cloud"),
        pytest.param("aws-dev", wide_clients, "33,554,432 public addresses", id="two networks together, AWS"),
        pytest.param(
            "gcp-dev", wide_clients, "33,554,432 public addresses", id="two networks together, Google Cloud"
        ),
    ],
)
def test_the_policy_pack_refuses_violations_of_the_environment(
    engine: Engine, stack: str, change: Any, rule: str
) -> None:
    config = engine.settings(stack)
    change(config["config"]["gpu-fleet:fleet"])
    other = engine.folder / "changed.yaml"
    other.write_text(json.dumps(config))
    engine.run("stack", "select", stack, "--create")
    output = engine.run("preview", "--policy-pack", PACK, "--stack", stack, "--config-file", str(other), fails=True)
    assert rule in output
    assert "❌" in output
