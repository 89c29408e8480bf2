"""Tests the count of public addresses in networks, for all notations and splits."""

from ipaddress import IPv4Network, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.addresses import MAX_IPV4, network, public
from policies.resource import UNKNOWN, Resource
from tests.fixtures.policies.resources import DEV, INGRESS, broken_rules


def size(*cidrs: str) -> tuple[int, int]:
    found = public(n for cidr in cidrs if (n := network(cidr)) is not None)
    return found.ipv4, found.ipv6


@pytest.mark.parametrize(
    ("cidrs", "expected"),
    [
        pytest.param(["8.0.0.0/8"], (2**24, 0), id="one /8"),
        pytest.param(["8.8.8.8"], (1, 0), id="one address without a prefix"),
        pytest.param(["8.8.8.8/24"], (256, 0), id="bits of a host"),
        pytest.param(["8.8.8.0/24", "8.8.8.0/25", "8.8.8.7/32"], (256, 0), id="one within the other"),
        pytest.param(["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"], (0, 0), id="private"),
        pytest.param(["203.0.113.0/24", "127.0.0.0/8", "169.254.0.0/16", "240.0.0.0/4"], (0, 0), id="no sources"),
        pytest.param(
            ["35.191.0.0/16", "130.211.0.0/22", "35.235.240.0/20"], (0, 0), id="Google's probes and tunnels"
        ),
        pytest.param(["172.0.0.0/8"], (2**24 - 2**20, 0), id="partly private"),
        pytest.param(["2600::/12"], (0, 2**116), id="IPv6"),
        pytest.param(["2001:db8::/32", "fd00::/8", "fe80::/10", "::1"], (0, 0), id="no public IPv6"),
        pytest.param(["::ffff:8.0.0.0/104"], (2**24, 2**24), id="IPv4 mapped into IPv6"),
        pytest.param(["64:ff9b::808:0/112"], (2**16, 2**16), id="IPv4 translated into IPv6"),
        pytest.param(["2002:808::/32"], (2**16, 2**96), id="6to4"),
        pytest.param(["2002:808:808:1::/64"], (1, 2**64), id="a network behind one 6to4 router"),
    ],
)
def test_public_addresses_in_a_union(cidrs: list[str], expected: tuple[int, int]) -> None:
    assert size(*cidrs) == expected


def test_a_network_that_contains_translated_ones_contains_all_of_ipv4() -> None:
    assert size("64:ff9b::/48")[0] == size("0.0.0.0/0")[0] > 3_700_000_000


@pytest.mark.parametrize(
    "value", ["", "everybody", "8.8.8.8/33", "1.2.3", "fe80::1%eth0", 8, True, None, UNKNOWN, []]
)
def test_values_that_are_not_a_network(value: object) -> None:
    assert network(value) is None


wide = st.builds(
    lambda address, prefix: ip_network((address, prefix), strict=False),
    st.integers(0, 2**32 - 1),
    st.integers(0, 8),
).filter(lambda found: public([found]).ipv4 > MAX_IPV4)


def pieces(whole: IPv4Network, cuts: list[int]) -> list[IPv4Network]:
    """Split a network into smaller ones with the same addresses. Each cut halves one of them."""
    found = [whole]
    for cut in cuts:
        one = found.pop(cut % len(found))
        found += one.subnets() if one.prefixlen < 32 else [one]
    return found


def rules(networks: list[IPv4Network]) -> list[Resource]:
    return [
        Resource(type=INGRESS, name=f"rule-{index}", urn=f"urn:{index}", props={"cidrIpv4": str(one)})
        for index, one in enumerate(networks)
    ]


@given(whole=wide, cuts=st.lists(st.integers(0, 1000), max_size=40))
def test_a_refused_set_stays_refused_however_it_is_split_over_rules(whole: IPv4Network, cuts: list[int]) -> None:
    split = pieces(whole, cuts)
    assert public(split) == public([whole])
    assert set(broken_rules(*rules(split), context=DEV)) == {"no-open-ingress"}


PRIVATE = [ip_network(cidr) for cidr in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")]


@given(
    chosen=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(4, 32)), min_size=1, max_size=8),
    private=st.lists(st.sampled_from(PRIVATE), max_size=4),
)
def test_private_networks_change_nothing(chosen: list[tuple[int, int]], private: list[IPv4Network]) -> None:
    networks = [IPv4Network(one, strict=False) for one in chosen]
    assert public([*networks, *private]) == public(networks)
    without = broken_rules(*rules(networks), context=DEV)
    assert set(broken_rules(*rules([*networks, *private]), context=DEV)) == set(without)
