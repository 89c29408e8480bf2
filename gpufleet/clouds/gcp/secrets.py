"""Reads secrets of a project with the caller's permissions."""

from typing import Final

from gpufleet.clouds.gcp.emulator import emulator, emulator_token
from gpufleet.clouds.gcp.signed import secret
from gpufleet.domain.activity import CloudError

ENDPOINT: Final = "GPUFLEET_SECRETMANAGER_ENDPOINT"
"""Environment variable with an emulator's loopback address."""
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


def read_secret(project: str, name: str) -> str:
    """Read the newest version of a secret. Raises CloudError with the secret's name, never with its value."""
    try:
        return secret(f"projects/{project}/secrets/{name}", _token())
    except OSError as error:
        raise CloudError(f"secret {name} of {project} cannot be read: {error}") from error


def _token() -> str | None:
    if (endpoint := emulator(ENDPOINT)) is not None:
        return emulator_token(endpoint)
    # import here, because the node agent contains this module but no Google libraries
    from gpufleet.clouds.gcp.login import tokens

    return tokens(_SCOPE)()
