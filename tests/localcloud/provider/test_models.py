"""Each modelled type compared with the schema of the installed Pulumi package."""

from __future__ import annotations

from pathlib import Path

import pytest
from localcloud.provider.aws.package import PACKAGE as AWS
from localcloud.provider.schema import Property, Schema, read_wheel

TYPES = sorted(AWS.resources)


@pytest.fixture(scope="module")
def schema() -> Schema:
    return read_wheel(AWS.resources)


@pytest.mark.parametrize("token", TYPES)
def test_every_modelled_input_exists_in_the_package(schema: Schema, token: str) -> None:
    resource = AWS.resources[token]
    own = resource.force_new | resource.mutable | ({"tags"} if resource.tagged else set[str]())
    assert own <= schema.resources[token].inputs.keys()


@pytest.mark.parametrize("token", TYPES)
def test_every_required_input_is_modelled(schema: Schema, token: str) -> None:
    required = {n for n, p in schema.resources[token].inputs.items() if p.required}
    assert required <= AWS.resources[token].modelled


@pytest.mark.parametrize("token", TYPES)
def test_input_is_updated_or_replaces_but_not_both(token: str) -> None:
    resource = AWS.resources[token]
    assert resource.force_new & resource.mutable == set()


@pytest.mark.parametrize("token", TYPES)
def test_enumerations_name_existing_inputs(schema: Schema, token: str) -> None:
    for path in AWS.resources[token].enums:
        assert _exists(schema, schema.resources[token].inputs, path), path


@pytest.mark.parametrize("token", TYPES)
def test_generated_name_is_an_input(schema: Schema, token: str) -> None:
    naming = AWS.resources[token].naming
    if naming is not None:
        names = {naming.property} | ({naming.prefix_property} if naming.prefix_property else set[str]())
        assert names <= schema.resources[token].inputs.keys()


@pytest.mark.parametrize("token", TYPES)
def test_volatile_outputs_exist(schema: Schema, token: str) -> None:
    assert AWS.resources[token].volatile <= schema.resources[token].outputs


def test_saved_schema_is_loaded_unchanged(schema: Schema, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    schema.save(path)
    assert Schema.load(path) == schema


def test_inputs_are_of_the_resource_and_not_of_a_nested_type_with_its_name() -> None:
    token = "aws:s3/bucketVersioning:BucketVersioning"
    assert read_wheel([token]).resources[token].inputs["versioningConfiguration"].required


def test_type_missing_in_the_package_is_an_error() -> None:
    with pytest.raises(LookupError, match="not in the installed pulumi_aws"):
        read_wheel(["aws:ec2/launchTemplate:Missing"])


def _exists(schema: Schema, inputs: object, path: str) -> bool:
    properties = dict(inputs) if isinstance(inputs, dict) else {}
    head, _, rest = path.partition(".")
    found = properties.get(head.removesuffix("[*]"))
    if not isinstance(found, Property):
        return False
    shape = found.shape.item if head.endswith("[*]") else found.shape
    if shape is None:
        return False
    return not rest or _exists(schema, dict(schema.objects[shape.object or ""]), rest)
