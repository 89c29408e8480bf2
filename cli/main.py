"""The `gpufleet` command: starts it, and ends errors and interrupts in one clear message."""

import gc
import os
import sys
from typing import Final

INTERRUPTED: Final = 130
"""The exit code that shells use for Ctrl-C."""
_GARBAGE: Final = (20_000, 20, 50)
"""Thresholds of Python's garbage collector.

A command reads objects by the hundred thousand and keeps them until it shows them. With Python's own threshold of
700, collections took a quarter of the CPU time of reading 5,000 instances.
"""


def main() -> None:
    """Run the command. A user error and Ctrl-C end in one clear message, never in a traceback."""
    gc.set_threshold(*_GARBAGE)
    _open_closed()
    try:
        _run()
    except KeyboardInterrupt:
        _report_interrupt()
        sys.exit(INTERRUPTED)


def _report_interrupt() -> None:
    is_scan = sys.argv[1:2] == ["scan"]
    rest = "nothing was changed" if is_scan else "completed steps are recorded, and the next run continues from there"
    message = f"interrupted; {rest}"
    if (logs := sys.modules.get("app.logs")) is not None and logs.is_on():
        logs.get().warning("command", outcome="interrupted", detail=message)
    else:
        sys.stderr.write(f"gpufleet: {message}\n")


def _open_closed() -> None:
    """Replace closed streams (`>&-`) with the null device, so that no file opened later becomes stdout."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _run() -> None:
    # imported here, because Ctrl-C must also work while the modules load
    from app import logs
    from app.errors import AppError
    from cli import commands
    from cli.output import Exit, discard, exit_of, log_failure, print_error

    try:
        logs.configure(sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in commands.ENTRIES else "cli")
        commands.lazy()()
    except AppError as error:
        log_failure(error)
        print_error(str(error), sys.argv)
        sys.exit(exit_of(error.code))
    except SystemExit as left:
        if left.code is Exit.INTERRUPTED:
            raise
        if left.code == INTERRUPTED:  # typer turns Ctrl-C into this code and prints nothing
            print_error("interrupted", sys.argv)
            raise KeyboardInterrupt from left
        # typer has printed the wrong argument on stderr
        if left.code == Exit.WRONG_USE:
            print_error(_usage_error(left), sys.argv)
        raise
    except BrokenPipeError:
        # the reader of stdout closed the pipe, as `| head` does
        discard(sys.stdout)
        sys.exit(Exit.DONE)
    except Exception as error:
        message = _environment_error(error)
        if message is None:
            raise
        if not isinstance(error, OSError):
            print_error(message, sys.argv)
        discard(sys.stdout)
        log_failure(AppError(message))
        sys.exit(Exit.FAILED)


def _usage_error(left: SystemExit) -> str:
    """typer's message about the wrong argument, with a hint at the help."""
    wrong = left.__context__  # typer's copy of click's errors has no public name
    message_of, context = getattr(wrong, "format_message", None), getattr(wrong, "ctx", None)
    if message_of is None or context is None:
        return "invalid usage"
    return f"{message_of().removesuffix('.')}; `{context.command_path} --help` lists the options"


def _environment_error(error: Exception) -> str | None:
    """The message for a failing disk or ledger that no command handled. None: it is a defect, and gets
    a traceback.
    """
    if isinstance(error, OSError):
        return str(error)
    if "sqlalchemy" not in sys.modules:  # few commands read a ledger, and the library is slow to import
        return None
    from sqlalchemy.exc import SQLAlchemyError

    from gpufleet.ledger.schema import LedgerError, explained

    if not isinstance(error, SQLAlchemyError):
        return None
    try:
        with explained("the ledger"):
            raise error
    except LedgerError as explanation:
        return str(explanation)


if __name__ == "__main__":
    main()
