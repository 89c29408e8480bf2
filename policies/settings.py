"""Where the pack finds the settings of the environment that it judges."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from gpufleet.domain.parsed import is_map
from policies.context import SETTINGS_KEY, ContextError

FROM_ENGINE: Final = "PULUMI_CONFIG"
"""The engine gives the stack's configuration to the pack's process, and nothing else of the program."""
FROM_FILE: Final = "GPUFLEET_SETTINGS"
"""Of an existing state (`pulumi policy analyze`) the engine gives resources alone: a file must be named."""


def config_of(environ: Mapping[str, str]) -> Mapping[str, Any]:
    """The stack's configuration, values as text. Raises ContextError.

    Without settings a budget or an allow-list would not be judged and the pack would pass: that is refused.
    """
    if (given := environ.get(FROM_ENGINE)) is not None:
        return json.loads(given or "{}")
    path = environ.get(FROM_FILE)
    if not path:
        raise ContextError(
            f"the engine named no settings, as it does not for an existing state: set {FROM_FILE} to the file"
            " of the environment (stacks/config/Pulumi.<stack>.yaml), or budget and machine types would not be judged"
        )
    try:
        read: object = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ContextError(f"{FROM_FILE}: {path} cannot be read: {error}") from error
    config = read.get("config") if is_map(read) else None
    if not is_map(config) or SETTINGS_KEY not in config:
        raise ContextError(f"{FROM_FILE}: {path} is no settings file: it has no config.{SETTINGS_KEY}")
    return {str(k): v if isinstance(v, str) else json.dumps(v, default=str) for k, v in config.items()}
