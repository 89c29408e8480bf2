"""How the demo runs a command: printed so that users can repeat it, with a time limit, and ended on Ctrl-C."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from localcloud.lifecycle.environment import MARK

from gpufleet.domain.model import Cloud
from scripts.demo.variants import SIMULATED, Variant

LIMIT_S: Final = 240.0
"""No command of the demo takes longer."""
Show = Callable[[str], bool]
POLL_S: Final = 0.5
_BOLD, _DIM, _GREEN, _RED, _OFF = "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m"


class DemoError(Exception):
    """A step of the demo failed. The message states the step and what was observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The result of a command."""

    code: int
    stdout: str
    """What it wrote; of a command that was shown, and did not promise JSON, with what it wrote to stderr."""
    seconds: float

    def json(self) -> Any:
        """Its stdout as JSON. Raises DemoError."""
        try:
            return json.loads(self.stdout)
        except ValueError as error:
            raise DemoError(f"a command promised JSON and wrote {self.stdout[:200]!r}") from error


@dataclass(slots=True, kw_only=True)
class Session:
    """Runs the product's commands in the embedded environment and keeps the facts of the run."""

    root: Path
    environment: Mapping[str, str]
    cloud: Cloud = Cloud.AWS
    """The cloud of the demo; the commands are the same for both."""
    variant: Variant = SIMULATED
    replaces_control_host: bool = False
    """Whether its control host is a machine, too, and is lost and replaced in the middle."""
    settings: Sequence[str] = ()
    """Arguments of Pulumi for settings that differ from the stack's own."""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    steps: dict[int, float] = field(default_factory=dict[int, float])
    """When each step began, in seconds."""
    folder: Path | None = None
    """Where commands run; None: the clone."""
    _running: subprocess.Popen[str] | None = None
    _hushed: threading.Event = field(default_factory=threading.Event)
    """Set while a command is being ended: its output is then hidden."""
    _began: float = field(default_factory=time.monotonic)

    def title(self, text: str) -> None:
        """Print the heading of the next step."""
        number = len(self.steps) + 1
        self.steps[number] = round(self.elapsed(), 1)
        print(_styled(f"\n{number}  {text}", _BOLD) + _styled(f"  [{self.elapsed():.0f} s]", _DIM), flush=True)

    def note(self, text: str) -> None:
        """Print a comment."""
        print(_styled(f"   {text}", _DIM), flush=True)

    def fact(self, name: str, value: Any, text: str = "") -> None:
        """Store a fact for the summary; with `text`, print it, too."""
        self.facts[name] = value
        if text:
            print(_styled("   ✓ ", _GREEN) + text, flush=True)

    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def run(self, *command: str, codes: Sequence[int] = (0,), hide: str | None = None) -> CommandResult:
        """Echo and run a command, and show its output, except lines that match `hide`.

        Raises DemoError when it ends with another code.
        """
        print(f"   {_styled('$', _BOLD)} {shlex.join(command)}", flush=True)
        pattern = re.compile(hide) if hide else None
        return self._run(command, codes, lambda line: pattern is None or not pattern.search(line))

    def end_cloud(self, *options: str) -> CommandResult:
        """Run `gpufleet local down` without the mark of the demo's processes. Raises DemoError.

        If this process is killed now, the next demo ends everything with that mark, but must wait for this command.
        """
        marked = self.environment
        self.environment = {name: value for name, value in marked.items() if name != MARK}
        try:
            return self.run("gpufleet", "local", "down", *options)
        finally:
            self.environment = marked

    def ask(self, *command: str, codes: Sequence[int] = (0,)) -> CommandResult:
        """Run a command for its output only, and show nothing."""
        return self._run(command, codes, None)

    def wait(self, what: str, look: Callable[[], str | None], limit_s: float) -> float:
        """Poll until `look` returns None. Its text states what is still missing. Returns the seconds that it took."""
        self.note(f"waiting until {what} (at most {limit_s:.0f} s)")
        began = time.monotonic()
        missing = look()
        while missing is not None:
            if time.monotonic() - began > limit_s:
                raise DemoError(f"{what}: not within {limit_s:.0f} s; {missing}")
            time.sleep(POLL_S)
            missing = look()
        return time.monotonic() - began

    def end_running(self) -> None:
        """End the command that runs, as Ctrl-C at a terminal would."""
        process = self._running
        if process is None:
            return
        self._hushed.set()
        for number, limit in ((signal.SIGINT, 8), (signal.SIGTERM, 3), (signal.SIGKILL, 3)):
            try:
                os.killpg(process.pid, number)
                process.wait(limit)
                return
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue

    def _run(self, command: Sequence[str], codes: Sequence[int], show: Show | None) -> CommandResult:
        began = time.monotonic()
        process = subprocess.Popen(
            list(command),
            cwd=self.folder or self.root,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # one pipe keeps the order of what people read
            stderr=subprocess.PIPE if show is None or "--json" in command else subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a Ctrl-C reaches it through us, in order
        )
        self._running = process
        hushed = self._hushed = threading.Event()
        kept: dict[str, list[str]] = {"stdout": [], "stderr": []}
        threads = [
            threading.Thread(target=_pump, args=(pipe, kept[name], show, hushed), daemon=True)
            for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr))
        ]
        for thread in threads:
            thread.start()
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.end_running()
            raise DemoError(f"`{shlex.join(command)}` ran for {LIMIT_S:.0f} s and was ended") from None
        except BaseException:
            self.end_running()
            raise
        for thread in threads:
            thread.join(5)
        self._running = None
        if code not in codes:
            seen = "" if show is not None else "\n" + "".join(kept["stdout"] + kept["stderr"])[-3000:]
            raise DemoError(f"`{shlex.join(command)}` ended with exit code {code}{seen}")
        return CommandResult(code=code, stdout="".join(kept["stdout"]), seconds=time.monotonic() - began)


def _pump(pipe: IO[str] | None, keep: list[str], show: Show | None, hushed: threading.Event) -> None:
    with pipe or contextlib.nullcontext(()) as lines:
        for line in lines:
            keep.append(line)
            if show is not None and not hushed.is_set() and show(line):
                print(f"     {line.rstrip()}", flush=True)


def _styled(text: str, style: str) -> str:
    return f"{style}{text}{_OFF}" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def red(text: str) -> str:
    return _styled(text, _RED)
