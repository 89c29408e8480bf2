"""Loopback addresses: only there may a connection have no credentials or no encryption.

A web page that is open in a browser on this machine can also reach servers there: `foreign` detects its requests.
Uses only the standard library, because the node agent contains this module.
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
    """Return whether the host of a URL is a loopback address. A name is not: the owner of 127.example chooses its
    address.
    """
    try:
        return ipaddress.IPv4Address(urlsplit(url).hostname or "") in _LOOPBACK
    except ValueError:
        return False


class Foreign(StrEnum):
    """Why a request to a loopback server may come from a page of another site, through a browser."""

    HOST = "foreign-host"
    """`Host` is another name, which was made to resolve to this machine (DNS rebinding)."""
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
    """Return what is foreign about a request; None if nothing is.

    `header` returns the value of a header by name, with repeated values joined by commas. `own` contains the accepted
    values of Host, such as `127.0.0.1:4567`. Origin: RFC 6454; Sec-Fetch-Site: W3C Fetch Metadata.
    """
    if header("Host") not in own:
        return Foreign.HOST
    origin = header("Origin")
    if origin is not None and origin.removeprefix("http://") not in own:
        return Foreign.ORIGIN
    site = header("Sec-Fetch-Site")
    return Foreign.SITE if site is not None and site not in _OWN_SITES else None


def header_of(headers: Message, name: str) -> str | None:
    """Return the value of a header; all values of a repeated one, so that a client cannot choose which is checked."""
    values = headers.get_all(name)
    return None if values is None else ",".join(values)
