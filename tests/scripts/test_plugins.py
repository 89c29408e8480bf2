"""Tests that an operator installs Pulumi's provider with its SHA-256, and Pulumi never installs it automatically."""

from pathlib import Path

import pytest
from localcloud.provider.install import plugin_version

from gpufleet.toolchain.folders import ROOT
from scripts.plugins import missing


@pytest.mark.parametrize("stack", ["aws-prod", "organisation/gpu-fleet/gcp-dev"])
def test_a_missing_provider_is_reported_with_installation_steps(tmp_path: Path, stack: str) -> None:
    name = stack.rsplit("/", 1)[-1][:3]
    version = plugin_version(name)
    message = missing(stack, {"PULUMI_HOME": str(tmp_path)})
    assert f"pulumi plugin install resource {name} {version} --checksum SHA256" in message
    assert f"https://github.com/pulumi/pulumi-{name}/releases/tag/v{version}" in message
    (tmp_path / "plugins" / f"resource-{name}-v{version}").mkdir(parents=True)
    assert missing(stack, {"PULUMI_HOME": str(tmp_path)}) == ""


def test_the_embedded_stacks_bring_their_own(tmp_path: Path) -> None:
    assert missing("aws-local", {"PULUMI_HOME": str(tmp_path)}) == ""


def test_the_makefile_asks_before_each_command_that_needs_one() -> None:
    text = (ROOT / "Makefile").read_text()
    for target in ("preview", "up", "destroy"):
        recipe = text.partition(f"\n{target}: setup\n")[2].partition("\n\n")[0]
        assert "$(plugins)" in recipe, target
    assert "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION=true" in text
