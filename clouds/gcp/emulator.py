"""Emulators of Google's services: spoken to without credentials, so only on this machine.

Standard library only: the node agent carries this.
"""

import os

from gpufleet.domain.activity import CloudError
from gpufleet.domain.loopback import on_loopback


def emulator(variable: str) -> str | None:
    """The address that an environment variable names; None where it names none.

    Raises CloudError where it is not on loopback.
    """
    endpoint = os.environ.get(variable)
    if not endpoint:
        return None
    if not on_loopback(endpoint):
        raise CloudError(
            f"{variable} is {endpoint!r}; it may only name an address on loopback, as http://127.0.0.1:4567"
        )
    return endpoint
