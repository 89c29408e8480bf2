"""The settings that users write and the fleet document that `pulumi up` publishes, as validated pydantic types."""

from typing import Final

KEY: Final = "gpu-fleet:fleet"
"""Key of the settings, under `config:` in a settings file."""
ENVIRONMENT_NAME: Final = r"[a-z]|[a-z][a-z0-9-]{0,14}[a-z0-9]"
"""Regular expression of names of environments."""
