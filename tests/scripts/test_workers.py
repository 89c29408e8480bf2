"""Tests the interruption of parallel test workers."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpufleet.toolchain.folders import ROOT

END_S = 13
"""Seconds that the test's servers need to stop. xdist kills its workers after 10 s."""
CONFTEST = "from tests.conftest import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler\n"
TEST = """
import time
from pathlib import Path

def test_it():
    here = Path(__file__)
    here.with_suffix(".up").touch()
    try:
        time.sleep(600)
    finally:
        time.sleep({end_s})
        here.with_suffix(".ended").touch()
"""


def environment() -> dict[str, str]:
    """Of a pytest that is not part of this one."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return ours | {"PYTHONPATH": str(ROOT)}


@pytest.mark.slow
def test_ctrl_c_lets_every_worker_clean_up(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(TEST.format(end_s=END_S))
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        limit = time.monotonic() + 180
        while len(list(tmp_path.glob("*.up"))) < 2 and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        printed, _ = process.communicate(timeout=180)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, printed
    assert len(list(tmp_path.glob("*.ended"))) == 2, printed
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_failed_test_is_named_before_the_next_one_starts(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_configure as pytest_configure\n")
    (tmp_path / "test_one.py").write_text("def test_a():\n    assert 1 == 2\n\n\ndef test_b():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    lines = done.stdout.splitlines()
    named = lines.index("failed: test_one.py::test_a (call)")
    assert lines[named + 1].split() == ["E", "assert", "1", "==", "2"]
    assert named < next(number for number, line in enumerate(lines) if line.startswith("test_one.py::test_b"))
