"""Addresses of their own for tests that start servers on loopback, and the end of what they started."""

import errno
import os
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, TypeVar

from localcloud.control.sockets import find_listeners_in
from localcloud.machines.processes import children

Server = TypeVar("Server", bound=socketserver.BaseServer)

_NUMBERS: Final = range(100, 250)
"""127.16 and its neighbours belong to `gpufleet local up`."""
_PORTS: Final = (("0.2", 4566), ("0.3", 8081), ("0.10", 9090), ("0.10", 8080), ("0.10", 8404))
_taken: Final = dict[str, socket.socket]()
"""Networks given out, each with its lock: two test runs at once get different ones, one run never the same twice."""


@contextmanager
def served(server: Server) -> Generator[Server]:
    """A server that answers in a thread of its own, as long as the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def free_network() -> str:
    """A `127.N` that nobody serves on and nobody else was given. Raises RuntimeError when there is none."""
    first = os.getpid() % len(_NUMBERS)
    for number in (*_NUMBERS[first:], *_NUMBERS[:first]):
        network = f"127.{number}"
        if network not in _taken and _take(network):
            return network
    raise RuntimeError(
        f"no free loopback network from 127.{_NUMBERS[0]} to 127.{_NUMBERS[-1]}: end what is left there"
    )


def _take(network: str) -> bool:
    # a name that one process can have, and no file: it is free again when the process ends, however it ends
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0gpu-fleet-tests-{network}")
    except OSError as error:
        lock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    if not _is_free(network):
        lock.close()
        return False
    _taken[network] = lock
    return True


def _is_free(network: str) -> bool:
    if find_listeners_in(f"{network}.0.0/16"):
        return False
    for host, port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind((f"{network}.{host}", port))
            except OSError:
                return False
    return True


def end_process(process: subprocess.Popen[bytes], limit_s: float = 15.0) -> None:
    """Ask a server to end, and kill it with all its children when it does not. Never leaves one behind."""
    found = [process.pid, *children(process.pid)]
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        for pid in (*children(process.pid), *found):
            _kill(pid)
        process.wait(timeout=5)
        raise


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
