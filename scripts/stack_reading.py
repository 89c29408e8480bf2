"""Reads a stack with the Pulumi CLI. A stack that does not exist differs from one that cannot be read."""

import re
import subprocess
from typing import Final

_ABSENT: Final = re.compile(r"no stack named '|does not have output property '")
"""Pulumi 3's errors about a stack that does not exist, and about one without the output."""


class StackReadError(Exception):
    """The stack cannot be read: wrong passphrase, no login, no network. The message has Pulumi's error."""


def read(stack: str, *command: str) -> str | None:
    """Return what `pulumi stack COMMAND` prints; None if the stack or its output does not exist.

    Raises StackReadError.
    """
    done = subprocess.run(
        ["pulumi", "stack", *command, "--stack", stack, "--non-interactive"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return done.stdout
    if _ABSENT.search(done.stderr):
        return None
    error = done.stderr.strip() or f"exit code {done.returncode}"
    raise StackReadError(f"stack {stack} cannot be read, so nothing was changed: {error}")
