"""systemctl hangs, is missing or fails: a StepError, never an error that terminates the agent."""

from pathlib import Path

import pytest

from hosts.node.ports import StepError, UnitState
from hosts.node.systemd import Systemd


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, first on PATH; tests write its content."""
    program = tmp_path / "bin/systemctl"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", str(program.parent))
    return program


def write(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param("exec /bin/sleep 30", "not finished within 0 s", id="hangs"),
        pytest.param("echo 'Unit not found.' >&2; exit 5", "exit code 5: Unit not found.", id="refuses"),
        pytest.param(None, "systemctl: No such file", id="is not there"),
    ],
)
def test_errors_of_systemctl(systemctl: Path, tmp_path: Path, script: str | None, message: str) -> None:
    if script is not None:
        write(systemctl, script)
    units = Systemd(tmp_path, limit_s=0.3)
    for step in (units.start, units.stop, units.enable):
        with pytest.raises(StepError, match=message):
            step("engine.service")
    units.kill("engine.service")
    assert units.state("engine.service") is UnitState.UNKNOWN


def test_a_start_does_not_need_a_failure_to_reset(systemctl: Path, tmp_path: Path) -> None:
    write(systemctl, f'echo "$@" >> {tmp_path}/calls; [ "$1" != reset-failed ]')
    Systemd(tmp_path).start("engine.service")
    assert (tmp_path / "calls").read_text().splitlines() == [
        "reset-failed engine.service",
        "start --no-block engine.service",
    ]


def test_an_error_names_the_unit_that_cannot_be_written(systemctl: Path, tmp_path: Path) -> None:
    write(systemctl, "true")
    (tmp_path / "etc").write_text("no folder")
    with pytest.raises(StepError, match="engine.service: Not a directory"):
        Systemd(tmp_path).install("engine.service", "[Unit]\n")
