"""Entry points through which other distributions extend the command line."""

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, Final

COMMANDS: Final = "gpufleet.commands"
"""By the name of a group: functions that add the group to a command tree."""
CHECKS: Final = "gpufleet.checks"
"""Functions that receive the folders and the environment, and return findings for `gpufleet doctor`."""


def load(group: str, name: str | None = None) -> Iterator[Callable[..., Any]]:
    """Load the functions of a group. An entry point whose package cannot be imported counts as not installed."""
    for added in entry_points(group=group):
        if name not in (None, added.name):
            continue
        try:
            yield added.load()
        except ModuleNotFoundError as error:
            if error.name != added.module.partition(".")[0] and error.name != added.module:
                raise
