"""The selected cloud of the local stack, stored between commands."""

from pathlib import Path

import pytest
from localcloud.lifecycle.environment import settings_of
from localcloud.lifecycle.selected_cloud import FLEET_URLS, choose, chosen, stack_of

from gpufleet.domain.model import Cloud
from gpufleet.toolchain.folders import ROOT, Folders


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(root=tmp_path, cache=tmp_path / "cache")


def test_aws_is_selected_by_default(folders: Folders) -> None:
    assert chosen(folders) is Cloud.AWS
    choose(folders, Cloud.GCP)
    assert chosen(folders) is Cloud.GCP
    (folders.run / "chosen-cloud").write_text("azure\n")
    assert chosen(folders) is Cloud.AWS


@pytest.mark.parametrize("cloud", Cloud)
def test_shell_uses_the_fleet_of_the_selected_cloud(folders: Folders, cloud: Cloud) -> None:
    choose(folders, cloud)
    settings = settings_of(folders, Path("/opt/pulumi/bin/pulumi"))
    assert settings["GPUFLEET_FLEET"] == FLEET_URLS[cloud]
    other = next(one for one in Cloud if one is not cloud)
    assert settings_of(folders, Path("/opt/pulumi/bin/pulumi"), other)["GPUFLEET_FLEET"] == FLEET_URLS[other]


@pytest.mark.parametrize("cloud", Cloud)
def test_every_cloud_has_settings_for_its_local_stack(cloud: Cloud) -> None:
    config = ROOT / "stacks" / "config" / f"Pulumi.{stack_of(cloud)}.yaml"
    bucket = FLEET_URLS[cloud].split("/")[2]
    assert bucket in config.read_text()
