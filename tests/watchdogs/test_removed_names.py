"""The resolver of a watchdog's host gives up, and is back: a real Prometheus that is known by its name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.settings.document import render
from gpufleet.toolchain.folders import ROOT
from tests.chaos.names import make_names, url
from tests.chaos.preload import environment
from tests.fixtures import prometheus
from tests.fixtures.moto_account import moto_account
from tests.fixtures.networks import free_address
from tests.fixtures.watchdogs.plain import document

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, ("cc", "prometheus"))), reason="needs a C compiler and the package prometheus"
    ),
]


def test_an_unresolved_name_fails_the_pass_and_the_next_one_continues(tmp_path: Path) -> None:
    names, (host, port) = make_names(tmp_path), free_address()
    known = url(names, "prometheus", host, port)
    read = document(groups=[], watchdogs={"idle": {}}, target=0)
    places = {"prometheus_url": known, "ledger_url": f"sqlite:///{tmp_path}/ledger.db"}
    (tmp_path / "fleet.json").write_text(render(read.model_copy(update=places)))
    (tmp_path / "prometheus.yml").write_text("scrape_configs: [{job_name: engine}, {job_name: accelerator}]\n")
    with moto_account() as cloud, prometheus.running(tmp_path, f"{host}:{port}"):

        def watch() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "cli.main", "watch", "idle", "--fleet", str(tmp_path / "fleet.json")],
                cwd=ROOT,
                env=os.environ
                | environment([names])
                | {
                    "AWS_ENDPOINT_URL": cloud,
                    "AWS_ACCESS_KEY_ID": "local",
                    "AWS_SECRET_ACCESS_KEY": "local",
                    "AWS_REGION": "us-east-1",
                },
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )

        names.set(1)
        failed = watch()
        message = " ".join(failed.stderr.split())
        assert (failed.returncode, "Traceback" in message) == (1, False), message
        assert known in message and "Temporary failure in name resolution" in message
        assert "Nothing was changed." in message
        names.set(0)
        again = watch()
        assert again.returncode == 0, again.stdout + again.stderr
