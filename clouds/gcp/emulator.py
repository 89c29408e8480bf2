"""Emulators of Google's services: spoken to without credentials, so only on this machine.

Standard library only: the node agent carries this.
"""

import ipaddress
import os
from typing import Final
from urllib.parse import urlsplit

from fleet.activity import CloudError

_LOOPBACK: Final = ipaddress.IPv4Network("127.0.0.0/8")


def emulator(variable: str) -> str | None:
    """The address that an environment variable names; None where it names none.

    Raises CloudError where it is not on loopback.
    """
    endpoint = os.environ.get(variable)
    if not endpoint:
        return None
    if not _on_loopback(endpoint):
        raise CloudError(
            f"{variable} is {endpoint!r}; it may only name an address on loopback, as http://127.0.0.1:4567"
        )
    return endpoint


def _on_loopback(url: str) -> bool:
    try:
        # an address, not a name: who owns 127.example is asked where that is
        return ipaddress.IPv4Address(urlsplit(url).hostname or "") in _LOOPBACK
    except ValueError:
        return False
