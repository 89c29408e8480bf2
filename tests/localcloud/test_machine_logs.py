"""The output of a machine's units is in the journal, as under systemd."""

import os
import sys
from pathlib import Path

import pytest
from localcloud.machines import processes

SHOWS = "import os, sys; from gpufleet import logs; print(logs.is_journal(sys.stderr, os.environ))"


@pytest.mark.parametrize("journal", [True, False])
def test_output_of_a_unit_is_in_the_journal_and_that_of_user_data_is_not(tmp_path: Path, *, journal: bool) -> None:
    log = tmp_path / "unit.log"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    pid = processes.spawn([sys.executable, "-c", SHOWS], environment, tmp_path, log, journal=journal)
    assert os.waitpid(pid, 0)[1] == 0, log.read_text()
    assert log.read_text() == f"{journal}\n"
