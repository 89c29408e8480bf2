"""The extras of gpu-fleet: optional packages, and the command that installs them. Uses only the standard library."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

EXTRAS: Final[Mapping[str, str]] = {
    "huggingface_hub": "hub",
    "matplotlib": "plots",
    "mlflow": "mlflow",
    "psycopg": "postgres",
    "pulumi": "pulumi",
    "pulumi_aws": "pulumi",
    "pulumi_gcp": "pulumi",
    "pulumi_policy": "pulumi",
}
"""The extra of each optional module. `project.optional-dependencies` of pyproject.toml lists their packages."""


def missing(module: str) -> str | None:
    """Return what is missing and the command that installs it. None: the module is installed."""
    if find_spec(module) is not None:
        return None
    return f"{module} is not installed; install the extra {EXTRAS[module]}: {install_command(EXTRAS[module])}"


def install_command(extra: str) -> str:
    """Return the command that installs gpu-fleet with an extra."""
    return f"uv tool install 'gpu-fleet[{extra}]'"
