"""The agent reads the settings that user data writes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from serving.instance_settings import InstanceSettingsError, load, to_json
from tests.fixtures import signing
from tests.fixtures.node.settings import WRITTEN, written


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "instance.json"
    file.write_text(json.dumps(written()))
    read = load(file)
    assert (read.environment, read.cloud, read.pool, read.capacity_type) == ("local", "aws", "chat", "spot")
    assert (read.engine.args, read.engine.env) == (WRITTEN.engine.args, WRITTEN.engine.env)
    assert read.drain_deadline == WRITTEN.drain_deadline
    assert read.boot_limits.cache == WRITTEN.boot_limits.cache
    assert (read.engine_key, read.order_keys) == (WRITTEN.engine_key, WRITTEN.order_keys)


@pytest.mark.parametrize("image", [None, "n@sha256:2"], ids=["none: as earlier stacks write it", "an image"])
def test_a_node_exporter_is_optional(tmp_path: Path, image: str | None) -> None:
    file = tmp_path / "instance.json"
    written_settings = to_json(replace(WRITTEN, node_exporter_image=image))
    file.write_text(json.dumps(written_settings))
    assert ("node_exporter_image" in written_settings) == (image is not None)
    assert load(file).node_exporter_image == image


@pytest.mark.parametrize("version", [None, "0.16.0"], ids=["none: as earlier stacks write it", "a release"])
def test_a_release_of_the_engine_is_optional(tmp_path: Path, version: str | None) -> None:
    file = tmp_path / "instance.json"
    written_settings = to_json(replace(WRITTEN, engine=replace(WRITTEN.engine, version=version)))
    file.write_text(json.dumps(written_settings))
    assert ("version" in written_settings["engine"]) == (version is not None)
    assert load(file).engine.version == version


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        pytest.param("version", 2, "version", id="another version"),
        pytest.param("pool", None, "pool", id="no text"),
        pytest.param("capacity_type", "cheap", "cheap", id="no capacity type"),
        pytest.param("node_exporter_image", 7, "node_exporter_image", id="a number for an image"),
        pytest.param("drain_deadline_s", "90", "drain_deadline_s", id="a text for seconds"),
        pytest.param("drain_margin_s", -1, "drain_margin_s", id="negative"),
        pytest.param("power_off_after_s", True, "power_off_after_s", id="a yes"),
        pytest.param("boot_limits_s", {"disks": 1}, "cache", id="a limit is missing"),
        pytest.param("order_keys", [], "order_keys", id="no key for orders"),
        pytest.param("order_keys", "MII", "order_keys", id="a text for keys"),
        pytest.param("order_keys", ["MII"], "order_keys", id="not a key"),
        pytest.param("order_keys", [signing.key().public.text] * 3, "order_keys", id="three keys"),
        pytest.param("engine", {"kind": "llama", "image": "x", "args": [], "env": {}}, "llama", id="no engine"),
    ],
)
def test_an_invalid_value_is_named(tmp_path: Path, field: str, value: object, message: str) -> None:
    file = tmp_path / "instance.json"
    file.write_text(json.dumps({**written(), field: value}))
    with pytest.raises(InstanceSettingsError, match=message) as caught:
        load(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", [None, "", "[]", "{"], ids=["no file", "empty", "a list", "cut"])
def test_an_invalid_file_is_an_error_that_names_it(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "instance.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InstanceSettingsError, match=r"instance\.json"):
        load(file)
