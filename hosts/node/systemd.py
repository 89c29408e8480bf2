"""Controls systemd units with `systemctl`."""

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpufleet.domain.files import write_atomically
from hosts.node.ports import StepError, UnitState

_LIMIT_S = 120


def run(command: Sequence[str], limit_s: float = _LIMIT_S) -> str:
    """Run a command and return its stdout. Raises StepError with the last line of its error output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except OSError as error:
        raise StepError(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise StepError(f"{' '.join(command)}: not finished within {limit_s:.0f} s") from error
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise StepError(f"{' '.join(command)}: exit code {done.returncode}: {output[-1] if output else 'no output'}")
    return done.stdout


class Systemd:
    """The machine's systemd. `root` is the prefix of all paths."""

    def __init__(self, root: Path, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        self._folder = root / "etc/systemd/system"

    def install(self, name: str, text: str) -> bool:
        """Write a unit. True if its text changed. Raises StepError."""
        path = self._folder / name
        try:
            if path.is_file() and path.read_text("utf-8") == text:
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        except OSError as error:
            raise StepError(f"the unit cannot be written to {path}: {error.strerror}") from error
        self._run(["systemctl", "daemon-reload"])
        return True

    def enable(self, name: str) -> None:
        """Enable a unit: the machine starts it at each boot."""
        self._run(["systemctl", "enable", name])

    def start(self, name: str) -> None:
        """Start a unit, even after it reached its start limit."""
        with suppress(StepError):
            self._run(["systemctl", "reset-failed", name])
        self._run(["systemctl", "start", "--no-block", name])

    def stop(self, name: str) -> None:
        """Request the stop of a unit and return immediately."""
        self._run(["systemctl", "stop", "--no-block", name])

    def kill(self, name: str) -> None:
        """Kill all processes of a unit now. If systemctl refuses, there are no processes left."""
        with suppress(StepError):
            self._run(["systemctl", "kill", "--signal=SIGKILL", name])

    def state(self, name: str) -> UnitState:
        """Return the ActiveState of a unit; UNKNOWN if systemd does not answer."""
        try:
            done = subprocess.run(
                ["systemctl", "is-active", name], capture_output=True, text=True, timeout=self._limit_s, check=False
            )
            return UnitState(done.stdout.strip() or "unknown")
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return UnitState.UNKNOWN

    def _run(self, command: Sequence[str]) -> None:
        run(command, self._limit_s)
