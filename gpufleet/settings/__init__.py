"""What people configure and what `pulumi up` publishes, as validated types (pydantic)."""

from typing import Final

KEY: Final = "gpu-fleet:fleet"
"""Where a settings file says it, under `config:`."""
