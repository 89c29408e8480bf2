"""Counts the public internet addresses in a set of networks."""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from typing import Any, Final

Network = IPv4Network | IPv6Network

MAX_IPV4: Final = 2**24
"""Limit of public IPv4 addresses: one /8, more than any organisation needs for its clients."""
MAX_IPV6: Final = 2**96 - 1
"""Limit of public IPv6 addresses: less than one /32, which is the allocation of a whole provider."""

_NOT_PUBLIC_4: Final = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
            *("203.0.113.0/24", "224.0.0.0/3"),
            # health checks and the Identity-Aware Proxy: only Google's own services send from these ranges
            *("35.191.0.0/16", "130.211.0.0/22", "35.235.240.0/20"),
        ),
    )
)
"""Private, shared, loopback, link-local, documentation, multicast and reserved IPv4 networks. They are disjoint."""
_NOT_PUBLIC_6: Final = tuple(
    map(
        IPv6Network,
        ("::/127", "100::/64", "2001:db8::/32", "3fff::/20", "fc00::/7", "fe80::/9", "ff00::/8"),
    )
)
"""The corresponding IPv6 networks. fe80::/9 contains the link-local and the former site-local addresses."""
_HOLD_IPV4: Final = tuple(map(IPv6Network, ("::/96", "::ffff:0:0/96", "64:ff9b::/96", "2002::/16")))
"""IPv6 networks whose addresses represent IPv4 addresses: compatible, mapped, translated (NAT64) and 6to4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Public:
    """Numbers of public addresses."""

    ipv4: int
    ipv6: int

    @property
    def too_many(self) -> bool:
        """Whether the addresses exceed what client networks need, so that the set is a part of the internet."""
        return self.ipv4 > MAX_IPV4 or self.ipv6 > MAX_IPV6

    @property
    def share(self) -> float:
        """Number of addresses as a share of the limit."""
        return self.ipv4 / MAX_IPV4 + self.ipv6 / MAX_IPV6

    def __str__(self) -> str:
        counts = [f"{n:,} public addresses of IPv{v}" for v, n in ((4, self.ipv4), (6, self.ipv6)) if n]
        return " and ".join(counts) or "no public address"


def network(value: Any) -> Network | None:
    """Return the network of a CIDR, or None if the value is not a valid CIDR.

    An address without a prefix is a network of one address. Host bits are ignored, as clouds do.
    """
    if not isinstance(value, str) or "%" in value:
        return None
    try:
        return ipaddress.ip_network(value.strip(), strict=False)
    except ValueError:
        return None


def public(networks: Iterable[Network]) -> Public:
    """Return the number of public addresses in the union of networks."""
    every = set(networks)
    six = [one for one in every if isinstance(one, IPv6Network)]
    four = {one for one in every if isinstance(one, IPv4Network)}
    four |= {inner for one in six for inner in _ipv4_within(one)}
    return Public(
        ipv4=_size_outside(ipaddress.collapse_addresses(four), _NOT_PUBLIC_4),
        ipv6=_size_outside(ipaddress.collapse_addresses(six), _NOT_PUBLIC_6),
    )


def _size_outside(disjoint: Iterable[Network], excluded: Sequence[Network]) -> int:
    return sum(one.num_addresses - sum(_common(one, other) for other in excluded) for one in disjoint)


def _common(one: Network, other: Network) -> int:
    """Return the number of addresses that both networks contain."""
    first = max(int(one.network_address), int(other.network_address))
    last = min(int(one.broadcast_address), int(other.broadcast_address))
    return max(0, last - first + 1)


def _ipv4_within(network: IPv6Network) -> Iterator[IPv4Network]:
    """Yield the IPv4 networks that addresses of an IPv6 network represent."""
    for holder in _HOLD_IPV4:
        if holder.subnet_of(network):
            yield IPv4Network("0.0.0.0/0")
        elif network.subnet_of(holder):
            fixed = holder.prefixlen
            bits = min(network.prefixlen - fixed, 32)
            address = (int(network.network_address) >> (128 - fixed - 32)) & 0xFFFFFFFF
            yield IPv4Network((IPv4Address(address), bits), strict=False)
