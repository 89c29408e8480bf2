"""On a control host, the name of its Prometheus resolves to the loopback address; other names stay unchanged."""

from pathlib import Path

import pytest

from hosts.control import hosts_file

THERE = "127.0.0.1 localhost\n# a note\n10.0.0.9 other.internal\n"


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    path = tmp_path / "hosts"
    path.write_text(THERE)
    return path


def test_a_name_of_this_machine_resolves_to_loopback_once(hosts: Path) -> None:
    for _ in range(2):
        assert hosts_file.resolve_to_loopback("control.prod.internal", hosts, lambda name: True)
        assert hosts.read_text() == f"{THERE}127.0.0.1 control.prod.internal # gpufleet\n"
    hosts_file.resolve_to_loopback("control.dev.internal", hosts, lambda name: True)
    assert hosts.read_text() == f"{THERE}127.0.0.1 control.dev.internal # gpufleet\n"


def test_a_name_of_another_machine_is_left_alone(hosts: Path) -> None:
    assert not hosts_file.resolve_to_loopback("prometheus.example", hosts, lambda name: False)
    assert hosts.read_text() == THERE


@pytest.mark.parametrize(("address", "loopback"), [("10.0.0.5", False), ("127.0.0.1", True), ("::1", True)])
def test_an_address_is_not_a_name(hosts: Path, address: str, loopback: bool) -> None:
    assert hosts_file.resolve_to_loopback(address, hosts, lambda name: True) == loopback
    assert hosts.read_text() == THERE


def test_an_address_that_can_be_bound_is_of_this_machine() -> None:
    assert hosts_file.is_this_machine("localhost") and hosts_file.is_this_machine("127.0.0.1")
    assert not hosts_file.is_this_machine("192.0.2.1") and not hosts_file.is_this_machine("no such name")
