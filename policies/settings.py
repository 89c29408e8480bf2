"""Finds the settings of the environment that the pack checks."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpufleet.settings import KEY
from gpufleet.settings.file import FileError, read_config
from policies.context import ContextError

FROM_ENGINE: Final = "PULUMI_CONFIG"
"""The engine passes the stack's configuration, and nothing else of the program, to the pack's process."""
FROM_FILE: Final = "GPUFLEET_SETTINGS"
"""For an existing state (`pulumi policy analyze`), the engine passes resources alone, so this variable must name a
settings file.
"""


def config_of(environ: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the stack's configuration, with values as text. Raises ContextError.

    Without settings, the pack could not check the budget or allow-lists and would pass. It therefore refuses the
    plan.
    """
    if (given := environ.get(FROM_ENGINE)) is not None:
        return json.loads(given or "{}")
    path = environ.get(FROM_FILE)
    if not path:
        raise ContextError(
            f"the engine passed no settings, as for every check of an existing state: set {FROM_FILE} to the settings"
            " file of the environment (stacks/config/Pulumi.<stack>.yaml), which has its budget and machine types"
        )
    try:
        config = read_config(Path(path))
    except FileError as error:
        raise ContextError(f"{FROM_FILE}: {error}") from error
    if KEY not in config:
        raise ContextError(f"{FROM_FILE}: {path} is not a settings file: it has no config.{KEY}")
    return {str(k): v if isinstance(v, str) else json.dumps(v, default=str) for k, v in config.items()}
