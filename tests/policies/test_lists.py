"""Tests that the lists of the policy pack match the program."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from policies.context import Context, from_config
from policies.pack import RULES, check
from policies.resource import UNKNOWN, Resource
from scripts.policy_lists import __main__ as lists
from scripts.policy_lists import resource_types
from scripts.policy_lists.matrix import ROOT
from scripts.policy_lists.program import Program, run


@pytest.mark.parametrize("name", sorted(lists.LISTS))
def test_a_list_is_what_the_program_makes(name: str) -> None:
    written = (lists.FOLDER / name).read_text("utf-8")
    assert written == lists.texts()[name], "run `python -m scripts.policy_lists`"


def test_code_that_no_settings_reach_is_reported() -> None:
    program = run()
    groups = frozenset(line for line in program.lines if line[0] != "components/aws/gpu_pool.py")
    with pytest.raises(resource_types.IncompleteError, match=r"components/aws/gpu_pool.py:\d+: CapacityReservation"):
        resource_types.of(Program(plans=program.plans, lines=groups))


def test_a_type_that_no_settings_create_is_reported() -> None:
    program = run()
    without = [
        (config, tuple(r for r in made if r.type != "gcp:compute/reservation:Reservation"))
        for config, made in program.plans
    ]
    with pytest.raises(resource_types.IncompleteError, match=r"gpu_pool.py:\d+: gcp:compute/reservation:Reservation"):
        resource_types.of(Program(plans=without, lines=program.lines))


SHIPPED = sorted(path.stem.removeprefix("Pulumi.") for path in (ROOT / "stacks" / "config").glob("Pulumi.*.yaml"))


def test_the_shipped_settings_pass_without_exceptions() -> None:
    plans = run().plans[: len(SHIPPED)]
    assert [config["gpu-fleet:fleet"]["environment"] for config, _ in plans] == [s.split("-")[1] for s in SHIPPED]
    for config, made in plans:
        assert messages(made, context_of(config)) == []


def test_every_plan_of_the_program_passes_except_for_environment_limits() -> None:
    for config, made in run().plans[len(SHIPPED) :]:
        unlimited = replace(
            context_of(config),
            environment="dev",
            allowed_machine_types=None,
            usd_per_month=None,
            usd_per_hour_at_max=None,
        )
        assert messages(made, unlimited) == []


def test_unknown_values_of_the_program_pass() -> None:
    """A preview knows no value that depends on another resource."""
    (rule,) = (rule for rule in RULES if rule.id == "iam-in-list")
    for config, made in run().plans:
        seen = [replace(r, props={k: UNKNOWN if r.depends.get(k) else v for k, v in r.props.items()}) for r in made]
        assert [rule.message(violation) for violation in rule.check(seen, context_of(config))] == []


def context_of(config: Mapping[str, Any]) -> Context:
    engines = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
    return from_config(engines, datetime.now(UTC).date())


def messages(resources: Sequence[Resource], context: Context) -> list[str]:
    return [rule.message(violation) for rule, violation in check(resources, context)]
