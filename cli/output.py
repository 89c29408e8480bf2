"""Exit codes and what goes where: results to stdout, everything else to stderr."""

import json
import sys
from enum import IntEnum
from typing import Any

from rich.console import Console

# words of others, an address of IPv6 say, may stand in square brackets: nothing that is printed is markup
STDOUT = Console(markup=False)
STDERR = Console(stderr=True, markup=False)


class Exit(IntEnum):
    """What the exit code of `gpufleet` means."""

    DONE = 0
    """Done, nothing found."""
    FAILED = 1
    """Could not, an outcome failed, or the inventory was partial."""
    WRONG_USE = 2
    FOUND = 3
    """Done and found something: a dry plan with actions, a limit exceeded, a check that says no."""


class UserError(Exception):
    """Something the user can mend: says what is wrong, the value and the remedy. Exits with `code`."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


def print_json(value: Any) -> None:
    """One JSON document on stdout and nothing else."""
    sys.stdout.write(json.dumps(value, indent=2, default=str, ensure_ascii=False) + "\n")
