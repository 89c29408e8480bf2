"""Emulators of Google's services. They are used without Google's credentials, so only on this machine.

Standard library only, because the node agent contains this module.
"""

import os
from typing import Final

from gpufleet.clouds.gcp.signed import GoogleMetadata
from gpufleet.domain.activity import CloudError
from gpufleet.domain.loopback import on_loopback

ENDPOINT: Final = "GPUFLEET_COMPUTE_ENDPOINT"
"""Environment variable with the loopback address of an emulated Compute Engine, which has no standard variable."""
TOKEN: Final = "GPUFLEET_EMULATOR_TOKEN"  # noqa: S105 - the variable's name


def emulator(variable: str) -> str | None:
    """The address in an environment variable; None if the variable is not set.

    Raises CloudError if the address is not on loopback.
    """
    endpoint = os.environ.get(variable)
    if not endpoint:
        return None
    if not on_loopback(endpoint):
        raise CloudError(
            f"{variable} is {endpoint!r}; it must be an address on loopback, such as http://127.0.0.1:4567"
        )
    return endpoint


def emulator_token(endpoint: str) -> str | None:
    """The token for an emulator: from the environment, else from the metadata server of an emulated machine.

    None if there is no token, or if the emulator is not on this machine. Raises OSError.
    """
    if not on_loopback(endpoint):
        return None
    host = os.environ.get("GCE_METADATA_HOST", "")
    if (token := os.environ.get(TOKEN)) or not on_loopback(f"http://{host}"):
        return token or None
    return GoogleMetadata(host=host).token()
