"""The setting that divides the waiting times of both embedded clouds."""

from datetime import timedelta
from pathlib import Path

import pytest
from localcloud.lifecycle.environment import local_environment
from localcloud.time_scale import FAST, VARIABLE, of_environment

from gpufleet.toolchain.folders import Folders

MINUTE = timedelta(minutes=1)


def test_waiting_times_are_those_of_the_real_clouds_unless_the_setting_divides_them() -> None:
    assert of_environment({}).shorten(MINUTE) == MINUTE
    assert of_environment({VARIABLE: "240"}).shorten(MINUTE) == timedelta(seconds=0.25)


@pytest.mark.parametrize("written", ["", "fast", "0", "-4", "0.5", "inf", "nan"])
def test_invalid_setting_is_refused_by_its_name(written: str) -> None:
    with pytest.raises(ValueError, match=f"{VARIABLE} is '{written}'; it must be a number from 1"):
        of_environment({VARIABLE: written})


def test_local_up_passes_the_setting_on(tmp_path: Path) -> None:
    folders = Folders(root=tmp_path, cache=tmp_path)
    assert local_environment(folders, tmp_path / "pulumi", {"GPUFLEET_LEDGER": "x", **FAST})[VARIABLE] == "4"
    assert "GPUFLEET_LEDGER" not in local_environment(folders, tmp_path / "pulumi", {"GPUFLEET_LEDGER": "x"})
