"""Exit codes and what goes where: results to stdout, everything else to stderr."""

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
    """Shows words of others, an error or a tag say, without what steers a terminal: rich lets escape sequences pass.

    Leaves it to `main` what becomes of a reader that went away: rich would exit with 1, as if we had failed.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # rich's own: a live screen moves the cursor
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


class _Words(_Terminal):
    """Stderr: that nobody hears them (`2>&1 | head`, a full disk) ends no work. Where this process logs, each message
    is a line of the log.
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
    """`! ` begins a message that people mark so as a warning."""
    log = logs.get()
    write = log.error if is_error else log.warning if text.startswith("! ") else log.info
    write("message", detail=text.removeprefix("! ").removeprefix("gpufleet: "))


# words of others, an address of IPv6 say, may stand in square brackets: nothing that is printed is markup
STDOUT: Final = _Terminal(markup=False)
STDERR: Final = _Words(stderr=True, markup=False)
ANSWER_BEGUN: Final = threading.Event()
"""Set once anything of the answer is on stdout that programs read."""


class Exit(IntEnum):
    """What the exit code of `gpufleet` means."""

    DONE = 0
    """Done, nothing found."""
    FAILED = 1
    """Could not, an outcome failed, or the inventory was partial."""
    WRONG_USE = 2
    FOUND = 3
    """Done and found something: a dry plan with actions, a limit exceeded, a check that says no."""


def exit_of(code: ErrorCode) -> Exit:
    """The exit code of a use case that ended so."""
    return Exit[code.name]


def discard(stream: TextIO) -> None:
    """Let what is still to be written go nowhere: it would fail once more, at the latest when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def after_the_work() -> Generator[None]:
    """What is printed within tells of work that is done: that its reader went away (`| head`) or its disk is full
    undoes none of it, and is no failure of the work.
    """
    try:
        yield
    except OSError as error:
        discard(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            STDERR.print(f"gpufleet: this could not be printed: {error}", highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on stdout and nothing else. Where its reader went away, the exit code still says how it went.

    Raises OSError where a part of it is missing.
    """
    ANSWER_BEGUN.set()
    try:
        sys.stdout.write(in_json(json.dumps(value, indent=2, default=str, ensure_ascii=False)) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)


def write(text: str) -> None:
    """Text as it is on stdout, for people and files alike, but for what steers a terminal."""
    sys.stdout.write(printable(text))


def note(line: str) -> None:
    """One line for people who wait or watch."""
    STDERR.print(line, highlight=False, soft_wrap=True)


class _People:
    """A log for people, of a process that has none: the sentence of each line, where there is one."""

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
    """One line for people, for what a log line of its own says better."""
    if not logs.is_on():
        note(line)


def log_failure(error: AppError) -> None:
    """What ends a command: for people, or a line of the log that no pass has written before."""
    if not logs.is_on():
        STDERR.print(f"gpufleet: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
    elif not error.logged:
        logs.get().error("command", outcome="failed", error=error)


def print_error(said: str, arguments: Sequence[str]) -> None:
    """Whoever asked for JSON gets a document also where there is no answer; stderr has the words for people."""
    asked = "--json" in arguments or "--format=json" in arguments or ("--format", "json") in pairwise(arguments)
    if not asked or ANSWER_BEGUN.is_set():
        return
    try:
        print_json({"error": said})
    except OSError:  # its disk is full: the exit code and stderr say it
        discard(sys.stdout)
