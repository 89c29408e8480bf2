"""Policies and bindings of the shipped settings, for tests to change."""

import json
from dataclasses import replace
from typing import Any

from policies.context import Context, from_config
from policies.resource import Resource
from policies.rules import RULES
from tests.policies.test_rules import TODAY
from tests.stacks.settings_files import file

RULE = "iam-in-list"


def context_of(stack: str) -> Context:
    """That of a settings file, as the engine gives it."""
    return from_config({k: v if isinstance(v, str) else json.dumps(v) for k, v in file(stack).items()}, TODAY)


AWS, GCP = context_of("aws-prod"), context_of("gcp-prod")


def said(kind: str, props: dict[str, Any], context: Context, name: str = "it") -> list[str]:
    """What the rule says of one resource before it is made, as people read it."""
    (rule,) = (replace(rule, of_all=None) for rule in RULES if rule.id == RULE)
    return [v.sentence for v in rule.check([Resource(type=kind, name=name, props=props)], context)]
