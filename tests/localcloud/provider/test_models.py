"""Each modelled type against what the installed Pulumi package says about it."""

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
def test_an_input_is_updated_or_replaces_but_not_both(token: str) -> None:
    resource = AWS.resources[token]
    assert resource.force_new & resource.mutable == set()


@pytest.mark.parametrize("token", TYPES)
def test_enumerations_name_places_that_exist(schema: Schema, token: str) -> None:
    for path in AWS.resources[token].enums:
        assert _exists(schema, schema.resources[token].inputs, path), path


@pytest.mark.parametrize("token", TYPES)
def test_the_name_that_is_made_up_is_an_input(schema: Schema, token: str) -> None:
    naming = AWS.resources[token].naming
    if naming is not None:
        names = {naming.property} | ({naming.prefix_property} if naming.prefix_property else set[str]())
        assert names <= schema.resources[token].inputs.keys()


@pytest.mark.parametrize("token", TYPES)
def test_volatile_outputs_exist(schema: Schema, token: str) -> None:
    assert AWS.resources[token].volatile <= schema.resources[token].outputs


def test_a_schema_survives_its_file(schema: Schema, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    schema.save(path)
    assert Schema.load(path) == schema


def test_arguments_are_the_resources_own_where_a_nested_type_has_their_name() -> None:
    token = "aws:s3/bucketVersioning:BucketVersioning"
    assert read_wheel([token]).resources[token].inputs["versioningConfiguration"].required


def test_a_type_that_the_package_does_not_have() -> None:
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
