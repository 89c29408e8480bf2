"""Exit codes and output streams: results go to stdout, everything else to stderr."""

import json
import os
import sys
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final, NoReturn, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from app import logs
from app.errors import AppError, ErrorCode
from gpufleet.domain.printable import in_json, printable


class _Terminal(Console):
    """Prints untrusted text, such as an error or a tag, without terminal control sequences: rich passes them through.

    `main` handles a closed pipe: rich would exit with 1, as if the command had failed.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # a control segment is from rich itself: a live screen moves the cursor
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


class _Stderr(_Terminal):
    """Stderr. A stream that cannot be written (`2>&1 | head`, a full disk) does not stop the work.

    If this process logs, each message is a line of the log.
    """

    def print(self, *objects: Any, **how: Any) -> None:
        if logs.is_on():
            _log_message(" ".join(map(str, objects)), is_error=how.get("style") == "red")
            return
        try:
            super().print(*objects, **how)
        except OSError:
            discard(sys.stderr)


def _log_message(text: str, *, is_error: bool) -> None:
    """A message that begins with `! ` is a warning."""
    log = logs.get()
    write = log.error if is_error else log.warning if text.startswith("! ") else log.info
    write("message", detail=text.removeprefix("! ").removeprefix("gpufleet: "))


# untrusted text, for example an IPv6 address, may contain square brackets: printed text is never markup
STDOUT: Final = _Terminal(markup=False)
STDERR: Final = _Stderr(stderr=True, markup=False)
ANSWER_BEGUN: Final = threading.Event()
"""Set once a part of the machine-readable answer is on stdout."""


class Exit(IntEnum):
    """The exit codes of `gpufleet`."""

    DONE = 0
    """Done, and nothing found."""
    FAILED = 1
    """The command failed, an outcome failed, or the inventory was incomplete."""
    WRONG_USE = 2
    FOUND = 3
    """Done, and something found: a dry run with actions, an exceeded limit, a failed check."""
    INTERRUPTED = 130
    """Ctrl-C, after the command has shown what it had read. Raise it as SystemExit: typer's exits are integers."""


def exit_of(code: ErrorCode) -> Exit:
    """The exit code of a use case that ended with this result."""
    return Exit[code.name]


def discard(stream: TextIO) -> None:
    """Redirect the stream to the null device: its buffered text would fail again, at the latest when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def after_the_work() -> Generator[None]:
    """Ignores write errors of output about completed work.

    A closed pipe (`| head`) or a full disk neither undoes the work nor makes it a failure.
    """
    try:
        yield
    except OSError as error:
        discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            STDERR.print(f"gpufleet: the result could not be printed: {error}", highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Write one JSON document to stdout, and nothing else. If the reader closed the pipe, the exit code still
    applies.

    Raises OSError when the document is incomplete.
    """
    ANSWER_BEGUN.set()
    try:
        sys.stdout.write(in_json(json.dumps(value, indent=2, default=str, ensure_ascii=False)) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)


def write(text: str) -> None:
    """Write text to stdout unchanged, except for terminal control sequences."""
    sys.stdout.write(printable(text))


def note(line: str) -> None:
    """Print a progress line for people."""
    STDERR.print(line, highlight=False, soft_wrap=True)


class _People:
    """A log for people, used by a process without logs. It prints each line's message if there is one."""

    def info(self, event: str, **fields: Any) -> None:
        detail = fields.get("error") or fields.get("detail")
        about = [str(fields[name]) for name in ("pool", "resource") if fields.get(name)]
        if detail or about:
            note(": ".join([*about, str(detail or fields.get("outcome", event))]))

    warning = error = info

    def debug(self, event: str, **fields: Any) -> None:
        pass


PEOPLE: Final = _People()


def note_unlogged(line: str) -> None:
    """Print a line for people, unless this process logs: then a separate log line has the details."""
    if not logs.is_on():
        note(line)


def log_failure(error: AppError) -> None:
    """Report the error that ends a command: print it, or log it unless a pass has logged it already."""
    if not logs.is_on():
        STDERR.print(f"gpufleet: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
    elif not error.logged:
        logs.get().error("command", outcome="failed", error=error)


def print_error(message: str, arguments: Sequence[str]) -> None:
    """Print the error as JSON if the user requested JSON; stderr has the message for people."""
    asked = "--json" in arguments or "--format=json" in arguments or ("--format", "json") in pairwise(arguments)
    if not asked or ANSWER_BEGUN.is_set():
        return
    try:
        print_json({"error": message})
    except OSError:  # the disk is full: the exit code and stderr report that
        discard(sys.stdout)
