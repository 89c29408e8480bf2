"""Output, commands with a time limit, and errors of setup."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

HEARTBEAT_S: Final = 15.0


class SetupError(Exception):
    """Setup cannot continue. The message contains the error and the remedy."""


def announce(text: str) -> None:
    """Print one line to the terminal."""
    print(text, file=sys.stderr, flush=True)


def run(
    command: Sequence[str],
    *,
    doing: str,
    log: Path,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run a command with its output in `log`. Regularly reports that it is still running.

    Terminates the whole process group after the time limit or when setup is interrupted. Raises SetupError with the
    end of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            cwd=cwd,
            start_new_session=True,
        )
        try:
            code = _wait(process, doing, limit_s, log)
        except BaseException:
            _end_group(process)
            raise
    if code:
        raise SetupError(f"{doing} failed (exit {code}). The end of {log}:\n{tail(log)}")


def _wait(process: subprocess.Popen[bytes], doing: str, limit_s: float, log: Path) -> int:
    began = time.monotonic()
    while True:
        try:
            return process.wait(HEARTBEAT_S)
        except subprocess.TimeoutExpired:
            passed = time.monotonic() - began
            if passed > limit_s:
                raise SetupError(f"{doing} took longer than {limit_s:.0f} s and was ended") from None
            # the last line shows whether the command waits for a lock or makes progress
            last = tail(log, 1).strip()[:100]
            announce(f"      … still {doing} ({passed:.0f} s){f': {last}' if last else ''}")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log, indented."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


def output_of(
    command: Sequence[str], limit_s: float = 20, environment: Mapping[str, str] | None = None
) -> str | None:
    """Return the output of a command: stdout, or stderr if that is empty. None if the command cannot be started,
    fails or exceeds the limit.
    """
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=True,
            env=None if environment is None else dict(environment),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or done.stderr.strip()


def answers(url: str, limit_s: float) -> bool:
    """Return whether a web server responds with any status. False after `limit_s`, also if name resolution blocks."""
    found: list[bool] = []

    def look() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=limit_s):
                found.append(True)
        except urllib.error.HTTPError:
            found.append(True)
        except OSError:
            found.append(False)

    # name resolution has no timeout, so it runs in a thread that can be abandoned
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(limit_s)
    return found == [True]
