"""Errors of settings describe the form of a text."""

from typing import Any

import pytest
from pydantic import BaseModel

from gpufleet.settings.document import FleetDocument
from gpufleet.settings.environment import Settings
from gpufleet.settings.expected import forms
from serving.router.policy import RouterPolicy


def patterns(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = {schema["pattern"]} if isinstance(schema.get("pattern"), str) else set[str]()
        return own.union(*map(patterns, schema.values()))
    return set[str]().union(*map(patterns, schema)) if isinstance(schema, list) else set()


@pytest.mark.parametrize("model", [Settings, FleetDocument, RouterPolicy])
def test_every_regular_expression_has_a_description(model: type[BaseModel]) -> None:
    found = patterns(model.model_json_schema())
    numbers = {one for one in found if one.startswith("^(?!^[-+.]*$)")}  # pydantic's own, for decimals
    assert found - numbers
    assert found - numbers <= forms().keys()
