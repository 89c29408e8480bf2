"""The settings that users write and the fleet document that `pulumi up` publishes, as validated pydantic types."""

from typing import Final

KEY: Final = "gpu-fleet:fleet"
"""Key of the settings, under `config:` in a settings file."""
