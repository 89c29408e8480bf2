"""JSON Schema of settings as users write them: durations such as `30m`, and the meaning of each field."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from gpufleet.domain import durations


class SettingsSchema(GenerateJsonSchema):
    """Generates the schema for `model_json_schema(schema_generator=…)`."""

    def encode_default(self, dft: Any) -> Any:
        return durations.render(dft) if isinstance(dft, timedelta) else super().encode_default(dft)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _described(super().dataclass_schema(schema), schema["cls"])


def _described(found: JsonSchemaValue, owner: type) -> JsonSchemaValue:
    meanings = {name: text for base in reversed(owner.__mro__) for name, text in _meanings(base).items()}
    properties = {
        name: {**form, "description": meanings[name]} if name in meanings else form
        for name, form in found.get("properties", {}).items()
    }
    return {**found, "properties": properties}


def _meanings(owner: type) -> Mapping[str, str]:
    """Field -> the docstring below it."""
    module = inspect.getmodule(owner)
    return {} if module is None or not module.__name__.startswith("gpufleet.") else _of_module(module)[owner.__name__]


@cache
def _of_module(module: ModuleType) -> Mapping[str, Mapping[str, str]]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: dict(_docstrings(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _docstrings(owner: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(owner.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            text = below.value.value if isinstance(below.value, ast.Constant) else None
            if isinstance(text, str):
                yield field.target.id, " ".join(text.split())
