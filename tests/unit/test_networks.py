"""Networks of tests: never the same twice, never one that somebody serves on."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.networks import end_process, free_network


def test_a_network_is_never_given_twice() -> None:
    found = [free_network() for _ in range(5)]
    assert len(set(found)) == 5
    assert "127.16" not in found


def test_two_runs_at_once_get_different_ones() -> None:
    mine = free_network()
    code = "from tests.networks import free_network; print(free_network())"
    other = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert other.stdout.strip() != mine


@pytest.mark.parametrize("place", ["0.2:4566", "2.7:9500"], ids=["a left-over cloud", "a left-over machine"])
def test_a_network_where_something_listens_is_passed_over(place: str) -> None:
    host, _, port = place.partition(":")
    # the first one that would be tried next
    probe = int(free_network().removeprefix("127.")) + 1
    with socket.create_server((f"127.{probe}.{host}", int(port))):
        assert free_network() != f"127.{probe}"


def test_a_stubborn_process_is_killed_with_its_children_and_said() -> None:
    code = "import signal,subprocess,time; signal.signal(15, signal.SIG_IGN); p = subprocess.Popen(['sleep', '60']);"
    code += "print(p.pid, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        child = int(process.stdout.readline())
        with pytest.raises(subprocess.TimeoutExpired):
            end_process(process, limit_s=0.2)
    assert process.poll() is not None
    until = time.monotonic() + 10
    while _runs(child):  # a signal is delivered when the kernel gets to it
        assert time.monotonic() < until, f"{child} runs on"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"
