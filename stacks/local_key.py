"""The order key of the embedded environment. Each clone has its own key pair, so no settings file can contain the
public key.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpufleet.settings.environment import Settings
from gpufleet.settings.problems import Problem, SettingsError
from stacks.value_checks import EMBEDDED

VARIABLE: Final = "GPUFLEET_LOCAL_ORDER_KEY"
"""Environment variable with the path of the public key. `gpufleet local env` sets it."""


def with_local_key(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Return the settings with this clone's public key, if the environment is `local`. Raises SettingsError."""
    file = environment.get(VARIABLE)
    if settings.environment != EMBEDDED or not file:
        return settings
    try:
        key = Path(file).read_text("utf-8").strip()
    except OSError as error:
        problem = Problem(path=VARIABLE, wrong=f"{file}: {error.strerror}", remedy="run `gpufleet local up`")
        raise SettingsError("environment", (problem,)) from error
    return settings.model_copy(update={"orders": settings.orders.model_copy(update={"public_keys": (key,)})})
