"""Addresses of this machine alone: only there is anything spoken to without credentials, or in clear.

What listens there is reached by every web page that is open on this machine, too: `foreign` tells its requests.
Standard library only: the node agent carries this.
"""

import ipaddress
from collections.abc import Callable, Collection
from email.message import Message
from enum import StrEnum
from types import MappingProxyType
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


class Foreign(StrEnum):
    """Why a request to a server on loopback may come from a page of another site, which a browser sent it for."""

    HOST = "foreign-host"
    """It names another host: a name that was made to lead here (DNS rebinding)."""
    ORIGIN = "foreign-origin"
    SITE = "cross-site"


FOREIGN_MESSAGES: Final = MappingProxyType(
    {
        Foreign.HOST: "the request is addressed to another host than this server's own address",
        Foreign.ORIGIN: "the request comes from a page of another site (Origin)",
        Foreign.SITE: "the request comes from a page of another site (Sec-Fetch-Site)",
    }
)
_OWN_SITES: Final = ("none", "same-origin")


def foreign(header: Callable[[str], str | None], own: Collection[str]) -> Foreign | None:
    """What is foreign about a request; None where nothing is.

    `header` gives the value of a header by its name, those of a repeated one joined by commas; `own` holds what Host
    may be, as `127.0.0.1:4567`. Origin: RFC 6454; Sec-Fetch-Site: W3C Fetch Metadata.
    """
    if header("Host") not in own:
        return Foreign.HOST
    origin = header("Origin")
    if origin is not None and origin.removeprefix("http://") not in own:
        return Foreign.ORIGIN
    site = header("Sec-Fetch-Site")
    return Foreign.SITE if site is not None and site not in _OWN_SITES else None


def header_of(headers: Message, name: str) -> str | None:
    """The value of a header, of a repeated one all of them: nobody may choose which of two is looked at."""
    values = headers.get_all(name)
    return None if values is None else ",".join(values)
