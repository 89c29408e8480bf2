"""Addresses of this machine alone: only there is anything spoken to without credentials, or in clear.

Standard library only: the node agent carries this.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

_LOOPBACK: Final = ipaddress.IPv4Network("127.0.0.0/8")


def on_loopback(url: str) -> bool:
    """Whether a URL's host is an address of this machine alone. A name is not: who owns 127.example is asked where
    that is.
    """
    try:
        return ipaddress.IPv4Address(urlsplit(url).hostname or "") in _LOOPBACK
    except ValueError:
        return False
