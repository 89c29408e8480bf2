"""Processes that outlive the command that started them."""

import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from localcloud.lifecycle import processes, sockets
from localcloud.lifecycle.processes import Process

from tests.fixtures.networks import free_network

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    begun: list[Process] = []

    def begin(program: str, name: str = "part", **environment: str) -> Process:
        log = tmp_path / f"{name}.log"
        process = processes.start(
            name, [sys.executable, "-c", program], environment=environment, cwd=tmp_path, log=log
        )
        begun.append(process)
        until = time.monotonic() + 60
        while "up" not in log.read_text():
            assert time.monotonic() < until, f"{name} did not start"
            time.sleep(0.02)
        return process

    yield begin
    processes.end(begun, 0.1)


def test_process_is_loaded_from_its_record_and_ended(start: Start, tmp_path: Path) -> None:
    start(SLEEPER).save(tmp_path / "run")
    found = processes.load(tmp_path / "run", "part")
    assert found is not None
    assert found.alive
    assert processes.end([found], 60) == ()
    assert not found.alive


def test_process_that_ignores_sigterm_is_killed_and_reported(start: Start) -> None:
    process = start(STUBBORN)
    assert processes.end([process], 0.2) == (process,)
    assert not process.alive


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"started": 1}, id="the number was given to a newer process"),
        pytest.param({"boot": "another"}, id="the machine was restarted since"),
    ],
)
def test_reused_pid_is_never_signalled(start: Start, change: dict[str, str | int]) -> None:
    process = start(SLEEPER)
    stale = replace(process, **change)  # pyright: ignore[reportArgumentType] - a table of fields
    assert not stale.alive
    assert processes.end([stale], 0.1) == ()
    assert process.alive


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1}', '{"pid": "x", "started": 1, "boot": ""}', "[]"])
def test_invalid_record_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "part.json").write_text(text)
    assert processes.load(tmp_path, "part") is None


def test_marked_processes_are_found_with_their_children_and_without_the_caller(start: Start, tmp_path: Path) -> None:
    def is_mine(environment: Mapping[str, str]) -> bool:
        return environment.get("GPUFLEET_TEST") == str(tmp_path)

    child = "import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    parent = start(child + "print('up', flush=True); p.wait()", GPUFLEET_TEST=str(tmp_path))
    other = start(SLEEPER, "other", GPUFLEET_TEST="theirs")
    found = processes.find_marked(is_mine)
    try:
        pids = {process.pid for process in found}
        assert parent.pid in pids
        assert len(pids) == 2
        assert other.pid not in pids
        every_process = processes.find_marked(lambda environment: True)
        assert os.getpid() not in {process.pid for process in every_process}
    finally:
        processes.end(found, 5)
    assert processes.find_marked(is_mine) == ()


def test_listener_is_found_with_its_owner() -> None:
    network = free_network()
    with socket.socket() as server:
        server.bind((f"{network}.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        found = sockets.find_listener(f"{network}.0.1", port)
        assert found is not None
        assert found.pid == os.getpid()
        assert not sockets.can_listen(f"{network}.0.1", port)
        assert sockets.find_listeners_in(f"{network}.0.0/16") == (found,)
    assert sockets.find_listener(f"{network}.0.1", port) is None
    assert sockets.can_listen(f"{network}.0.1", port)


def test_wildcard_listener_occupies_the_port() -> None:
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))  # noqa: S104
        server.listen()
        found = sockets.find_listener(f"{free_network()}.0.2", server.getsockname()[1])
        assert found is not None
        assert found.address == "0.0.0.0"  # noqa: S104
