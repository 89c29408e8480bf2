"""A lease may be taken early only if its holder's process could be observed from here and has ended."""

import os

import pytest

from app import adapters as ports
from app.adapters import is_dead_holder, lease_holder_name

HOST, BOOT, SEEN, PID, START = range(5)


def other(**changes: str) -> str:
    """The name of a holder that differs from this process in some parts."""
    parts = lease_holder_name().split("/")
    for name, value in changes.items():
        parts[globals()[name]] = value
    return "/".join(parts)


@pytest.mark.parametrize(
    ("changes", "dead"),
    [
        pytest.param({}, False, id="this very process"),
        pytest.param({"START": "1"}, True, id="its number is another process's now"),
        pytest.param({"PID": "999999999"}, True, id="it is gone"),
        pytest.param({"BOOT": "before"}, True, id="from before a reboot"),
        pytest.param({"SEEN": "pid:[1]"}, False, id="in another container"),
        pytest.param({"SEEN": "pid:[1]", "PID": "999999999"}, False, id="in another container, its number unknown"),
        pytest.param({"SEEN": "pid:[1]", "BOOT": "before"}, False, id="in another container, which boot"),
        pytest.param({"HOST": "elsewhere", "PID": "999999999"}, False, id="on another machine"),
    ],
)
def test_dead_holders(changes: dict[str, str], dead: bool) -> None:
    assert is_dead_holder(other(**changes)) is dead


@pytest.mark.parametrize("holder", ["", "ops", "host/boot/1/2"], ids=["none", "a word", "an older version's"])
def test_holder_with_an_incomplete_name_is_not_dead(holder: str) -> None:
    assert not is_dead_holder(holder)


def test_system_without_namespaces_recognizes_its_own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_processes", lambda: "")
    assert not is_dead_holder(lease_holder_name())
    assert is_dead_holder(lease_holder_name().replace(f"/{os.getpid()}/", "/999999999/"))
