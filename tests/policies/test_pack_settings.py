"""Tests of the sources of the pack's settings: the engine, a named file, or a refusal without settings."""

from pathlib import Path

import pytest

from policies.context import ContextError
from policies.settings import config_of

SETTINGS = "config:\n  aws:region: us-east-1\n  gpu-fleet:fleet:\n    cloud: aws\n    budget: {usd_per_month: '10'}\n"


def test_settings_of_the_engine_take_precedence_over_a_file(tmp_path: Path) -> None:
    assert config_of({"PULUMI_CONFIG": '{"a": "b"}', "GPUFLEET_SETTINGS": str(tmp_path)}) == {"a": "b"}


def test_a_named_file_is_read_as_the_engine_would_pass_it(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.aws-dev.yaml"
    path.write_text(SETTINGS)
    found = config_of({"GPUFLEET_SETTINGS": str(path)})
    assert found == {
        "aws:region": "us-east-1",
        "gpu-fleet:fleet": '{"cloud": "aws", "budget": {"usd_per_month": "10"}}',
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, "No such file", id="no such file"),
        pytest.param("a: [", "is not YAML", id="not YAML"),
        pytest.param("- 1", "expected a map, got a list", id="no map"),
        pytest.param("config: {aws:region: us-east-1}", "gpu-fleet:fleet", id="another project's"),
    ],
)
def test_a_file_without_settings_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "x.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ContextError, match=message):
        config_of({"GPUFLEET_SETTINGS": str(path)})


def test_missing_settings_are_refused() -> None:
    with pytest.raises(ContextError, match="set GPUFLEET_SETTINGS"):
        config_of({})
