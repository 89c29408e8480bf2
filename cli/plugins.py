"""What other distributions add to the command line, by entry points."""

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, Final

COMMANDS: Final = "gpufleet.commands"
"""By the name of a group: functions that add it to the command tree that they receive."""
CHECKS: Final = "gpufleet.checks"
"""Functions of the folders and the environment that return findings for `gpufleet doctor`."""


def load(group: str, name: str | None = None) -> Iterator[Callable[..., Any]]:
    """Load the functions of a group; metadata whose package cannot be imported counts as not installed."""
    for added in entry_points(group=group):
        if name not in (None, added.name):
            continue
        try:
            yield added.load()
        except ModuleNotFoundError as error:
            if error.name != added.module.partition(".")[0] and error.name != added.module:
                raise
