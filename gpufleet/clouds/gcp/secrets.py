"""Secrets of a project, read with the caller's own rights."""

from typing import Final

from gpufleet.clouds.gcp.emulator import emulator, emulator_token
from gpufleet.clouds.gcp.signed import secret
from gpufleet.domain.activity import CloudError

ENDPOINT: Final = "GPUFLEET_SECRETMANAGER_ENDPOINT"
"""An emulator's address on loopback."""
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


def read_secret(project: str, name: str) -> str:
    """The newest version of a secret. Raises CloudError that names it, never its value."""
    try:
        return secret(f"projects/{project}/secrets/{name}", _token())
    except OSError as error:
        raise CloudError(f"secret {name} of {project} cannot be read: {error}") from error


def _token() -> str | None:
    if (endpoint := emulator(ENDPOINT)) is not None:
        return emulator_token(endpoint)
    # the node agent carries this file, and no library of Google's
    from gpufleet.clouds.gcp.login import tokens

    return tokens(_SCOPE)()
