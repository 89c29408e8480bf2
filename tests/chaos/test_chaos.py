"""A short chaos run: some faults of `make chaos` in the order of one seed, then the checks."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpufleet.toolchain.folders import ROOT
from tests.chaos.faults import BY_NAME
from tests.chaos.run import run_faults
from tests.fixtures.networks import free_network

SEED = 20261121
SHORT = (
    "spot loss of a whole zone",
    "control host restarted",
    "watchdogs restarted",
    "Prometheus down",
    "ledger locked",
    "ledger's disk full",
    "a throttled cloud API",
    "a second watchdog",
)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(
    not all(map(shutil.which, ("prometheus", "prometheus-alertmanager"))),
    reason="needs the Debian packages prometheus and prometheus-alertmanager",
)
def test_the_fleet_survives_a_bad_day(tmp_path: Path) -> None:
    verdicts = run_faults(tmp_path, free_network(), SEED, faults=[BY_NAME[name] for name in SHORT], announce=print)
    assert {verdict.what: verdict.wrong for verdict in verdicts if verdict.wrong} == {}


@pytest.mark.slow
def test_make_accepts_a_fault_name_with_quotes() -> None:
    output = subprocess.run(
        ["make", "-o", "setup", "chaos", 'FAULT=a user\'s "fault"', "MINUTES=0"],
        cwd=ROOT,
        env=os.environ | {"MAKEFLAGS": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    ).stderr
    assert "invalid choice: 'a user\\'s \"fault\"'" in output, output
